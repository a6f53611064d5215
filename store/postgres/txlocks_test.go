package postgres

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stet-go/stet/internal/test/stettest"
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

// However a transaction ends, its key is free afterwards, and its connection can be used again.
func TestNoLockOutlivesItsTransaction(t *testing.T) {
	boom := errors.New("boom")
	afterAnother := func(s *Store, work function) function { // another has written the record
		return func(ctx context.Context, tx pgx.Tx, rec store.Record) (store.Settlement, error) {
			if _, err := s.Claim(ctx, request(rec.ID.String())); err != nil {
				return store.Settlement{}, err
			}
			execSQL(t, s.Pool(), "UPDATE stet.records SET id = $1", rec.ID[:])
			return work(ctx, tx, rec)
		}
	}
	for name, c := range map[string]struct {
		fn    func(*Store) function
		fails bool
	}{
		"done":             {func(*Store) function { return charge }, false},
		"nothing done":     {func(*Store) function { return noWork }, false},
		"error":            {func(*Store) function { return failing(charge, boom) }, true},
		"error, no work":   {func(*Store) function { return failing(noWork, boom) }, true},
		"panic":            {func(*Store) function { return leaving(func() { panic(boom) }) }, true},
		"goexit":           {func(*Store) function { return leaving(runtime.Goexit) }, true},
		"failed statement": {func(*Store) function { return before(charge, "SELECT 1 / 0") }, true},
		"ended by SQL":     {func(*Store) function { return before(noWork, "ROLLBACK") }, true},
		"taken":            {func(s *Store) function { return afterAnother(s, charge) }, true},
		"taken, no work":   {func(s *Store) function { return afterAnother(s, noWork) }, true},
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
			stettest.Eventually(t, "no lock is left", func() bool { return len(heldLocks(t, s)) == 0 })
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

func never(t *testing.T) function {
	return func(context.Context, pgx.Tx, store.Record) (store.Settlement, error) {
		t.Error("it ran twice")
		return completed("twice"), nil
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
	_, err := s.RunTx(t.Context(), req, keep, func(ctx context.Context, tx pgx.Tx, rec store.Record) (store.Settlement, error) {
		before := len(heldLocks(t, s))
		if got, err := s.RunTx(ctx, request("k"), keep, never(t)); err != nil || got.State != store.Running || !got.InTx {
			t.Errorf("a duplicate: %+v, %v", got, err)
		}
		stettest.Eventually(t, "a duplicate leaves no lock", func() bool { return len(heldLocks(t, s)) == before && before == 2 })
		return charge(ctx, tx, rec)
	})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := s.RunTx(t.Context(), request("k"), keep, never(t)); err != nil || got.State != store.Completed {
		t.Errorf("a replay: %+v, %v", got, err)
	}
	stettest.Eventually(t, "no lock is left", func() bool { return len(heldLocks(t, s)) == 0 })
}

// The connection is lost before the first statement: nothing is committed, and the key is free.
func TestConnectionLostBeforeFirstStatement(t *testing.T) {
	s := ledger(t, Options{})
	for name, work := range map[string]function{"charge": charge, "nothing": noWork} {
		_, err := s.RunTx(t.Context(), request("k"), keep, func(ctx context.Context, tx pgx.Tx, rec store.Record) (store.Settlement, error) {
			pid := int(tx.Conn().PgConn().PID())
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

// The server ends an empty transaction whose client is gone before COMMIT.
func TestEmptyTransactionIsEndedWithoutItsClient(t *testing.T) {
	s, _ := frail(t, 2*time.Second)
	_, err := s.RunTx(t.Context(), request("k"), keep, func(_ context.Context, tx pgx.Tx, _ store.Record) (store.Settlement, error) {
		tx.Conn().PgConn().Conn().(*cutConn).mode.Store(clientGone)
		return completed("x"), nil
	})
	if err == nil || errors.Is(err, store.ErrUnknown) {
		t.Errorf("RunTx: %v; want it known that nothing was committed", err)
	}
	nothing(t, s, "k")
}

// The key is held until COMMIT has ended: another claimant must not run beside a transaction that
// may still be committed.
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
		t.Errorf("over a record that was released: %v", err)
	}
}
