package postgres

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stet-go/stet/store"
)

// heldLocks are the advisory locks that are held in the store's database.
func heldLocks(t *testing.T, s *Store) []string {
	t.Helper()
	rows, err := s.own.Query(t.Context(), `SELECT format('%s %s %s %s', pid, classid, objid, mode) FROM pg_locks
		WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`)
	if err != nil {
		t.Fatal(err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func noWork(context.Context, pgx.Tx, store.Record) (store.Settlement, error) {
	return completed("x"), nil
}

// A lock of a session outlives its transaction, unless something lets go of it. However
// the transaction ends, the key is free then, and its connection goes on.
func TestNoLockOutlivesItsTransaction(t *testing.T) {
	boom := errors.New("boom")
	meanwhile := func(s *Store, work function) function { // another has written the record
		return func(ctx context.Context, tx pgx.Tx, rec store.Record) (store.Settlement, error) {
			if _, err := s.Claim(ctx, request(rec.ID.String())); err != nil {
				return store.Settlement{}, err
			}
			execSQL(t, s.Pool(), "UPDATE stet.records SET id = $1", rec.ID[:])
			return work(ctx, tx, rec)
		}
	}
	const shipped = "SELECT pg_advisory_unlock_all()"
	for name, c := range map[string]struct {
		fn    func(*Store) function
		fails bool
	}{
		"done":               {func(*Store) function { return charge }, false},
		"nothing done":       {func(*Store) function { return noWork }, false},
		"error":              {func(*Store) function { return failing(charge, boom) }, true},
		"error, no work":     {func(*Store) function { return failing(noWork, boom) }, true},
		"panic":              {func(*Store) function { return leaving(func() { panic(boom) }) }, true},
		"goexit":             {func(*Store) function { return leaving(runtime.Goexit) }, true},
		"failed statement":   {func(*Store) function { return before(charge, "SELECT 1 / 0") }, true},
		"ended by SQL":       {func(*Store) function { return before(noWork, "ROLLBACK") }, true},
		"taken":              {func(s *Store) function { return meanwhile(s, charge) }, true},
		"taken, no work":     {func(s *Store) function { return meanwhile(s, noWork) }, true},
		"let go by function": {func(*Store) function { return before(charge, shipped) }, false},
		"cannot be written": {func(*Store) function {
			return func(context.Context, pgx.Tx, store.Record) (store.Settlement, error) {
				return store.Settlement{State: store.Completed, Result: store.Result{Type: "\x00"}}, nil
			}
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := ledger(t, Options{})
			done := make(chan error, 1)
			go func() {
				err := boom
				defer func() {
					_ = recover()
					done <- err
				}()
				_, err = s.RunTx(t.Context(), request("k"), keep, c.fn(s))
			}()
			if err := <-done; (err != nil) != c.fails {
				t.Errorf("RunTx: %v", err)
			}
			if locks := heldLocks(t, s); len(locks) > 0 {
				t.Errorf("still held: %v", locks)
			}
			if stat := s.Pool().Stat(); stat.AcquiredConns() != 0 || stat.NewConnsCount() > 2 {
				t.Errorf("%d connections are in use, %d were made", stat.AcquiredConns(), stat.NewConnsCount())
			}
		})
	}
}

// before is fn after a statement.
func before(fn function, sql string) function {
	return func(ctx context.Context, tx pgx.Tx, rec store.Record) (store.Settlement, error) {
		_, _ = tx.Exec(ctx, sql)
		return fn(ctx, tx, rec)
	}
}

func failing(fn function, err error) function {
	return func(ctx context.Context, tx pgx.Tx, rec store.Record) (store.Settlement, error) {
		_, _ = fn(ctx, tx, rec)
		return store.Settlement{}, err
	}
}

func leaving(end func()) function {
	return func(ctx context.Context, tx pgx.Tx, rec store.Record) (store.Settlement, error) {
		_, _ = charge(ctx, tx, rec)
		end()
		return store.Settlement{}, nil
	}
}

// A function that has done nothing yet has the key all the same, and neither a replay nor
// a duplicate leaves anything locked.
func TestKeyIsHeldBeforeTheFirstStatement(t *testing.T) {
	s := ledger(t, Options{})
	req := request("k")
	never := func(context.Context, pgx.Tx, store.Record) (store.Settlement, error) {
		t.Error("it ran twice")
		return completed("twice"), nil
	}
	_, err := s.RunTx(t.Context(), req, keep, func(ctx context.Context, tx pgx.Tx, rec store.Record) (store.Settlement, error) {
		if status := tx.(*guarded).Tx.(*worked).conn.PgConn().TxStatus(); status != 'I' {
			t.Errorf("the transaction has begun: %c", status)
		}
		before := len(heldLocks(t, s))
		if got, err := s.RunTx(ctx, request("k"), keep, never); err != nil || got.State != store.Running || !got.InTx {
			t.Errorf("a duplicate: %+v, %v", got, err)
		}
		if after := len(heldLocks(t, s)); after != before || before != 2 {
			t.Errorf("%d locks before a duplicate, and %d after it; want 2", before, after)
		}
		return charge(ctx, tx, rec)
	})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := s.RunTx(t.Context(), request("k"), keep, never); err != nil || got.State != store.Completed {
		t.Errorf("a replay: %+v, %v", got, err)
	}
	if locks := heldLocks(t, s); len(locks) > 0 {
		t.Errorf("still held: %v", locks)
	}
}

// The connection is gone before the transaction has begun: nothing is committed, and the key is free.
func TestConnectionLostBeforeBegin(t *testing.T) {
	s := ledger(t, Options{})
	for name, work := range map[string]function{"charge": charge, "nothing": noWork} {
		_, err := s.RunTx(t.Context(), request("k"), keep, func(ctx context.Context, tx pgx.Tx, rec store.Record) (store.Settlement, error) {
			pid := int(tx.(*guarded).Tx.(*worked).conn.PgConn().PID())
			execSQL(t, s.Pool(), "SELECT pg_terminate_backend($1)", pid)
			for there := true; there; {
				if err := s.Pool().QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1)", pid).Scan(&there); err != nil {
					t.Error(err)
					break
				}
			}
			out, _ := work(ctx, tx, rec)
			return out, nil
		})
		if err == nil || errors.Is(err, store.ErrUnknown) || charges(t, s) != 0 {
			t.Errorf("%s: %v, %d charges; want it known that nothing was committed", name, err, charges(t, s))
		}
	}
	nothing(t, s, "k")
}

// The commit of a function that has done nothing is all that is ever sent of its transaction.
func TestTransactionThatNeverBeganIsEndedWithoutItsClient(t *testing.T) {
	s, _ := frail(t, 2*time.Second)
	_, err := s.RunTx(t.Context(), request("k"), keep, func(_ context.Context, tx pgx.Tx, _ store.Record) (store.Settlement, error) {
		tx.(*guarded).Tx.(*worked).conn.PgConn().Conn().(*cutConn).mode.Store(clientGone)
		return completed("x"), nil
	})
	if err == nil || errors.Is(err, store.ErrUnknown) {
		t.Errorf("RunTx: %v; want it known that nothing was committed", err)
	}
	nothing(t, s, "k")
}

// pooledConn is promised another process than it gets, as behind a pooler.
type pooledConn struct{ net.Conn }

func (c pooledConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if i := bytes.Index(b[:n], []byte{'K', 0, 0, 0, 12}); i >= 0 && i+9 <= n { // BackendKeyData
		b[i+7] ^= 1
	}
	return n, err
}

// Behind a pooler that shares sessions a lock of the session would stay when its
// client is served by another one. Nobody has told the store of it.
func TestSharedSessionIsNotLocked(t *testing.T) {
	config := database(t).Config()
	dial := config.ConnConfig.DialFunc
	config.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := dial(ctx, network, addr)
		return pooledConn{c}, err
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	s := open(t, pool, Options{})
	execSQL(t, pool, "CREATE TABLE charges (name text)")
	for _, key := range []string{"a", "b", "a"} {
		_, err := s.RunTx(t.Context(), request(key), keep, func(ctx context.Context, tx pgx.Tx, rec store.Record) (store.Settlement, error) {
			if status := tx.(*guarded).Tx.Conn().PgConn().TxStatus(); status != 'T' || s.looksAhead() {
				t.Errorf("its status is %c", status)
			}
			return charge(ctx, tx, rec)
		})
		if err != nil {
			t.Error(err)
		}
	}
	if n := charges(t, s); n != 2 {
		t.Errorf("%d charges; want 2", n)
	}
}

// The key is held until the commit, though the session lets go of it before: another
// that got in between would run beside a transaction that may still be committed.
func TestKeyIsHeldUntilTheCommit(t *testing.T) {
	s := ledger(t, Options{})
	req := request("k")
	l := s.locks(req.ID, req.Fingerprint)
	execSQL(t, s.Pool(), fmt.Sprintf(`CREATE FUNCTION held() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		IF NOT EXISTS (SELECT FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory' AND objsubid = 1 AND mode = 'ExclusiveLock' AND classid = %d AND objid = %d) THEN
			RAISE EXCEPTION 'the key is not held';
		END IF;
		RETURN NULL;
	END $$;
	CREATE CONSTRAINT TRIGGER held AFTER INSERT ON charges DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION held()`, l.keyHi, l.keyLo))
	if _, err := s.RunTx(t.Context(), req, keep, charge); err != nil {
		t.Error(err)
	}
	again := request("released")
	if err := s.Release(t.Context(), mustClaim(t, s, again).Claim(), keep); err != nil {
		t.Fatal(err)
	}
	l = s.locks(again.ID, again.Fingerprint)
	execSQL(t, s.Pool(), fmt.Sprintf(`CREATE OR REPLACE FUNCTION held() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		PERFORM 1 / (SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory' AND objsubid = 1 AND mode = 'ExclusiveLock' AND classid = %d AND objid = %d);
		RETURN NULL;
	END $$`, l.keyHi, l.keyLo))
	again.Owner = store.NewOwner()
	if _, err := s.RunTx(t.Context(), again, keep, charge); err != nil {
		t.Errorf("over a record that was given back: %v", err)
	}
}
