package sqlite

import (
	"context"
	"database/sql"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/storetest"
)

func TestStoreKeepsTheContract(t *testing.T) {
	t.Parallel()
	clock := newClock()
	storetest.Run(t, storetest.Harness{
		New:     func(t testing.TB) store.Store { return openStore(t, Options{Clock: clock.Now}) },
		Advance: func(_ testing.TB, d time.Duration) { clock.Advance(d) },
		Damage: func(t testing.TB, s store.Store, id store.ID) {
			damageRow(t, s.(*Store), id, damages["a short owner"])
		},
	})
}

// Two handles on one file, each call through the next one: what one process
// did must bind the other.
func TestTwoHandlesOnOneFileKeepTheContract(t *testing.T) {
	t.Parallel()
	clock := newClock()
	storetest.Run(t, storetest.Harness{
		New: func(t testing.TB) store.Store {
			path := filepath.Join(t.TempDir(), "stet.db")
			return &alternate{stores: [2]*Store{openStore(t, Options{Clock: clock.Now}, path), openStore(t, Options{Clock: clock.Now}, path)}}
		},
		Advance: func(_ testing.TB, d time.Duration) { clock.Advance(d) },
		Damage: func(t testing.TB, s store.Store, id store.ID) {
			damageRow(t, s.(*alternate).stores[0], id, damages["no state"])
		},
		Histories: 30,
	})
}

// alternate sends each call to the other of two stores.
type alternate struct {
	mu     sync.Mutex
	n      int
	stores [2]*Store
}

func (a *alternate) next() *Store {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.n++
	return a.stores[a.n%2]
}

func (a *alternate) Claim(ctx context.Context, req store.ClaimRequest) (store.Record, error) {
	return a.next().Claim(ctx, req)
}
func (a *alternate) Extend(ctx context.Context, cs []store.Claim, lease time.Duration) ([]store.Claim, error) {
	return a.next().Extend(ctx, cs, lease)
}
func (a *alternate) Settle(ctx context.Context, c store.Claim, out store.Settlement, keep store.Retention) error {
	return a.next().Settle(ctx, c, out, keep)
}
func (a *alternate) Release(ctx context.Context, c store.Claim, keep store.Retention) error {
	return a.next().Release(ctx, c, keep)
}
func (a *alternate) Read(ctx context.Context, id store.ID) (store.Record, error) {
	return a.next().Read(ctx, id)
}
func (a *alternate) Sweep(ctx context.Context, limit int) (store.Swept, error) {
	return a.next().Sweep(ctx, limit)
}
func (a *alternate) Accept(ctx context.Context, req store.ClaimRequest, work []byte, after time.Duration) (store.Record, error) {
	return a.next().Accept(ctx, req, work, after)
}
func (a *alternate) Take(ctx context.Context, req store.TakeRequest) (store.Record, error) {
	return a.next().Take(ctx, req)
}
func (a *alternate) Return(ctx context.Context, c store.Claim, after time.Duration) error {
	return a.next().Return(ctx, c, after)
}
func (a *alternate) Cancel(ctx context.Context, c store.Claim, out store.Settlement, keep store.Retention) (store.Record, error) {
	return a.next().Cancel(ctx, c, out, keep)
}
func (a *alternate) Save(ctx context.Context, c store.Claim, notes store.Notes, repeatable bool) error {
	return a.next().Save(ctx, c, notes, repeatable)
}
func (a *alternate) Look(ctx context.Context, id store.ID) (store.Record, error) {
	return a.next().Look(ctx, id)
}
func (a *alternate) Due(ctx context.Context, limit int, again time.Duration, names ...string) ([]store.Record, error) {
	return a.next().Due(ctx, limit, again, names...)
}
func (a *alternate) DueMessages(ctx context.Context, limit int, again time.Duration) ([]store.Record, error) {
	return a.next().DueMessages(ctx, limit, again)
}
func (a *alternate) Relayed(ctx context.Context, c store.Claim, keep store.Retention) error {
	return a.next().Relayed(ctx, c, keep)
}

func TestTransactionsKeepTheContract(t *testing.T) {
	t.Parallel()
	clock := newClock()
	storetest.RunTx(t, storetest.TxHarness[*sql.Tx]{
		Harness: storetest.Harness{
			New: func(t testing.TB) store.Store {
				s := openStore(t, Options{Clock: clock.Now})
				if _, err := s.DB().Exec("CREATE TABLE effects (name TEXT)"); err != nil {
					t.Fatal(err)
				}
				return s
			},
			Advance: func(_ testing.TB, d time.Duration) { clock.Advance(d) },
		},
		Write: func(ctx context.Context, tx *sql.Tx, name string) error {
			_, err := tx.ExecContext(ctx, "INSERT INTO effects VALUES (?)", name)
			return err
		},
		Rows: func(t testing.TB, s store.TxStore[*sql.Tx], name string) (n int) {
			if err := s.(*Store).DB().QueryRow("SELECT count(*) FROM effects WHERE name = ?", name).Scan(&n); err != nil {
				t.Error(err)
			}
			return n
		},
		Begin: func(t testing.TB, s store.TxStore[*sql.Tx]) (*sql.Tx, func(bool) error) {
			tx, err := s.(*Store).DB().Begin()
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
