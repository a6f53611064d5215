package postgres

import (
	"context"
	"database/sql"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stet-go/stet/store"
)

// A record that was released, or settled long ago, is replaced by the transaction that
// runs the key next. If the sweep removes it in the meantime, no other caller has claimed the key.
func TestSweepDuringATransactionRollsNothingBack(t *testing.T) {
	s := ledger(t, Options{})
	db := stdlib.OpenDBFromPool(s.Pool())
	t.Cleanup(func() { _ = db.Close() })
	over := OverSQL(s, func(ctx context.Context) (*sql.Tx, error) { return db.BeginTx(ctx, nil) })
	forgotten := "UPDATE stet.records SET forget_at = now(), due_at = now() WHERE id = $1"
	sweep := func(id store.ID) {
		execSQL(t, s.Pool(), forgotten, id[:])
		if swept, err := s.Sweep(t.Context(), 100); err != nil || swept.Purged != 1 {
			t.Errorf("Sweep in the meantime: %+v, %v", swept, err)
		}
	}
	// claimed: and then another caller claims it.
	for _, released := range []bool{true, false} {
		for _, claimed := range []bool{false, true} {
			for _, driver := range []string{"pgx", "database/sql"} {
				name := fmt.Sprintf("released %v, claimed in the meantime %v, %s", released, claimed, driver)
				req := request(name)
				before := mustClaim(t, s, req)
				if released {
					if err := s.Release(t.Context(), before.Claim(), keep); err != nil {
						t.Fatal(err)
					}
				} else {
					mustSettle(t, s, before.Claim(), "old")
					execSQL(t, s.Pool(), forgotten, req.ID[:])
				}
				interfere := func() {
					sweep(req.ID)
					if claimed {
						mustClaim(t, s, request(name))
					}
				}
				charged := charges(t, s)
				req.Owner = store.NewOwner()
				var rec store.Record
				var err error
				if driver == "pgx" {
					rec, err = s.RunTx(t.Context(), req, keep, func(ctx context.Context, tx pgx.Tx, r store.Record) (store.Settlement, error) {
						interfere()
						return charge(ctx, tx, r)
					})
				} else {
					rec, err = over.RunTx(t.Context(), req, keep, func(ctx context.Context, tx *sql.Tx, r store.Record) (store.Settlement, error) {
						interfere()
						_, err := tx.ExecContext(ctx, "INSERT INTO charges VALUES ('charge')")
						return completed("charged"), err
					})
				}
				state, now := store.Completed, mustRead(t, s, req.ID)
				if claimed {
					state = store.Running
				}
				if err != nil || rec.State != state || now.State != state || (now.Owner == req.Owner) == claimed || (charges(t, s) > charged) == claimed {
					t.Errorf("%s: %+v, %v; the record is %+v", name, rec, err, now)
				}
			}
		}
	}
}
