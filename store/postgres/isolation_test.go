package postgres

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stet-go/stet/store"
)

// levels are the isolation levels, each asked for by Options and by the database.
func levels(t *testing.T, claim func(t *testing.T, s *Store, asked bool, level pgx.TxIsoLevel)) {
	for _, level := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable} {
		for _, asked := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, by Options %v", level, asked), func(t *testing.T) {
				url := database(t).Config().ConnString()
				o := Options{}
				if asked {
					o.TxOptions.IsoLevel = level
				} else {
					execSQL(t, connect(t, url), fmt.Sprintf(`DO $$ BEGIN EXECUTE format('ALTER DATABASE %%I SET default_transaction_isolation = %%L', current_database(), '%s'); END $$`, level))
				}
				s := open(t, connect(t, url), o)
				execSQL(t, s.Pool(), "CREATE TABLE charges (name text)")
				claim(t, s, asked, level)
			})
		}
	}
}

// A heartbeat writes to the record while the transaction runs that will settle it.
func TestInTxCommitsPastAHeartbeatOrRefuses(t *testing.T) {
	t.Parallel()
	levels(t, func(t *testing.T, s *Store, asked bool, level pgx.TxIsoLevel) {
		c := mustClaim(t, s, request("k")).Claim()
		called := false
		err := s.InTx(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
			called = true
			if _, err := tx.Exec(ctx, "INSERT INTO charges VALUES ($1)", "charge"); err != nil {
				return err
			}
			if lost, err := s.Extend(ctx, []store.Claim{c}, time.Minute); err != nil || len(lost) > 0 {
				t.Errorf("Extend: %v, %v", lost, err)
			}
			return s.SettleTx(ctx, tx, c, completed("x"), keep)
		})
		refused := asked && level != pgx.ReadCommitted
		if refused && (!errors.Is(err, store.ErrInvalid) || called) || !refused && err != nil {
			t.Errorf("InTx: %v; the function was called: %v", err, called)
		}
		if rec := mustRead(t, s, c.ID); (rec.State == store.Completed) == refused || (charges(t, s) == 1) == refused {
			t.Errorf("%+v, %d charges", rec, charges(t, s))
		}
	})
}

func TestTransactionsAndLeasesWorkAtEveryLevel(t *testing.T) {
	t.Parallel()
	levels(t, func(t *testing.T, s *Store, _ bool, level pgx.TxIsoLevel) {
		for range 2 {
			rec, err := s.RunTx(t.Context(), request("k"), keep, func(ctx context.Context, tx pgx.Tx, rec store.Record) (store.Settlement, error) {
				var is string
				if err := tx.QueryRow(ctx, "SELECT current_setting('transaction_isolation')").Scan(&is); err != nil || is != string(level) {
					t.Errorf("the transaction is %s, %v", is, err)
				}
				return charge(ctx, tx, rec)
			})
			if err != nil || string(rec.Result.Body) != "charged" || charges(t, s) != 1 {
				t.Errorf("RunTx: %+v, %v, %d charges", rec, err, charges(t, s))
			}
		}
		mustSettle(t, s, mustClaim(t, s, request("lease")).Claim(), "x")
	})
}
