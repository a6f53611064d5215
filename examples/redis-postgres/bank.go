package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/stet-go/stet"
)

// schema is the business's own. Redis may lose acknowledged writes, so the
// database that holds the effect has the last word, in one of two ways.
const schema = `
-- The operation is a unique column: a second charge fails.
CREATE TABLE IF NOT EXISTS deposits (operation bytea PRIMARY KEY, account text NOT NULL, cents bigint NOT NULL, balance bigint NOT NULL);
CREATE TABLE IF NOT EXISTS accounts (id text PRIMARY KEY, balance bigint NOT NULL);
-- The row remembers the newest fence that wrote it: an older one changes nothing.
CREATE TABLE IF NOT EXISTS addresses (account text PRIMARY KEY, address text NOT NULL, fence bigint NOT NULL);`

// bank claims in Redis, and does its business in PostgreSQL.
type bank struct {
	engine *stet.Engine
	db     *pgxpool.Pool
}

// deposit adds to an account and returns its balance. Retries with the same key
// get the same balance; even if Redis has forgotten the operation, PostgreSQL has
// not.
func (b bank) deposit(ctx context.Context, account, key string, cents int64) (stet.Result[int64], error) {
	op := stet.Op{Scope: account, Key: key, Fingerprint: stet.NewFingerprint([]byte("deposit"), []byte(strconv.FormatInt(cents, 10)))}
	id := b.engine.ID(op.Scope, op.Key)
	return stet.Do(ctx, b.engine, op, func(ctx context.Context) (balance int64, err error) {
		err = pgx.BeginFunc(ctx, b.db, func(tx pgx.Tx) error {
			// The row first: the second request waits here for the first.
			tag, err := tx.Exec(ctx, "INSERT INTO deposits VALUES ($1, $2, $3, 0) ON CONFLICT DO NOTHING", id[:], account, cents)
			if err != nil {
				return err
			}
			if tag.RowsAffected() == 0 {
				return tx.QueryRow(ctx, "SELECT balance FROM deposits WHERE operation = $1", id[:]).Scan(&balance)
			}
			err = tx.QueryRow(ctx, `INSERT INTO accounts VALUES ($1, $2)
				ON CONFLICT (id) DO UPDATE SET balance = accounts.balance + excluded.balance RETURNING balance`, account, cents).Scan(&balance)
			if err != nil {
				return err
			}
			_, err = tx.Exec(ctx, "UPDATE deposits SET balance = $2 WHERE operation = $1", id[:], balance)
			return err
		})
		return balance, err
	})
}

var errStale = errors.New("a newer claim has written this row")

// move writes an account's address, unless a newer claim has done so: fence is
// that of the run. A run that was thought dead, and comes back to life after its
// lease was taken over, changes nothing.
func (b bank) move(ctx context.Context, account, address string, fence int64) error {
	tag, err := b.db.Exec(ctx, `INSERT INTO addresses VALUES ($1, $2, $3)
		ON CONFLICT (account) DO UPDATE SET address = excluded.address, fence = excluded.fence WHERE addresses.fence < excluded.fence`,
		account, address, fence)
	if err == nil && tag.RowsAffected() == 0 {
		err = fmt.Errorf("address of %s: %w", account, errStale)
	}
	return err
}
