package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stet-go/stet/store"
)

// ledger is a store with a table of the service's own.
func ledger(t *testing.T, o Options) *Store {
	t.Helper()
	s := openStore(t, o)
	if _, err := s.DB().Exec("CREATE TABLE charges (amount INTEGER)"); err != nil {
		t.Fatal(err)
	}
	return s
}

func charges(t *testing.T, s *Store) (n int) {
	t.Helper()
	if err := s.DB().QueryRow("SELECT count(*) FROM charges").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// charge is the body of a transaction that works.
func charge(ctx context.Context, tx *sql.Tx, _ store.Record) (store.Settlement, error) {
	_, err := tx.ExecContext(ctx, "INSERT INTO charges VALUES (100)")
	return completed("charged"), err
}

func never(t *testing.T) func(context.Context, *sql.Tx, store.Record) (store.Settlement, error) {
	return func(context.Context, *sql.Tx, store.Record) (store.Settlement, error) {
		t.Error("the function was called")
		return completed(""), nil
	}
}

func TestTransactionOfAnOwnerThatHasClaimedRunsNothing(t *testing.T) {
	s := ledger(t, Options{})
	first := request("k")
	claimed := mustClaim(t, s, first)
	if _, err := s.RunTx(t.Context(), first, keep, never(t)); !errors.Is(err, store.ErrUnknown) {
		t.Errorf("running under the same owner: %v", err)
	}
	if err := s.Release(t.Context(), claimed.Claim(), keep); err != nil {
		t.Fatal(err)
	}
	if rec, err := s.RunTx(t.Context(), first, keep, never(t)); err != nil || rec.State != store.Retryable {
		t.Errorf("by the owner that released it: %+v, %v", rec, err)
	}
}

func TestFunctionMustNotEndItsTransaction(t *testing.T) {
	cases := []struct {
		name    string
		end     func(*sql.Tx) error
		unknown bool
		state   store.State
		charges int
		says    string
	}{
		{"Commit", (*sql.Tx).Commit, true, store.Running, 1, "committed the transaction"},
		{"Rollback", (*sql.Tx).Rollback, false, store.None, 0, "rolled the transaction back"},
		{"COMMIT in SQL", func(tx *sql.Tx) error { _, err := tx.Exec("COMMIT"); return err }, true, store.Completed, 1, ""},
		{"ROLLBACK in SQL", func(tx *sql.Tx) error { _, err := tx.Exec("ROLLBACK"); return err }, true, store.None, 0, "rolled back"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s := ledger(t, Options{})
			rec, err := s.RunTx(t.Context(), request("k"), keep, func(ctx context.Context, tx *sql.Tx, r store.Record) (store.Settlement, error) {
				out, err := charge(ctx, tx, r)
				return out, errors.Join(err, c.end(tx))
			})
			if c.says == "" { // what fn and the store wrote is all there
				if err != nil || rec.State != store.Completed {
					t.Errorf("RunTx: %+v, %v", rec, err)
				}
			} else if err == nil || errors.Is(err, store.ErrUnknown) != c.unknown || !strings.Contains(err.Error(), c.says) {
				t.Errorf("RunTx: %v", err)
			}
			if rec := mustRead(t, s, request("k").ID); rec.State != c.state || charges(t, s) != c.charges {
				t.Errorf("left behind: %+v, %d charges", rec, charges(t, s))
			}
		})
	}
}

func TestLostCommitReplyIsReadBack(t *testing.T) {
	lost := errors.New("connection lost")
	t.Run("after it took effect", func(t *testing.T) {
		s := ledger(t, Options{})
		s.commit = func(tx *sql.Tx) error { return errors.Join(tx.Commit(), lost) }
		rec, err := s.RunTx(t.Context(), request("k"), keep, charge)
		if err != nil || rec.State != store.Completed || charges(t, s) != 1 {
			t.Errorf("RunTx: %+v, %v, %d charges", rec, err, charges(t, s))
		}
	})
	t.Run("before it took effect", func(t *testing.T) {
		s := ledger(t, Options{})
		s.commit = func(*sql.Tx) error { return lost }
		_, err := s.RunTx(t.Context(), request("k"), keep, charge)
		if !errors.Is(err, lost) || errors.Is(err, store.ErrUnknown) || charges(t, s) != 0 {
			t.Errorf("RunTx: %v, %d charges", err, charges(t, s))
		}
	})
	t.Run("and nothing can be read", func(t *testing.T) {
		s := ledger(t, Options{})
		s.commit = func(tx *sql.Tx) error { _ = s.reads.Close(); return errors.Join(tx.Commit(), lost) }
		_, err := s.RunTx(t.Context(), request("k"), keep, charge)
		if !errors.Is(err, store.ErrUnknown) || !errors.Is(err, lost) {
			t.Errorf("RunTx: %v", err)
		}
	})
}

func TestClaimIsSettledInTheCallersTransaction(t *testing.T) {
	path := filepath.Join(t.TempDir(), "stet.db")
	s := openStore(t, Options{}, path)
	foreign, err := sql.Open("sqlite", path+"?_txlock=immediate&_pragma=busy_timeout(5000)")
	if err != nil {
		t.Fatal(err)
	}
	defer foreign.Close()
	for name, db := range map[string]*sql.DB{"DB": s.DB(), "another pool": foreign} {
		t.Run(name, func(t *testing.T) {
			rec := mustClaim(t, s, request(name))
			tx, err := db.BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer tx.Rollback()
			stale := rec.Claim()
			stale.Fence--
			if err := s.SettleTx(t.Context(), tx, stale, completed("stale"), keep); !errors.Is(err, store.ErrFenced) {
				t.Errorf("a stale fence: %v", err)
			}
			if err := s.SettleTx(t.Context(), tx, rec.Claim(), completed("done"), keep); err != nil {
				t.Fatal(err)
			}
			if now := mustRead(t, s, rec.ID); now.State != store.Running {
				t.Errorf("before the commit: %+v", now)
			}
			if err := tx.Commit(); err != nil {
				t.Fatal(err)
			}
			if now := mustRead(t, s, rec.ID); now.State != store.Completed || string(now.Result.Body) != "done" {
				t.Errorf("after the commit: %+v", now)
			}
		})
	}
}

// Transactions and batches of one process, at the same time: each effect is
// there once, and so is its record.
func TestTransactionsAndBatchesShareTheWriter(t *testing.T) {
	s := ledger(t, Options{})
	const n = 40
	var wg sync.WaitGroup
	for i := range n {
		key := string(rune('A' + i))
		for range 2 {
			wg.Go(func() {
				if _, err := s.RunTx(t.Context(), request("tx"+key), keep, charge); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Go(func() {
			rec, err := s.Claim(t.Context(), request("lease"+key))
			if err == nil {
				err = s.Settle(t.Context(), rec.Claim(), completed("x"), keep)
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if got := charges(t, s); got != n {
		t.Errorf("%d charges for %d operations", got, n)
	}
}
