package crashtest

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"

	"github.com/jackc/pgx/v5"

	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/postgres"
	"github.com/stet-go/stet/store/redis"
	"github.com/stet-go/stet/store/sqlite"
	"github.com/stet-go/stet/store/tier"
)

// tiered is a tier as a judge needs it. Redis has the abilities that the tier lacks.
type tiered struct {
	*tier.Store
	below
}

type below struct{ *redis.Store }

// startTierPostgres starts Redis and PostgreSQL.
func startTierPostgres(ctx context.Context, r *rig.Rig) (Place, Server, error) {
	p, behind, err := StartServer(ctx, r, Postgres)
	if err != nil {
		return p, nil, err
	}
	front, server, err := StartServer(ctx, r, Redis)
	p.Kind, p.Addr = TierPostgres, front.Addr
	return p, &both{Server: server, behind: behind}, err
}

// both are a Redis, to which the network leads, and the PostgreSQL behind it. They are killed by turns.
type both struct {
	Server
	behind Server
	kills  int
}

func (b *both) killed() Server {
	if b.kills%2 == 1 {
		return b.behind
	}
	return b.Server
}

func (b *both) Kill() error {
	b.kills++
	return b.killed().Kill()
}

func (b *both) Start(ctx context.Context) error { return b.killed().Start(ctx) }

func (b *both) Close() error { return errors.Join(b.Server.Close(), b.behind.Close()) }

// openTier opens Redis in front of an SQLite file or of PostgreSQL.
func (p Place) openTier(ctx context.Context, h *History) (*Site, error) {
	s, err := p.openRedis(ctx, nil)
	if err != nil {
		return nil, err
	}
	if p.Kind == TierPostgres {
		server, err := postgres.Open(ctx, p.URL, postgres.Options{})
		return before[pgx.Tx](s, server, err, h)
	}
	file, err := sqlite.Open(ctx, filepath.Join(p.Dir, "stet.db"), sqlite.Options{})
	return before[*sql.Tx](s, file, err, h)
}

// durable is a SQL store.
type durable[Tx any] interface {
	store.TxStore[Tx]
	Close() error
}

// before puts the Redis of a site in front of a SQL store, if that was opened.
func before[Tx any, S durable[Tx]](s *Site, back S, err error, h *History) (*Site, error) {
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	closeRedis := s.Close
	s.Close = func() error { return errors.Join(closeRedis(), back.Close()) }
	claims := s.Store.(*redis.Store)
	two, err := tier.New(claims, store.TxStore[Tx](back), tier.Options{})
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	s.Store, s.Recorded = tiered{two, below{claims}}, two
	if h != nil {
		s.Recorded = Record(two, h)
	}
	return s, nil
}
