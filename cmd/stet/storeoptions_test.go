package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/proxy"
	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/postgres"
	"github.com/stet-go/stet/store/sqlite"
)

// opened opens the store that flags of a command name, as the command does.
func opened(t *testing.T, flags ...string) (*storage, error) {
	t.Helper()
	var s storeFlags
	set := pflag.NewFlagSet("test", pflag.ContinueOnError)
	s.addStore(set)
	if err := set.Parse(flags); err != nil {
		return nil, err
	}
	c, err := s.storeConfig()
	if err != nil {
		return nil, err
	}
	st, err := openStore(t.Context(), c.Store)
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { _ = st.close() })
	return st, nil
}

func mustOpen(t *testing.T, flags ...string) *storage {
	t.Helper()
	s, err := opened(t, flags...)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func claimOf(key string) store.ClaimRequest {
	return store.ClaimRequest{ID: store.Digest("", "s", key), Scope: store.DigestScope("", "s"), Fingerprint: stet.NewFingerprint([]byte(key)),
		Owner: store.NewOwner(), Lease: time.Minute}
}

// storeCommands are the commands that have --store, by the words that call them.
func storeCommands() map[string]*cobra.Command {
	found := map[string]*cobra.Command{}
	var look func(*cobra.Command)
	look = func(c *cobra.Command) {
		for _, sub := range c.Commands() {
			look(sub)
		}
		if c.Runnable() && (c.Flags().Lookup("store") != nil || c.InheritedFlags().Lookup("store") != nil) {
			found[c.CommandPath()] = c
		}
	}
	look(newRoot())
	return found
}

func TestEveryCommandCallsTheStoresOptionsTheSame(t *testing.T) {
	commands := storeCommands()
	for _, name := range []string{"stet proxy", "stet keys ls", "stet keys resolve", "stet doctor", "stet sweep", "stet migrate up", "stet migrate status"} {
		if commands[name] == nil {
			t.Errorf("%s has no --store", name)
		}
	}
	help := newStoreTopic().Long
	for _, field := range proxy.Settings() {
		if !strings.HasPrefix(field.Path, "store.") {
			continue
		}
		if !strings.Contains(help, field.Flag) {
			t.Errorf("'stet help store' does not tell of %s", field.Flag)
		}
		for name, cmd := range commands {
			flag := strings.TrimPrefix(field.Flag, "--")
			if strings.HasPrefix(name, "stet demo") {
				continue // its stores are its own
			}
			if cmd.Flags().Lookup(flag) == nil && cmd.InheritedFlags().Lookup(flag) == nil {
				t.Errorf("%s has no %s", name, field.Flag)
			}
		}
	}
	for _, field := range proxy.Settings() {
		if commands["stet proxy"].Flags().Lookup(strings.TrimPrefix(field.Flag, "--")) == nil {
			t.Errorf("stet proxy has no %s", field.Flag)
		}
	}
}

func TestOptionsOfAnotherStoreAreRefusedByAllCommands(t *testing.T) {
	file := filepath.Join(t.TempDir(), "s.db")
	t.Setenv(storeVariable, "")
	for _, words := range []string{"doctor", "keys ls", "sweep", "proxy --upstream http://127.0.0.1:1"} {
		for _, tc := range []struct{ flags, want string }{
			{"--store " + file + " --store-schema x", "--store-schema: that is an option of PostgreSQL, and the store is an SQLite file"},
			{"--store memory --store-busy-timeout 1s", "--store-busy-timeout: that is an option of an SQLite file, and the store is memory"},
			{"--store postgres://u:hush@h/d --store-prefix p", "--store-prefix: that is an option of Redis, and the store is PostgreSQL"},
			{"--store postgres://u:hush@h/d --store-ca p", "sslrootcert"},
			{"--store redis://u:hush@h --store-ca p", "--store-ca: only with a rediss:// URL"},
			{"--store rediss://u:hush@h --store-ca missing.pem", "--store-ca: open missing.pem"},
			{"--store rediss://u:hush@h --store-key missing.pem", "--store-certificate: required"},
			{"--store memory --store-cache-age 1s", "--store-cache-age: only with cache"},
			{"--store redis://u:hush@h --store-replica-timeout 1s", "only with replicas"},
			{"--store redis://u:hush@h --store-replicas -1", "--store-replicas: -1 is negative"},
			{"--store redis://u:hush@h --store-replicas many", "whole number belongs"},
			{"--store redis://u:hush@h --store-allow-eviction=maybe", "true or false belongs"},
			{"--store memory --store-timeout soon", "is no duration"},
			{"--store memory --store-sweep-every 0s", "longer than zero"},
			{"--store mongodb://u:hush@h", "there is no store for mongodb://"},
			{"--store host=h?password=hush", "list of keywords"},
		} {
			args := strings.Fields(strings.ReplaceAll(words+" "+tc.flags, "?", " "))
			if strings.Contains(tc.flags, "?") {
				args = append(strings.Fields(words), "--store", "host=h password=hush")
			}
			status, _, errs := command(t, args...)
			if status != exitUsage || !strings.Contains(errs, tc.want) || strings.Contains(errs, "hush") {
				t.Errorf("stet %s: status %d, %s; want %q", args, status, errs, tc.want)
			}
		}
	}
}

func TestStoreOfAConfigurationServesEveryCommandAndFlagsOverrideIt(t *testing.T) {
	emptyDatabase(t)
	file := filepath.Join(t.TempDir(), "stet.yaml")
	url := os.Getenv("STET_POSTGRES_URL")
	text := "namespace: shop\nstore:\n  url: " + url + "\n  schema: mine\n  table: ops\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("STET_POSTGRES_URL", "")
	must(t, "migrate", "up", "--config", file)
	status, found := examineWith(t, "--config", file)
	if status != exitOK && !found["final"].OK || !found["rights"].OK {
		t.Errorf("doctor: %d, %v", status, found)
	}
	s := mustOpen(t, "--config", file)
	rec, err := s.Claim(t.Context(), store.ClaimRequest{ID: store.Digest("shop", "s", "k"), Scope: store.DigestScope("shop", "s"),
		Fingerprint: stet.NewFingerprint(nil), Owner: store.NewOwner(), Lease: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	if out := must(t, "keys", "get", "k", "--scope", "s", "--config", file, "-o", "json"); !strings.Contains(out, rec.ID.String()) {
		t.Errorf("keys get: %s", out)
	}
	must(t, "sweep", "--config", file)
	// Another table is not there.
	if status, _, errs := command(t, "sweep", "--config", file, "--store-table", "other"); status != exitFailure || !strings.Contains(errs, "other") {
		t.Errorf("with --store-table other: %d, %s", status, errs)
	}
	if status, _, errs := command(t, "migrate", "up", "--store", "s.db"); status != exitUsage || !strings.Contains(errs, "an SQLite file, which has no tables") {
		t.Errorf("migrate of a file: %d, %s", status, errs)
	}
}

// beginWrite takes the writer of an SQLite file, and returns what gives it back.
func beginWrite(t *testing.T, s *storage) (end func()) {
	t.Helper()
	tx, err := s.Store.(*sqlite.Store).DB().BeginTx(t.Context(), nil)
	if err == nil {
		_, err = tx.ExecContext(t.Context(), `UPDATE stet_records SET due = due WHERE false`)
	}
	if err != nil {
		t.Fatal(err)
	}
	return func() { _ = tx.Rollback() }
}

// forget takes all records out of an SQLite file.
func forget(t *testing.T, s *storage) {
	t.Helper()
	if _, err := s.Store.(*sqlite.Store).DB().ExecContext(t.Context(), `DELETE FROM stet_records`); err != nil {
		t.Fatal(err)
	}
}

func TestStoreInMemory_MaxRecords(t *testing.T) {
	s := mustOpen(t, "--store", "memory", "--store-max-records", "1")
	if _, err := s.Claim(t.Context(), claimOf("a")); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Claim(t.Context(), claimOf("b")); err == nil {
		t.Error("a second record was held")
	}
}

func TestStoreInSQLite_Options(t *testing.T) {
	file := filepath.Join(t.TempDir(), "s.db")
	other := mustOpen(t, "--store", file)
	tx := beginWrite(t, other)
	s := mustOpen(t, "--store", file, "--store-busy-timeout", "30s", "--store-max-queue", "1")
	// One waits in SQLite, one in the queue, and the third is refused at once.
	ctx, cancel := context.WithCancel(t.Context())
	results := make(chan error, 3)
	for range 3 {
		go func() { _, err := s.Claim(ctx, claimOf(stet.NewKey())); results <- err }()
	}
	if err := <-results; err == nil || errors.Is(err, context.Canceled) {
		t.Errorf("the first to return: %v", err)
	}
	cancel()
	tx()
	<-results
	<-results

	tx = beginWrite(t, other)
	defer tx()
	hasty := mustOpen(t, "--store", file, "--store-busy-timeout", "20ms")
	if took := quickest(t, hasty, claimOf("c")); took > 4*time.Second { // the default is 5 s
		t.Errorf("a claim fails after %v at best", took)
	}
}

// quickest returns how long the quickest of some claims took, all of which are to fail:
// each may be held up by a busy machine.
func quickest(t *testing.T, s store.Store, req store.ClaimRequest) time.Duration {
	t.Helper()
	best := time.Hour
	for range 5 {
		began := time.Now()
		if rec, err := s.Claim(t.Context(), req); err == nil {
			t.Fatalf("a claim that is to fail: %v", rec.State)
		}
		best = min(best, time.Since(began))
	}
	return best
}

func TestStoreInRedis_Options(t *testing.T) {
	server := rig.NewRedis(t, rig.RedisOptions{Settings: map[string]string{"maxmemory-policy": "allkeys-lru"}})
	url := "redis://" + server.Addr() + "/0"
	cli := func(args ...string) string {
		out, err := server.CLI(t.Context(), args...)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	if _, err := opened(t, "--store", url); err == nil || !strings.Contains(err.Error(), "maxmemory-policy") {
		t.Errorf("a server that evicts: %v", err)
	}
	s := mustOpen(t, "--store", url, "--store-allow-eviction", "--store-prefix", "mine")
	if _, err := s.Claim(t.Context(), claimOf("a")); err != nil {
		t.Fatal(err)
	}
	if keys := cli("KEYS", "mine*"); keys == "" || strings.Contains(cli("KEYS", "*"), "stet:") {
		t.Errorf("keys: %q", cli("KEYS", "*"))
	}
	s = mustOpen(t, "--store", url, "--store-allow-eviction", "--store-replicas", "1", "--store-replica-timeout", "10ms")
	if took := quickest(t, s, claimOf("b")); took > 900*time.Millisecond { // the default is 1 s
		t.Errorf("without a replica, a claim fails after %v at best", took)
	}
	cli("CONFIG", "SET", "maxmemory-policy", "noeviction")
	often, never := mustOpen(t, "--store", url, "--store-check-every", "10ms"), mustOpen(t, "--store", url, "--store-check-every", "never")
	cli("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
	for refused := false; !refused; {
		_, err := often.Claim(t.Context(), claimOf(stet.NewKey()))
		refused = err != nil
	}
	if _, err := never.Claim(t.Context(), claimOf(stet.NewKey())); err != nil {
		t.Errorf("a store that never looks again: %v", err)
	}
}

func TestStoreInPostgreSQL_Options(t *testing.T) {
	pool := emptyDatabase(t)
	url := pool.Config().ConnString()
	must(t, "migrate", "up", "--store", url)
	s := mustOpen(t, "--store", url, "--store-writers", "4", "--store-readers", "5")
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `LOCK TABLE stet.records IN ACCESS EXCLUSIVE MODE`); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	results := make(chan error, 100)
	start := func(n int, call func() error) {
		for range n {
			go func() { results <- call() }()
		}
	}
	waiting := func(want int) {
		for n := -1; n != want; {
			if err := pool.QueryRow(ctx, `SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()`).Scan(&n); err != nil {
				t.Fatal(err)
			}
		}
	}
	start(5, func() error { _, err := s.Read(ctx, store.Digest("", "s", stet.NewKey())); return err })
	waiting(5)
	start(4, func() error { _, err := s.Claim(ctx, claimOf(stet.NewKey())); return err })
	waiting(9)
	start(3, func() error { _, err := s.Claim(ctx, claimOf(stet.NewKey())); return err })
	time.Sleep(100 * time.Millisecond)
	waiting(9) // the other claims find no connection
	cancel()
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 12 {
		<-results
	}
}

func TestStoreInPostgreSQLBehindPgBouncer(t *testing.T) {
	server := rig.Postgres(t)
	url := server.Database(t)
	must(t, "migrate", "up", "--store", url)
	bouncer := rig.PgBouncer(t, server, rig.PgBouncerOptions{Settings: map[string]string{"default_pool_size": "4"}})
	through := rig.Through(bouncer.Addr(), url)
	s := mustOpen(t, "--store", through, "--store-pgbouncer")
	for range 50 {
		rec, err := s.Claim(t.Context(), claimOf(stet.NewKey()))
		if err == nil {
			err = s.Settle(t.Context(), rec.Claim(), store.Settlement{State: store.Completed}, store.Retention{Result: time.Minute, Tombstone: time.Minute})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	status, found := examineWith(t, "--store", through, "--store-pgbouncer")
	if !found["final"].OK {
		t.Errorf("doctor: %d, %v", status, found)
	}
	// Without the option, the sessions that the store prepares are others' as well.
	plain, err := opened(t, "--store", through)
	if err != nil {
		return
	}
	for range 50 {
		if _, err := plain.Claim(t.Context(), claimOf(stet.NewKey())); err != nil {
			return
		}
	}
	var v string
	if err := s.Store.(*postgres.Store).Pool().QueryRow(t.Context(), "SHOW enable_seqscan").Scan(&v); err != nil || v != "off" {
		t.Errorf("nothing tells that the option counts: %s, %v", v, err)
	}
}

func TestStoreInPostgreSQLThatMayLoseCommits(t *testing.T) {
	server := rig.NewPostgres(t, rig.PostgresOptions{Settings: map[string]string{"synchronous_commit": "off"}})
	url := server.Database(t)
	must(t, "migrate", "up", "--store", url)
	if _, err := opened(t, "--store", url); err == nil || !strings.Contains(err.Error(), "synchronous_commit") {
		t.Errorf("a server that loses commits: %v", err)
	}
	mustOpen(t, "--store", url, "--store-may-lose-commits")
}

func TestCacheReplaysUntilMaxAge(t *testing.T) {
	for _, tc := range []struct {
		flags []string
		want  store.State
	}{{nil, store.Running}, {[]string{"--store-cache", "1MiB"}, store.Completed}, {[]string{"--store-cache", "1MiB", "--store-cache-age", "1ns"}, store.Running}} {
		file := filepath.Join(t.TempDir(), "s.db")
		s := mustOpen(t, append([]string{"--store", file}, tc.flags...)...)
		front, err := s.cached()
		if err != nil {
			t.Fatal(err)
		}
		rec, err := front.Claim(t.Context(), claimOf("a"))
		if err == nil {
			err = front.Settle(t.Context(), rec.Claim(), store.Settlement{State: store.Completed}, store.Retention{Result: time.Hour, Tombstone: time.Hour})
		}
		if err == nil {
			_, err = front.Claim(t.Context(), claimOf("a")) // it is seen
		}
		if err != nil {
			t.Fatal(err)
		}
		forget(t, s)
		if rec, err := front.Claim(t.Context(), claimOf("a")); err != nil || rec.State != tc.want {
			t.Errorf("%v: %v, %v; want %v", tc.flags, rec.State, err, tc.want)
		}
	}
}
