package orm

import (
	"context"
	"database/sql"

	"github.com/uptrace/bun"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store/postgres"
)

// Bun pays through bun.
func Bun(engine *stet.Engine, store *postgres.Store, db *bun.DB) Pay {
	te := within(engine, postgres.OverSQL(store, beginBun(db)))
	return func(ctx context.Context, op stet.Op, p Payment) (stet.Result[Payment], error) {
		return stet.DoTx(ctx, te, op, func(ctx context.Context, tx bunTx) (Payment, error) {
			row := &bunPayment{Account: p.Account, Cents: p.Cents}
			if _, err := tx.bun.NewInsert().Model(row).Exec(ctx); err != nil {
				return p, err
			}
			res, err := tx.bun.NewUpdate().Table("accounts").Set("balance = balance - ?", p.Cents).
				Where("name = ? AND balance >= ?", p.Account, p.Cents).Exec(ctx)
			p.ID = row.ID
			return p, took(res, err)
		})
	}
}

type bunPayment struct {
	bun.BaseModel `bun:"payments"`
	ID            int64 `bun:",pk,autoincrement"`
	Account       string
	Cents         int64
}

// bunTx is needed because a bun.Tx's own ExecContext and QueryRowContext put the
// arguments into the text where there is a question mark, and send none: stet's
// statements, which have $1, would arrive without theirs. Those of the *sql.Tx
// beneath send them. Commit and Rollback are bun's, for its query hooks.
type bunTx struct {
	*sql.Tx
	bun bun.Tx
}

func (tx bunTx) Commit() error   { return tx.bun.Commit() }
func (tx bunTx) Rollback() error { return tx.bun.Rollback() }

func beginBun(db *bun.DB) func(context.Context) (bunTx, error) {
	return func(ctx context.Context) (bunTx, error) {
		tx, err := db.BeginTx(ctx, nil)
		return bunTx{tx.Tx, tx}, err
	}
}
