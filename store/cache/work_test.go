package cache_test

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/cache"
	"github.com/stet-go/stet/store/memory"
	"github.com/stet-go/stet/store/sqlite"
	"github.com/stet-go/stet/store/storetest"
)

func (c *counted) Accept(ctx context.Context, req store.ClaimRequest, work []byte, after time.Duration) (store.Record, error) {
	c.asked.Add(1)
	return c.Store.Accept(ctx, req, work, after)
}

func openFile(t testing.TB) *sqlite.Store {
	t.Helper()
	s, err := sqlite.Open(context.Background(), filepath.Join(t.TempDir(), "stet.db"), sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	if _, err := s.DB().Exec("CREATE TABLE effects (name TEXT)"); err != nil {
		t.Fatal(err)
	}
	return s
}

func TestCacheOfTransactionsKeepsTheContract(t *testing.T) {
	files := make(map[store.Store]*sqlite.Store)
	storetest.RunTx(t, storetest.TxHarness[*sql.Tx]{
		Harness: storetest.Harness{New: func(t testing.TB) store.Store {
			file := openFile(t)
			c, err := cache.NewTx(file, cache.Options{})
			if err != nil {
				t.Fatal(err)
			}
			files[c] = file
			return c
		}},
		Write: func(ctx context.Context, tx *sql.Tx, name string) error {
			_, err := tx.ExecContext(ctx, "INSERT INTO effects VALUES (?)", name)
			return err
		},
		Rows: func(t testing.TB, s store.TxStore[*sql.Tx], name string) (n int) {
			if err := files[s].DB().QueryRow("SELECT count(*) FROM effects WHERE name = ?", name).Scan(&n); err != nil {
				t.Error(err)
			}
			return n
		},
		Begin: func(t testing.TB, s store.TxStore[*sql.Tx]) (*sql.Tx, func(bool) error) {
			tx, err := files[s].DB().Begin()
			if err != nil {
				t.Fatal(err)
			}
			return tx, func(commit bool) error {
				if commit {
					return tx.Commit()
				}
				return tx.Rollback()
			}
		},
		OneWriter: true,
	})
}

func TestCacheHoldsWorkIfAndOnlyIfItsStoreDoes(t *testing.T) {
	file := openFile(t)
	plainTx, err := cache.NewTx(struct{ store.TxStore[*sql.Tx] }{file}, cache.Options{})
	if err != nil {
		t.Fatal(err)
	}
	workTx, err := cache.NewTx(file, cache.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		store.Store
		work, tx bool
	}{
		"a plain store":                     {wrap(t, struct{ store.Store }{file}, cache.Options{}), false, false},
		"a store of work":                   {wrap(t, memory.New(memory.Options{}), cache.Options{}), true, false},
		"transactions":                      {plainTx, false, true},
		"transactions with work":            {workTx, true, true},
		"transactions, cached without them": {wrap(t, file, cache.Options{}), true, false},
	} {
		if _, ok := c.Store.(store.WorkStore); ok != c.work {
			t.Errorf("a cache of %s is a WorkStore: %v; want %v", name, ok, c.work)
		}
		if _, ok := c.Store.(store.TxStore[*sql.Tx]); ok != c.tx {
			t.Errorf("a cache of %s is a TxStore: %v; want %v", name, ok, c.tx)
		}
		if _, ok := c.Store.(store.WorkTxStore[*sql.Tx]); ok != (c.work && c.tx) {
			t.Errorf("a cache of %s is a WorkTxStore: %v; want %v", name, ok, c.work && c.tx)
		}
		for what, ok := range map[string]bool{"Watcher": is[store.Watcher](c.Store), "Sweeper": is[store.Sweeper](c.Store), "Browser": is[store.Browser](c.Store)} {
			if !ok {
				t.Errorf("a cache of %s is no %s", name, what)
			}
		}
	}
}

func is[T any](s store.Store) bool { _, ok := s.(T); return ok }

func TestAcceptanceOfWhatHasEndedAsksTheStoreOnce(t *testing.T) {
	s := &counted{Store: memory.New(memory.Options{})}
	c := wrap(t, s, cache.Options{}).(store.WorkStore)
	req := request("k")
	if rec, err := c.Accept(t.Context(), req, []byte("work"), 0); err != nil || rec.State != store.Accepted {
		t.Fatalf("Accept: %+v, %v", rec, err)
	}
	rec, err := c.Take(t.Context(), store.TakeRequest{ID: req.ID, Owner: store.NewOwner(), Lease: time.Minute}) // from which the store's clock is known
	if err != nil || string(rec.Work) != "work" {
		t.Fatalf("Take: %+v, %v", rec, err)
	}
	out := store.Settlement{State: store.Completed, Result: store.Result{Body: []byte("result")}, Outbox: []byte("messages")}
	if err := c.Settle(t.Context(), rec.Claim(), out, keep); err != nil {
		t.Fatal(err)
	}
	if rec, err := c.Take(t.Context(), store.TakeRequest{ID: req.ID, Owner: store.NewOwner(), Lease: time.Minute}); err != nil || string(rec.Work) != "messages" {
		t.Fatalf("Take of what has ended: %+v, %v", rec, err)
	}
	asked := s.asked.Load()
	for range 10 {
		req.Owner = store.NewOwner()
		if rec, err := c.Accept(t.Context(), req, []byte("work"), 0); err != nil || string(rec.Result.Body) != "result" || rec.Work != nil {
			t.Fatalf("Accept of what has ended: %+v, %v", rec, err)
		}
		if rec := again(t, c, req); string(rec.Result.Body) != "result" || rec.Work != nil {
			t.Fatalf("Claim of what has ended: %+v", rec)
		}
	}
	if n := s.asked.Load() - asked; n != 0 {
		t.Errorf("the store was asked %d times for an outcome that was at hand", n)
	}
	req.Fingerprint = stet.NewFingerprint([]byte("another"))
	if _, err := c.Accept(t.Context(), req, nil, 0); !errors.Is(err, store.ErrMismatch) {
		t.Errorf("another fingerprint: %v; want ErrMismatch", err)
	}
}
