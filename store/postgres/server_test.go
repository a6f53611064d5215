package postgres

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/storetest"
)

// bounced returns a pool to a fresh database that goes through PgBouncer.
func bounced(t *testing.T, server *rig.PostgresServer) *pgxpool.Pool {
	t.Helper()
	o := rig.PgBouncerOptions{Settings: map[string]string{"default_pool_size": "60"}} // enough for tests that run side by side
	url := rig.Through(rig.PgBouncer(t, server, o).Addr(), server.Database(t))
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	config.MaxConns = 16
	config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

func TestContractIsKeptThroughPgBouncer(t *testing.T) {
	t.Parallel()
	pool := bounced(t, rig.Postgres(t))
	execSQL(t, pool, "CREATE TABLE effects (name text)")
	h := harness(t, Options{PgBouncer: true})
	h.New = func(t testing.TB) store.Store {
		return open(t, another(t, pool), Options{PgBouncer: true, Schema: fresh()})
	}
	t.Run("store", func(t *testing.T) { storetest.Run(t, h.Harness) })
	t.Run("transactions", func(t *testing.T) { storetest.RunTx(t, h) })
}

func TestPreparingPoolIsRefusedThroughPgBouncer(t *testing.T) {
	if _, err := New(t.Context(), database(t), Options{PgBouncer: true}); err == nil || !strings.Contains(err.Error(), "CacheDescribe") {
		t.Errorf("New: %v", err)
	}
}

func TestReadReplicaIsRefused(t *testing.T) {
	t.Parallel()
	server := rig.NewPostgres(t, rig.PostgresOptions{})
	url := server.URL("postgres")
	pool := connect(t, url)
	s := open(t, pool, Options{})
	var data string
	if err := pool.QueryRow(t.Context(), "SHOW data_directory").Scan(&data); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(data, "standby.signal"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := New(t.Context(), connect(t, url), Options{}); err == nil || !strings.Contains(err.Error(), "read replica") {
		t.Errorf("New: %v", err)
	}
	if _, err := s.Claim(t.Context(), request("k")); err == nil || !strings.Contains(err.Error(), "read replica") {
		t.Errorf("Claim after the server has become a replica: %v", err)
	}
	_, err := s.RunTx(t.Context(), request("k"), keep, func(context.Context, pgx.Tx, store.Record) (store.Settlement, error) {
		t.Error("the function was called")
		return completed(""), nil
	})
	if err == nil {
		t.Error("RunTx after the server has become a replica: no error")
	}
}

// An outcome is durable before it is returned: where the server does not see to
// that, the store fails closed, also when it was turned off since.
func TestServerThatMayLoseCommitsIsRefused(t *testing.T) {
	url := rig.Postgres(t).Database(t)
	pool := connect(t, url)
	s := open(t, pool, Options{})
	execSQL(t, pool, `DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET synchronous_commit = off', current_database()); END $$`)
	if _, err := New(t.Context(), connect(t, url), Options{}); !errors.Is(err, errLossy) || !strings.Contains(err.Error(), "MayLoseCommits") {
		t.Errorf("New: %v", err)
	}
	s.own.Reset() // the next connections
	if _, err := s.Claim(t.Context(), request("k")); !errors.Is(err, errLossy) {
		t.Errorf("Claim since it was turned off: %v", err)
	}
	loose := open(t, connect(t, url), Options{MayLoseCommits: true})
	mustSettle(t, loose, mustClaim(t, loose, request("k")).Claim(), "x")
}

func TestServerWithoutFsyncIsRefused(t *testing.T) {
	t.Parallel()
	server := rig.NewPostgres(t, rig.PostgresOptions{Settings: map[string]string{"fsync": "off"}})
	pool := connect(t, server.URL("postgres"))
	if err := Migrate(t.Context(), pool, Options{}); err != nil {
		t.Fatal(err)
	}
	if _, err := New(t.Context(), pool, Options{}); !errors.Is(err, errLossy) {
		t.Errorf("New: %v", err)
	}
}

func TestStoreSurvivesTheServer(t *testing.T) {
	t.Parallel()
	server := rig.NewPostgres(t, rig.PostgresOptions{})
	s := open(t, connect(t, server.URL("postgres")), Options{})
	rec := mustClaim(t, s, request("k"))
	for range 3 {
		if err := server.Kill(); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Claim(t.Context(), request("other")); err == nil {
			t.Error("a claim without a server was granted")
		}
		if err := server.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		next := mustClaim(t, s, request(stet.NewKey()))
		if next.Fence <= rec.Fence {
			t.Errorf("the fence %d came after %d", next.Fence, rec.Fence)
		}
		rec = next
		if _, err := s.RunTx(t.Context(), request(stet.NewKey()), keep, func(context.Context, pgx.Tx, store.Record) (store.Settlement, error) {
			return completed("x"), nil
		}); err != nil {
			t.Errorf("RunTx: %v", err)
		}
	}
}

// The server may give a number of its sequence again after a crash if nothing was
// committed since. So the fence of a transaction that never committed may be another's:
// its writes are rolled back. No committed fence comes again.
func TestNoCommittedFenceComesAgainAfterACrash(t *testing.T) {
	t.Parallel() // it mostly waits
	server := rig.NewPostgres(t, rig.PostgresOptions{Settings: map[string]string{"wal_writer_delay": "10s"}})
	s := open(t, connect(t, server.URL("postgres")), Options{})
	var last int64
	for range 3 {
		for i := range 40 { // more than the server writes ahead
			claimed := mustClaim(t, s, request(stet.NewKey())).Fence
			if claimed <= last {
				t.Fatalf("the fence %d came after %d", claimed, last)
			}
			if last = claimed; i%2 == 0 {
				continue
			}
			rec, err := s.RunTx(t.Context(), request(stet.NewKey()), keep, func(context.Context, pgx.Tx, store.Record) (store.Settlement, error) {
				return completed("x"), nil
			})
			if err != nil || rec.Fence <= last {
				t.Fatalf("the fence %d came after %d, %v", rec.Fence, last, err)
			}
			last = rec.Fence
		}
		open := make(chan struct{})
		_, err := s.RunTx(t.Context(), request(stet.NewKey()), keep, func(context.Context, pgx.Tx, store.Record) (store.Settlement, error) {
			close(open)
			return completed(""), server.Kill()
		})
		<-open
		if err == nil {
			t.Error("a commit without a server succeeded")
		}
		if err := server.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}
