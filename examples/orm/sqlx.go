package orm

import (
	"context"

	"github.com/jmoiron/sqlx"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store/postgres"
)

// SQLX pays through sqlx. *sqlx.Tx is a *sql.Tx with more methods, and fits without
// is.
func SQLX(engine *stet.Engine, store *postgres.Store, db *sqlx.DB) Pay {
	te := within(engine, postgres.OverSQL(store, beginSQLX(db)))
	return func(ctx context.Context, op stet.Op, p Payment) (stet.Result[Payment], error) {
		return stet.DoTx(ctx, te, op, func(ctx context.Context, tx *sqlx.Tx) (Payment, error) {
			err := tx.GetContext(ctx, &p, `INSERT INTO payments (account, cents) VALUES ($1, $2) RETURNING *`, p.Account, p.Cents)
			if err != nil {
				return p, err
			}
			res, err := tx.NamedExecContext(ctx, `UPDATE accounts SET balance = balance - :cents WHERE name = :account AND balance >= :cents`, p)
			return p, took(res, err)
		})
	}
}

func beginSQLX(db *sqlx.DB) func(context.Context) (*sqlx.Tx, error) {
	return func(ctx context.Context) (*sqlx.Tx, error) { return db.BeginTxx(ctx, nil) }
}
