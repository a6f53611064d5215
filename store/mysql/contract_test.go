package mysql

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/storetest"
)

// harness makes stores whose clocks move together.
func harness(t testing.TB) storetest.Harness {
	t.Helper()
	var all []*Store
	return storetest.Harness{
		New: func(t testing.TB) store.Store {
			s := openStore(t, Options{})
			all = append(all, s)
			return s
		},
		Advance: func(_ testing.TB, d time.Duration) {
			for _, s := range all {
				s.advance(d)
			}
		},
		Damage: func(t testing.TB, s store.Store, id store.ID) {
			exec(t, s.(*Store).DB(), "UPDATE stet_records SET owner = 'short' WHERE id = ?", id[:])
		},
		Histories: 25,
	}
}

func TestStoreKeepsTheContract(t *testing.T) { storetest.Run(t, harness(t)) }

// txHarness is that of transactions of as, which makes a store of one.
func txHarness[S store.TxStore[*sql.Tx]](t testing.TB, as func(testing.TB, *Store) S) storetest.TxHarness[*sql.Tx] {
	h := harness(t)
	db := func(s store.Store) *sql.DB { return store.Base(s).(*Store).DB() }
	return storetest.TxHarness[*sql.Tx]{
		Harness: storetest.Harness{
			New: func(t testing.TB) store.Store {
				s := h.New(t).(*Store)
				exec(t, s.DB(), "CREATE TABLE effects (name VARCHAR(100)) ENGINE=InnoDB")
				return as(t, s)
			},
			Advance: h.Advance,
		},
		Write: func(ctx context.Context, tx *sql.Tx, name string) error {
			_, err := tx.ExecContext(ctx, "INSERT INTO effects VALUES (?)", name)
			return err
		},
		Rows: func(t testing.TB, s store.TxStore[*sql.Tx], name string) (n int) {
			if err := db(s).QueryRow("SELECT count(*) FROM effects WHERE name = ?", name).Scan(&n); err != nil {
				t.Error(err)
			}
			return n
		},
		Begin: func(t testing.TB, s store.TxStore[*sql.Tx]) (*sql.Tx, func(bool) error) {
			tx, err := db(s).Begin()
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
	}
}

func TestTransactionsKeepTheContract(t *testing.T) {
	storetest.RunTx(t, txHarness(t, func(_ testing.TB, s *Store) *Store { return s }))
}

// A service's own pool, without interpolated parameters, at the strictest level.
func TestTransactionsOfAnotherPoolKeepTheContract(t *testing.T) {
	storetest.RunTx(t, txHarness(t, func(t testing.TB, s *Store) *SQLStore[*sql.Tx] {
		db, err := sql.Open("mysql", s.dsn(t)+"?clientFoundRows=true")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = db.Close() })
		return OverSQL(s, func(ctx context.Context) (*sql.Tx, error) {
			return db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelSerializable})
		})
	}))
}

// dsn is the data source name of the store's database.
func (s *Store) dsn(t testing.TB) string {
	var name string
	if err := s.DB().QueryRow("SELECT DATABASE()").Scan(&name); err != nil {
		t.Fatal(err)
	}
	return rig.MariaDB(t).DSN(name)
}
