package ordeal

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"strconv"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	redisclient "github.com/redis/go-redis/v9"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/store/postgres"
	"github.com/stet-go/stet/store/redis"
	"github.com/stet-go/stet/store/redis/goredis"
	"github.com/stet-go/stet/store/sqlite"
)

// The kinds of stores that are put to the ordeal.
const (
	SQLite   = "sqlite"
	Postgres = "postgres"
	Redis    = "redis"
)

// Place is where the records are.
type Place struct {
	Kind string // SQLite, Postgres or Redis
	Dir  string // of SQLite's file
	URL  string // of PostgreSQL's database
	Addr string // host:port of Redis
	Pool int    // connections for transactions, or to Redis; 0: the library's default
}

// backend is a store as a service uses it. The ledger of transactions is a table
// beside the records, without any unique constraint.
type backend struct {
	store   stet.Store
	protect func(*stet.Engine, stethttp.Options) (*stethttp.Middleware, error) // nil: no transactions
	charge  func(context.Context, Entry) error                                 // in the request's transaction
	entries func(context.Context) ([]Entry, error)
	close   func() error
}

const (
	createLedger = `CREATE TABLE IF NOT EXISTS ledger (id TEXT, scope TEXT, key TEXT, amount INTEGER, fence BIGINT, process INTEGER, at BIGINT)`
	selectLedger = `SELECT id, scope, key, amount, fence, process, at FROM ledger`
)

// open opens the store; with a history, its calls are recorded.
func (p Place) open(ctx context.Context, h *History) (*backend, error) {
	switch p.Kind {
	case SQLite:
		return p.openSQLite(ctx, h)
	case Postgres:
		return p.openPostgres(ctx, h)
	case Redis:
		return p.openRedis(ctx, h)
	}
	return nil, errNoStore(p.Kind)
}

func errNoStore(kind string) error {
	return fmt.Errorf("ordeal: there is no store %q; there are sqlite, postgres and redis", kind)
}

// prepare makes the tables, once, before any child.
func (p Place) prepare(ctx context.Context) error {
	if p.Kind != Postgres {
		return nil
	}
	pool, err := pgxpool.New(ctx, p.URL)
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

func recorded[Tx any](store stet.TxStore[Tx], h *History) stet.TxStore[Tx] {
	if h == nil {
		return store
	}
	return &txRecorder[Tx]{recorder{store, h}, store}
}

func (p Place) openSQLite(ctx context.Context, h *History) (*backend, error) {
	file, err := sqlite.Open(ctx, filepath.Join(p.Dir, "stet.db"), sqlite.Options{})
	if err != nil {
		return nil, err
	}
	if _, err := file.DB().ExecContext(ctx, createLedger); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	store := recorded[*sql.Tx](file, h)
	return &backend{
		store: store,
		close: file.Close,
		protect: func(e *stet.Engine, o stethttp.Options) (*stethttp.Middleware, error) {
			return stethttp.NewTx(e, store, o)
		},
		charge: func(ctx context.Context, e Entry) error {
			_, err := stethttp.Tx[*sql.Tx](ctx).ExecContext(ctx, `INSERT INTO ledger VALUES (?, ?, ?, ?, ?, ?, ?)`,
				e.ID, e.Scope, e.Key, e.Amount, e.Fence, e.Process, e.At)
			return err
		},
		entries: func(ctx context.Context) (all []Entry, err error) {
			rows, err := file.DB().QueryContext(ctx, selectLedger)
			if err != nil {
				return nil, err
			}
			defer rows.Close()
			for rows.Next() {
				var e Entry
				if err := rows.Scan(&e.ID, &e.Scope, &e.Key, &e.Amount, &e.Fence, &e.Process, &e.At); err != nil {
					return nil, err
				}
				all = append(all, e)
			}
			return all, rows.Err()
		},
	}, nil
}

func (p Place) openPostgres(ctx context.Context, h *History) (*backend, error) {
	at := p.URL
	if p.Pool > 0 {
		u, err := url.Parse(at)
		if err != nil {
			return nil, err
		}
		q := u.Query()
		q.Set("pool_max_conns", strconv.Itoa(p.Pool))
		u.RawQuery = q.Encode()
		at = u.String()
	}
	server, err := postgres.Open(ctx, at, postgres.Options{})
	if err != nil {
		return nil, err
	}
	store := recorded[pgx.Tx](server, h)
	return &backend{
		store: store,
		close: server.Close,
		protect: func(e *stet.Engine, o stethttp.Options) (*stethttp.Middleware, error) {
			return stethttp.NewTx(e, store, o)
		},
		charge: func(ctx context.Context, e Entry) error {
			_, err := stethttp.Tx[pgx.Tx](ctx).Exec(ctx, `INSERT INTO ledger VALUES ($1, $2, $3, $4, $5, $6, $7)`,
				e.ID, e.Scope, e.Key, e.Amount, e.Fence, e.Process, e.At)
			return err
		},
		entries: func(ctx context.Context) (all []Entry, err error) {
			rows, err := server.Pool().Query(ctx, selectLedger)
			if err != nil {
				return nil, err
			}
			return pgx.CollectRows(rows, func(row pgx.CollectableRow) (e Entry, err error) {
				err = row.Scan(&e.ID, &e.Scope, &e.Key, &e.Amount, &e.Fence, &e.Process, &e.At)
				return e, err
			})
		},
	}, nil
}

func (p Place) openRedis(ctx context.Context, h *History) (*backend, error) {
	client, err := goredis.Open(&redisclient.UniversalOptions{Addrs: []string{p.Addr}, PoolSize: p.Pool})
	if err != nil {
		return nil, err
	}
	server, err := redis.New(ctx, client, redis.Options{})
	if err != nil {
		return nil, errors.Join(err, client.Close())
	}
	b := &backend{store: server, close: func() error { return errors.Join(server.Close(), client.Close()) }}
	if h != nil {
		b.store = &recorder{server, h}
	}
	return b, nil
}
