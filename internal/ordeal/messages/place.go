package messages

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"
	redisclient "github.com/redis/go-redis/v9"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store/postgres"
	"github.com/stet-go/stet/store/redis"
	"github.com/stet-go/stet/store/redis/goredis"
)

// The stores.
const (
	inPostgres = "postgres" // transactional
	inRedis    = "redis"    // under leases, with the effect in PostgreSQL
)

// place is where everything is.
type place struct {
	Store    string
	Postgres string // URL; the ledger's too
	Redis    string // address
}

// site is a place as a process uses it.
type site struct {
	store stet.WorkStore
	tx    *postgres.Store // nil: under leases
	pool  *pgxpool.Pool   // of the ledger
	close func() error
}

// open connects, with that many connections to PostgreSQL at most.
func (p place) open(ctx context.Context, conns int) (*site, error) {
	url := fmt.Sprintf("%s&pool_max_conns=%d", p.Postgres, conns)
	if p.Store == inPostgres {
		store, err := postgres.Open(ctx, url, postgres.Options{})
		if err != nil {
			return nil, err
		}
		return &site{store: store, tx: store, pool: store.Pool(), close: store.Close}, nil
	}
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return nil, err
	}
	client, err := goredis.Open(&redisclient.UniversalOptions{Addrs: []string{p.Redis}})
	if err != nil {
		pool.Close()
		return nil, err
	}
	store, err := redis.New(ctx, client, redis.Options{})
	if err != nil {
		pool.Close()
		return nil, errors.Join(err, client.Close())
	}
	return &site{store: store, pool: pool, close: func() error {
		defer pool.Close()
		return errors.Join(store.Close(), client.Close())
	}}, nil
}
