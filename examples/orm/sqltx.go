package orm

import (
	"context"
	"database/sql"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store/postgres"
)

// SQL pays through database/sql.
func SQL(engine *stet.Engine, store *postgres.Store, db *sql.DB) Pay {
	te := within(engine, postgres.OverSQL(store, beginSQL(db)))
	return func(ctx context.Context, op stet.Op, p Payment) (stet.Result[Payment], error) {
		return stet.DoTx(ctx, te, op, func(ctx context.Context, tx *sql.Tx) (Payment, error) {
			err := tx.QueryRowContext(ctx, `INSERT INTO payments (account, cents) VALUES ($1, $2) RETURNING id`, p.Account, p.Cents).Scan(&p.ID)
			if err != nil {
				return p, err
			}
			res, err := tx.ExecContext(ctx, `UPDATE accounts SET balance = balance - $1 WHERE name = $2 AND balance >= $1`, p.Cents, p.Account)
			return p, took(res, err)
		})
	}
}

func beginSQL(db *sql.DB) func(context.Context) (*sql.Tx, error) {
	return func(ctx context.Context) (*sql.Tx, error) { return db.BeginTx(ctx, nil) }
}
