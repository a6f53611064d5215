package async

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	redisclient "github.com/redis/go-redis/v9"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/stetwork"
	"github.com/stet-go/stet/store/postgres"
	"github.com/stet-go/stet/store/redis"
	"github.com/stet-go/stet/store/redis/goredis"
	"github.com/stet-go/stet/store/sqlite"
)

// place is where everything is.
type place struct {
	Dir      string // of the ledger, and of SQLite's file
	Postgres string // URL
	Redis    string // address
	Broker   string // URL
}

// browsable is a store as the judge needs it.
type browsable interface {
	stet.WorkStore
	stet.Browser
}

// site is a store as a process uses it. Effects are rows beside the records, in a
// table without any unique constraint.
type site struct {
	store    browsable
	pool     *pgxpool.Pool // of PostgreSQL
	register func(*shop, *stetwork.Worker) error
	protect  func(*stet.Engine, stethttp.Options) (*stethttp.Middleware, error)
	effects  func(context.Context) ([]entry, error)
	orders   func(context.Context) (map[string]int, error)
	close    func() error
}

const (
	createEffects = `CREATE TABLE IF NOT EXISTS effects (op text, what text, id text, fence bigint, attempt bigint)`
	createOrders  = `CREATE TABLE IF NOT EXISTS orders (op text)`
	selectEffects = `SELECT op, what, id, fence, attempt FROM effects`
)

// prepare makes the tables, once, before any child.
func (p place) prepare(ctx context.Context, f flavour) error {
	if f.store != inPostgres {
		return nil
	}
	pool, err := pgxpool.New(ctx, p.Postgres)
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := postgres.Migrate(ctx, pool, postgres.Options{}); err != nil {
		return err
	}
	if f.queue == byRiver {
		migrator, err := rivermigrate.New(riverpgxv5.New(pool), nil)
		if err != nil {
			return err
		}
		if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
			return err
		}
	}
	_, err = pool.Exec(ctx, createEffects+";"+createOrders)
	return err
}

func (p place) open(ctx context.Context, f flavour) (*site, error) {
	switch f.store {
	case inSQLite:
		return p.openSQLite(ctx)
	case inPostgres:
		return p.openPostgres(ctx)
	case inRedis:
		return p.openRedis(ctx)
	}
	return nil, fmt.Errorf("there is no store %q", f.store)
}

func (p place) openSQLite(ctx context.Context) (*site, error) {
	file, err := sqlite.Open(ctx, filepath.Join(p.Dir, "stet.db"), sqlite.Options{})
	if err != nil {
		return nil, err
	}
	if _, err := file.DB().ExecContext(ctx, createEffects); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	insert := func(ctx context.Context, tx *sql.Tx, e entry) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO effects VALUES (?, ?, ?, ?, ?)`, e.Key, e.What, e.ID, e.Fence, e.Attempt)
		return err
	}
	return &site{
		store:    file,
		register: func(s *shop, w *stetwork.Worker) error { return register(s, w, file, insert) },
		close:    file.Close,
		effects: func(ctx context.Context) (all []entry, err error) {
			rows, err := file.DB().QueryContext(ctx, selectEffects)
			if err != nil {
				return nil, err
			}
			defer rows.Close()
			for rows.Next() {
				e := entry{Kind: effect}
				if err := rows.Scan(&e.Key, &e.What, &e.ID, &e.Fence, &e.Attempt); err != nil {
					return nil, err
				}
				all = append(all, e)
			}
			return all, rows.Err()
		},
	}, nil
}

func (p place) openPostgres(ctx context.Context) (*site, error) {
	store, err := postgres.Open(ctx, p.Postgres+"&pool_max_conns=24", postgres.Options{})
	if err != nil {
		return nil, err
	}
	insert := func(ctx context.Context, tx pgx.Tx, e entry) error {
		_, err := tx.Exec(ctx, `INSERT INTO effects VALUES ($1, $2, $3, $4, $5)`, e.Key, e.What, e.ID, e.Fence, e.Attempt)
		return err
	}
	return &site{
		store:    store,
		pool:     store.Pool(),
		register: func(s *shop, w *stetwork.Worker) error { return register(s, w, store, insert) },
		protect: func(e *stet.Engine, o stethttp.Options) (*stethttp.Middleware, error) {
			return stethttp.NewTx(e, store, o)
		},
		close: store.Close,
		orders: func(ctx context.Context) (map[string]int, error) {
			rows, err := store.Pool().Query(ctx, `SELECT op FROM orders`)
			if err != nil {
				return nil, err
			}
			all := make(map[string]int)
			var key string
			_, err = pgx.ForEachRow(rows, []any{&key}, func() error { all[key]++; return nil })
			return all, err
		},
		effects: func(ctx context.Context) (all []entry, err error) {
			rows, err := store.Pool().Query(ctx, selectEffects)
			if err != nil {
				return nil, err
			}
			return pgx.CollectRows(rows, func(row pgx.CollectableRow) (entry, error) {
				e := entry{Kind: effect}
				err := row.Scan(&e.Key, &e.What, &e.ID, &e.Fence, &e.Attempt)
				return e, err
			})
		},
	}, nil
}

func (p place) openRedis(ctx context.Context) (*site, error) {
	client, err := goredis.Open(&redisclient.UniversalOptions{Addrs: []string{p.Redis}})
	if err != nil {
		return nil, err
	}
	store, err := redis.New(ctx, client, redis.Options{})
	if err != nil {
		return nil, errors.Join(err, client.Close())
	}
	return &site{
		store:   store,
		close:   func() error { return errors.Join(store.Close(), client.Close()) },
		effects: func(context.Context) ([]entry, error) { return nil, nil },
	}, nil
}
