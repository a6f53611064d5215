// Package orm shows how the business writes and stet's record become one
// PostgreSQL transaction with database/sql, sqlx, GORM, bun and ent: one file
// each. All do the same to these tables:
//
//	CREATE TABLE accounts (name text PRIMARY KEY, balance bigint NOT NULL);
//	CREATE TABLE payments (id bigserial PRIMARY KEY, account text NOT NULL, cents bigint NOT NULL);
//
// What each says to stet is how to begin a transaction (postgres.OverSQL), once,
// and then stet.DoTx for every operation. stethttp.NewTx takes the same store and
// gives an HTTP handler the same transaction.
package orm

import (
	"context"
	"database/sql"
	"errors"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store/postgres"
)

// Payment is a row of payments.
type Payment struct {
	ID      int64
	Account string
	Cents   int64 // in hundredths of the currency's unit
}

// Pay books p and takes it from the balance of its account, once for op. Retries
// get the payment that was booked. ErrOverdrawn rolls everything back, so that a
// retry tries again; stet.DoTx says which other errors there are.
type Pay func(ctx context.Context, op stet.Op, p Payment) (stet.Result[Payment], error)

// within returns the engine with transactions of a library. A store that is not the
// engine's is a mistake of the program.
func within[Tx postgres.SQLTx](engine *stet.Engine, store *postgres.SQLStore[Tx]) *stet.TxEngine[Tx] {
	te, err := stet.WithTx(engine, store)
	if err != nil {
		panic(err)
	}
	return te
}

// ErrOverdrawn says that the balance is too small. It is found out after the
// payment was inserted, which is then undone.
var ErrOverdrawn = errors.New("the balance is too small")

// took checks the UPDATE that takes a payment from its account.
func took(res sql.Result, err error) error {
	if err != nil {
		return err
	}
	if n, err := res.RowsAffected(); err != nil || n == 1 {
		return err
	}
	return ErrOverdrawn
}
