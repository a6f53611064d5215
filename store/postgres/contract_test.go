package postgres

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/storetest"
)

func TestStoreKeepsTheContract(t *testing.T) {
	t.Parallel()
	pool := database(t)
	storetest.Run(t, waiting(func(t testing.TB) store.Store { return open(t, another(t, pool), Options{Schema: fresh()}) }))
}

// waiting is the harness of stores that New makes. Its cases mostly wait for the server's
// clock, so they run beside each other, and have longer leases than by default.
func waiting(open func(testing.TB) store.Store) storetest.Harness {
	return storetest.Harness{New: open, Damage: damage, Parallel: true, Unit: 400 * time.Millisecond}
}

// damage changes the row of id so that no version of the store could have written it.
func damage(t testing.TB, s store.Store, id store.ID) {
	t.Helper()
	pg := s.(*Store)
	execSQL(t, pg.Pool(), "UPDATE "+pg.n.records+" SET state = 77 WHERE id = $1", id[:])
}

// fresh returns a name that was never used.
func fresh() string { return stet.NewKey() }

// harness is that of transactions of pgx.
func harness(t *testing.T, o Options) storetest.TxHarness[pgx.Tx] {
	return harnessOn(t, database(t), o)
}

// harnessOn is harness in a database that nothing else uses.
func harnessOn(t *testing.T, pool *pgxpool.Pool, o Options) storetest.TxHarness[pgx.Tx] {
	execSQL(t, pool, "CREATE TABLE effects (name text)")
	return storetest.TxHarness[pgx.Tx]{
		Harness: waiting(func(t testing.TB) store.Store {
			o := o
			o.Schema = fresh()
			return open(t, another(t, pool), o)
		}),
		Write: func(ctx context.Context, tx pgx.Tx, name string) error {
			_, err := tx.Exec(ctx, "INSERT INTO effects VALUES ($1)", name)
			return err
		},
		Rows: func(t testing.TB, s store.TxStore[pgx.Tx], name string) (n int) {
			if err := s.(*Store).Pool().QueryRow(context.Background(), "SELECT count(*) FROM effects WHERE name = $1", name).Scan(&n); err != nil {
				t.Error(err)
			}
			return n
		},
		Begin: func(t testing.TB, s store.TxStore[pgx.Tx]) (pgx.Tx, func(bool) error) {
			tx, err := s.(*Store).Pool().Begin(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			return tx, func(commit bool) error {
				if commit {
					return tx.Commit(context.Background())
				}
				return tx.Rollback(context.Background())
			}
		},
	}
}

func TestTransactionsKeepTheContract(t *testing.T) {
	t.Parallel()
	storetest.RunTx(t, harness(t, Options{}))
}
