package orm

import (
	"context"
	"database/sql"

	"entgo.io/ent/dialect"
	entsql "entgo.io/ent/dialect/sql"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store/postgres"
)

// Ent pays through ent's driver. With a generated client the function begins
//
//	client := ent.NewClient(ent.Driver(entOver(tx)))
//
// and uses nothing but that client.
func Ent(engine *stet.Engine, store *postgres.Store, db *sql.DB) Pay {
	te := within(engine, postgres.OverSQL(store, beginSQL(db)))
	return func(ctx context.Context, op stet.Op, p Payment) (stet.Result[Payment], error) {
		return stet.DoTx(ctx, te, op, func(ctx context.Context, tx *sql.Tx) (Payment, error) {
			driver, pg := entOver(tx), entsql.Dialect(dialect.Postgres)
			insert, args := pg.Insert("payments").Columns("account", "cents").Values(p.Account, p.Cents).Returning("id").Query()
			var rows entsql.Rows
			if err := driver.Query(ctx, insert, args, &rows); err != nil {
				return p, err
			}
			if err := entsql.ScanOne(&rows, &p.ID); err != nil {
				return p, err
			}
			update, args := pg.Update("accounts").Add("balance", -p.Cents).
				Where(entsql.And(entsql.EQ("name", p.Account), entsql.GTE("balance", p.Cents))).Query()
			var res sql.Result
			err := driver.Exec(ctx, update, args, &res)
			return p, took(res, err)
		})
	}
}

// entOver returns a driver of ent's over tx.
func entOver(tx *sql.Tx) dialect.Driver {
	return entDriver{entsql.NewDriver(dialect.Postgres, entsql.Conn{ExecQuerier: tx})}
}

// entDriver is needed because a generated client begins a transaction of its own
// for some writes, which entsql.Driver can do over a *sql.DB only (it panics over
// a *sql.Tx). Here such a write joins tx, and its commit is left to stet.
type entDriver struct{ dialect.Driver }

func (d entDriver) Tx(context.Context) (dialect.Tx, error) { return dialect.NopTx(d), nil }

// Close does nothing: what there is to close is tx, which stet ends.
func (entDriver) Close() error { return nil }
