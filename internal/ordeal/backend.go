package crash

import (
	"context"
	"database/sql"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/store/postgres"
	"github.com/stet-go/stet/store/sqlite"
)

// backend is the store that a service runs on, with a ledger table beside its
// records that has no unique constraint.
type backend struct {
	store   stet.Store
	protect func(*stet.Engine, stethttp.Options) (*stethttp.Middleware, error) // in transactions
	charge  func(context.Context, Charge) error                                // in the request's transaction
	charges func(context.Context) ([]Charge, error)
	close   func() error
}

const (
	createLedger = `CREATE TABLE IF NOT EXISTS ledger (id TEXT, key TEXT, amount INTEGER)`
	selectLedger = `SELECT id, key, amount FROM ledger`
)

// open opens the store at url, or, if that is empty, the file in dir.
func open(ctx context.Context, dir, url string) (*backend, error) {
	if url != "" {
		return openPostgres(ctx, url)
	}
	return openSQLite(ctx, dir)
}

func openSQLite(ctx context.Context, dir string) (*backend, error) {
	store, err := sqlite.Open(ctx, dir+"/stet.db", sqlite.Options{})
	if err != nil {
		return nil, err
	}
	if _, err := store.DB().ExecContext(ctx, createLedger); err != nil {
		return nil, errors.Join(err, store.Close())
	}
	return &backend{
		store: store,
		close: store.Close,
		protect: func(e *stet.Engine, o stethttp.Options) (*stethttp.Middleware, error) {
			return stethttp.NewTx(e, store, o)
		},
		charge: func(ctx context.Context, c Charge) error {
			_, err := stethttp.Tx[*sql.Tx](ctx).ExecContext(ctx, `INSERT INTO ledger VALUES (?, ?, ?)`, c.ID, c.Key, c.Amount)
			return err
		},
		charges: func(ctx context.Context) (all []Charge, err error) {
			rows, err := store.DB().QueryContext(ctx, selectLedger)
			if err != nil {
				return nil, err
			}
			defer rows.Close()
			for rows.Next() {
				var c Charge
				if err := rows.Scan(&c.ID, &c.Key, &c.Amount); err != nil {
					return nil, err
				}
				all = append(all, c)
			}
			return all, rows.Err()
		},
	}, nil
}

func openPostgres(ctx context.Context, url string) (*backend, error) {
	store, err := postgres.Open(ctx, url, postgres.Options{})
	if err != nil {
		return nil, err
	}
	return &backend{
		store: store,
		close: store.Close,
		protect: func(e *stet.Engine, o stethttp.Options) (*stethttp.Middleware, error) {
			return stethttp.NewTx(e, store, o)
		},
		charge: func(ctx context.Context, c Charge) error {
			_, err := stethttp.Tx[pgx.Tx](ctx).Exec(ctx, `INSERT INTO ledger VALUES ($1, $2, $3)`, c.ID, c.Key, c.Amount)
			return err
		},
		charges: func(ctx context.Context) ([]Charge, error) {
			rows, err := store.Pool().Query(ctx, selectLedger)
			if err != nil {
				return nil, err
			}
			return pgx.CollectRows(rows, pgx.RowToStructByPos[Charge])
		},
	}, nil
}

// preparePostgres makes the tables, once, before any child.
func preparePostgres(ctx context.Context, url string) error {
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := postgres.Migrate(ctx, pool, postgres.Options{}); err != nil {
		return err
	}
	_, err = pool.Exec(ctx, createLedger)
	return err
}
