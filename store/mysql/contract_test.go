package mysql

import (
	"context"
	"database/sql"
	"testing"
	"time"

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

func TestTransactionsKeepTheContract(t *testing.T) {
	h := harness(t)
	h.Damage = nil
	storetest.RunTx(t, storetest.TxHarness[*sql.Tx]{
		Harness: storetest.Harness{
			New: func(t testing.TB) store.Store {
				s := h.New(t)
				exec(t, s.(*Store).DB(), "CREATE TABLE effects (name VARCHAR(100)) ENGINE=InnoDB")
				return s
			},
			Advance: h.Advance,
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
	})
}
