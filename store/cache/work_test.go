package cache_test

import (
	"context"
	"database/sql"
	"errors"
	"maps"
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

// What a cache's store can do is found through the cache, and nothing else is.
func TestCacheHasTheAbilitiesOfItsStore(t *testing.T) {
	file := openFile(t)
	for name, s := range map[string]store.Store{
		"five methods":           struct{ store.Store }{file},
		"all but transactions":   memory.New(memory.Options{}),
		"work alone":             struct{ store.WorkStore }{file},
		"messages alone":         struct{ store.OutboxStore }{file},
		"transactions alone":     struct{ store.TxStore[*sql.Tx] }{file},
		"transactions with work": struct{ store.WorkTxStore[*sql.Tx] }{file},
		"all":                    file,
	} {
		want := abilities(s)
		if got := abilities(wrap(t, s, cache.Options{})); !maps.Equal(got, want) {
			t.Errorf("a cache of a store of %s can do %v; want %v", name, got, want)
		}
		tx, ok := s.(store.TxStore[*sql.Tx])
		if !ok {
			continue
		}
		c, err := cache.NewTx(tx, cache.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if got := abilities(c); !maps.Equal(got, want) {
			t.Errorf("a cache of a store of %s, with transactions, can do %v; want %v", name, got, want)
		}
	}
}

// abilities are what the engine finds that s can do.
func abilities(s store.Store) map[string]bool {
	return map[string]bool{"WorkStore": is[store.WorkStore](s), "OutboxStore": is[store.OutboxStore](s), "TxStore": is[store.TxStore[*sql.Tx]](s),
		"WorkTxStore": is[store.WorkTxStore[*sql.Tx]](s), "Watcher": is[store.Watcher](s), "Sweeper": is[store.Sweeper](s), "Browser": is[store.Browser](s)}
}

func is[T any](s store.Store) bool { _, ok := store.As[T](s); return ok }

func TestAcceptanceOfAnEndedOperationReadsTheStoreOnce(t *testing.T) {
	s := &counted{Store: memory.New(memory.Options{})}
	c := as[store.WorkStore](t, wrap(t, s, cache.Options{}))
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
	if rec, err := c.Take(t.Context(), store.TakeRequest{ID: req.ID, Owner: store.NewOwner(), Lease: time.Minute}); err != nil || string(rec.Outbox) != "messages" || rec.Work != nil {
		t.Fatalf("Take of an ended operation: %+v, %v", rec, err)
	}
	asked := s.asked.Load()
	for range 10 {
		req.Owner = store.NewOwner()
		if rec, err := c.Accept(t.Context(), req, []byte("work"), 0); err != nil || string(rec.Result.Body) != "result" || rec.Work != nil || rec.Outbox != nil {
			t.Fatalf("Accept of an ended operation: %+v, %v", rec, err)
		}
		if rec := again(t, c, req); string(rec.Result.Body) != "result" || rec.Work != nil || rec.Outbox != nil {
			t.Fatalf("Claim of an ended operation: %+v", rec)
		}
	}
	if n := s.asked.Load() - asked; n != 0 {
		t.Errorf("the store was asked %d times for a cached outcome", n)
	}
	req.Fingerprint = stet.NewFingerprint([]byte("another"))
	if _, err := c.Accept(t.Context(), req, nil, 0); !errors.Is(err, store.ErrMismatch) {
		t.Errorf("another fingerprint: %v; want ErrMismatch", err)
	}
}

// unconfirmedTx is unconfirmed for transactions.
type unconfirmedTx struct{ *sqlite.Store }

func (u unconfirmedTx) RunTx(ctx context.Context, req store.ClaimRequest, keep store.Retention,
	fn func(context.Context, *sql.Tx, store.Record) (store.Settlement, error)) (store.Record, error) {
	ran := false
	rec, err := u.Store.RunTx(ctx, req, keep, func(ctx context.Context, tx *sql.Tx, rec store.Record) (store.Settlement, error) {
		ran = true
		return fn(ctx, tx, rec)
	})
	if err == nil && !ran {
		return store.Record{}, store.ErrUnknown
	}
	return rec, err
}

func TestOutcomeThatCameWithARefusalOfATransactionIsNotCached(t *testing.T) {
	c, err := cache.NewTx[*sql.Tx](unconfirmedTx{openFile(t)}, cache.Options{})
	if err != nil {
		t.Fatal(err)
	}
	run := func(req store.ClaimRequest) error {
		_, err := c.RunTx(t.Context(), req, keep, func(context.Context, *sql.Tx, store.Record) (store.Settlement, error) {
			return store.Settlement{State: store.Completed}, nil
		})
		return err
	}
	req := request("k")
	if err := run(req); err != nil {
		t.Fatal(err)
	}
	another := req
	another.Owner, another.Fingerprint = store.NewOwner(), stet.NewFingerprint([]byte("another"))
	if err := run(another); !errors.Is(err, store.ErrMismatch) {
		t.Errorf("another request: %v", err)
	}
	req.Owner = store.NewOwner()
	if err := run(req); !errors.Is(err, store.ErrUnknown) {
		t.Errorf("an unconfirmed outcome: %v; want ErrUnknown", err)
	}
}
