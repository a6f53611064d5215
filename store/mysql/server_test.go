package mysql

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/store"
)

// refused requires that Open refuse the server, and says so.
func refused(t *testing.T, dsn, says string) {
	t.Helper()
	s, err := Open(t.Context(), dsn, Options{})
	if err == nil {
		_ = s.Close()
	}
	if err == nil || !strings.Contains(err.Error(), says) {
		t.Errorf("Open: %v; want an error with %q", err, says)
	}
}

func TestServerThatMayLoseCommitsIsRefused(t *testing.T) {
	server := rig.NewMariaDB(t, rig.MariaDBOptions{})
	dsn := server.Database(t)
	s := openStore(t, Options{}, dsn)
	running := mustClaim(t, s, request("running"))
	for _, c := range []struct{ set, back, says string }{
		{"innodb_flush_log_at_trx_commit = 2", "innodb_flush_log_at_trx_commit = 1", "innodb_flush_log_at_trx_commit is 2"},
		{"innodb_flush_log_at_trx_commit = 0", "innodb_flush_log_at_trx_commit = 1", "innodb_flush_log_at_trx_commit is 0"},
		{"read_only = ON", "read_only = OFF", "read-only"},
	} {
		exec(t, s.DB(), "SET GLOBAL "+c.set)
		refused(t, dsn, c.says)
		ran := false
		calls := map[string]error{"Settle": s.Settle(t.Context(), running.Claim(), completed("x"), keep)}
		_, calls["Claim"] = s.Claim(t.Context(), request(c.set))
		_, calls["RunTx"] = s.RunTx(t.Context(), request("tx "+c.set), keep, func(context.Context, *sql.Tx, store.Record) (store.Settlement, error) {
			ran = true
			return completed("x"), nil
		})
		_, calls["Extend"] = s.Extend(t.Context(), []store.Claim{running.Claim()}, keep.Result)
		_, calls["Sweep"] = s.Sweep(t.Context(), 10)
		for name, err := range calls {
			if !errors.Is(err, store.ErrNotDone) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%s with %s: %v; want it refused", name, c.set, err)
			}
		}
		if ran {
			t.Errorf("with %s a transaction ran", c.set)
		}
		tx, err := s.DB().Begin()
		if err != nil {
			t.Fatal(err)
		}
		if err := s.SettleTx(t.Context(), tx, running.Claim(), completed("x"), keep); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("SettleTx with %s: %v", c.set, err)
		}
		_ = tx.Rollback()
		exec(t, s.DB(), "SET GLOBAL "+c.back)
	}
	mustSettle(t, s, running.Claim(), "x")
}

func TestBinaryLogMustBeSynchronous(t *testing.T) {
	server := rig.NewMariaDB(t, rig.MariaDBOptions{Settings: map[string]string{"log-bin": "log"}})
	dsn := server.Database(t)
	if err := Migrate(t.Context(), dsn); err != nil {
		t.Fatal(err)
	}
	refused(t, dsn, "sync_binlog is 0")
	db, err := sql.Open("mysql", dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	exec(t, db, "SET GLOBAL sync_binlog = 1")
	s := openStore(t, Options{}, dsn)
	mustSettle(t, s, mustClaim(t, s, request("k")).Claim(), "x")
	if s.late.Load() {
		t.Error("with a binary log a commit is on the disk before others see it")
	}
	exec(t, db, "SET GLOBAL sync_binlog = 0")
	if _, err := s.Claim(t.Context(), request("other")); !errors.Is(err, store.ErrNotDone) {
		t.Errorf("Claim with sync_binlog = 0: %v", err)
	}
}

func TestReplicaIsRefused(t *testing.T) {
	server := rig.NewMariaDB(t, rig.MariaDBOptions{Settings: map[string]string{"server-id": "2"}})
	dsn := server.Database(t)
	if err := Migrate(t.Context(), dsn); err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("mysql", dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	exec(t, db, "CHANGE MASTER TO MASTER_HOST='127.0.0.1', MASTER_PORT=1, MASTER_USER='x'")
	refused(t, dsn, "replica")
}

func TestSmallPacketIsRefused(t *testing.T) {
	server := rig.NewMariaDB(t, rig.MariaDBOptions{Settings: map[string]string{"max_allowed_packet": "4M"}})
	dsn := server.Database(t)
	if err := Migrate(t.Context(), dsn); err != nil {
		t.Fatal(err)
	}
	refused(t, dsn, "max_allowed_packet")
}

func TestTablesMustExist(t *testing.T) {
	dsn := rig.MariaDB(t).Database(t)
	refused(t, dsn, "stet migrate up")
	s := openStore(t, Options{}, dsn)
	exec(t, s.DB(), "UPDATE stet_meta SET version = 99")
	refused(t, dsn, "version 99")
}

func TestVersionsOfServers(t *testing.T) {
	for version, ok := range map[string]bool{"5.7.44": false, "8.0.36": true, "8.4.3": true, "10.5.12-MariaDB": false, "10.6.1-MariaDB-log": true, "11.4.2-MariaDB": true, "x": false} {
		if err := checkVersion(version); (err == nil) != ok {
			t.Errorf("%s: %v", version, err)
		}
	}
}

func TestDataSourceNames(t *testing.T) {
	config, err := parse("mysql://payments:s@cret@db.example:3307/shop?timeout=5s")
	if err != nil || config.User != "payments" || config.Passwd != "s@cret" || config.Addr != "db.example:3307" || config.DBName != "shop" || config.Timeout == 0 {
		t.Errorf("a URL: %+v, %v", config, err)
	}
	if config, err := parse("mysql://db/shop"); err != nil || config.Addr != "db:3306" {
		t.Errorf("a URL without a port: %+v, %v", config, err)
	}
	for _, dsn := range []string{"", "root:secret@tcp(127.0.0.1:3306)/", "root:secret@", "mysql://root:secret@/shop"} {
		if _, err := parse(dsn); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v; want an error without the password", dsn, err)
		}
	}
}

func TestOptionsAreChecked(t *testing.T) {
	for _, o := range []Options{{MaxConns: -1}, {MaxConns: 3}, {MaxQueue: -1}} {
		if _, err := Open(t.Context(), "root@tcp(127.0.0.1:1)/x", o); err == nil || !strings.Contains(err.Error(), "Options.MaxConns") {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

// A commit that can be seen is not on the disk yet, without a binary log. Each call that returns something of it
// first makes it durable.
func TestCommitIsConfirmedBeforeItIsReturned(t *testing.T) {
	s := openStore(t, Options{})
	flushes := func() (n int) {
		if err := s.DB().QueryRow("SELECT flushes FROM stet_meta").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	req, running, released, job := request("k"), request("running"), request("released"), request("job")
	settled := mustClaim(t, s, req).Claim()
	mustSettle(t, s, settled, "x")
	mustClaim(t, s, running)
	back := mustClaim(t, s, released).Claim()
	if err := s.Release(t.Context(), back, keep); err != nil {
		t.Fatal(err)
	}
	mustAccept(t, s, job, "work")
	again := request("k")
	for name, call := range map[string]func() error{
		"Read":  func() error { _, err := s.Read(t.Context(), req.ID); return err },
		"Look":  func() error { _, err := s.Look(t.Context(), req.ID); return err },
		"Claim": func() error { _, err := s.Claim(t.Context(), again); return err },
		"Take": func() error {
			_, err := s.Take(t.Context(), store.TakeRequest{ID: req.ID, Owner: store.NewOwner(), Lease: keep.Result})
			return err
		},
		"RunTx": func() error {
			_, err := s.RunTx(t.Context(), again, keep, func(context.Context, *sql.Tx, store.Record) (store.Settlement, error) {
				return store.Settlement{}, errors.New("the function was called")
			})
			return err
		},
		"a repeated Claim":   func() error { _, err := s.Claim(t.Context(), running); return err },
		"a repeated Settle":  func() error { return s.Settle(t.Context(), settled, completed("x"), keep) },
		"a repeated Release": func() error { return s.Release(t.Context(), back, keep) },
		"a repeated Accept":  func() error { _, err := s.Accept(t.Context(), job, []byte("work"), 0); return err },
		"Extend of a lost claim": func() error {
			lost, err := s.Extend(t.Context(), []store.Claim{settled}, keep.Result)
			if len(lost) != 1 {
				t.Errorf("Extend of a settled claim: %v lost", lost)
			}
			return err
		},
	} {
		before := flushes()
		if err := call(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if flushes() == before {
			t.Errorf("%s returned something that may not be on the disk", name)
		}
	}
	s.advance(2 * time.Minute)
	before := flushes()
	if mustRead(t, s, req.ID); flushes() != before {
		t.Error("an old outcome was confirmed")
	}
}

// In GBK 0xbf and a backslash are one character: an escaped quote after it would end a literal.
func TestCharacterSetOfTheDataSourceNameIsNotUsed(t *testing.T) {
	for _, option := range []string{"charset=gbk", "character_set_client=gbk", "collation=gbk_chinese_ci"} {
		t.Run(option, func(t *testing.T) {
			dsn := rig.MariaDB(t).Database(t)
			join := "?"
			if strings.Contains(dsn, "?") {
				join = "&"
			}
			s := openStore(t, Options{}, dsn+join+option)
			const body = "\xbf', NULL, NULL), ('x"
			rec := mustClaim(t, s, request("k"))
			mustSettle(t, s, rec.Claim(), body)
			if got := mustRead(t, s, rec.ID); string(got.Result.Body) != body {
				t.Errorf("the body is %q; want %q", got.Result.Body, body)
			}
		})
	}
}
