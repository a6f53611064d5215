package crashtest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	redisclient "github.com/redis/go-redis/v9"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/mysql"
	"github.com/stet-go/stet/store/postgres"
	"github.com/stet-go/stet/store/redis"
	"github.com/stet-go/stet/store/redis/goredis"
	"github.com/stet-go/stet/store/sqlite"
	"github.com/stet-go/stet/store/zookeeper"
)

// The kinds of stores.
const (
	SQLite    = "sqlite"
	Postgres  = "postgres"
	MySQL     = "mysql" // MariaDB
	Redis     = "redis"
	ZooKeeper = "zookeeper" // without accepted operations and messages
	Tier      = "tier"      // Redis in front of SQLite

	TierPostgres = "tier-postgres" // Redis in front of PostgreSQL
)

// Kinds are all kinds of stores.
var Kinds = []string{SQLite, Postgres, MySQL, Redis, ZooKeeper, Tier, TierPostgres}

// Place is where the records are.
type Place struct {
	Kind string // one of Kinds
	Dir  string // of SQLite's file, of the ledger and of histories
	URL  string // of PostgreSQL's or MariaDB's database
	Addr string // host:port of Redis; of ZooKeeper's servers, with commas
	Pool int    // connections for transactions, or to Redis; 0: the library's default
}

// Transactions reports whether a payment and its record can be one transaction.
func (p Place) Transactions() bool { return p.Kind == SQLite || p.Kind == Postgres || p.Kind == MySQL }

// StartServer starts the server that a kind of store needs, on r; nil if it needs
// none.
func StartServer(ctx context.Context, r *rig.Rig, kind string) (Place, Server, error) {
	p := Place{Kind: kind}
	switch kind {
	case Postgres:
		server, err := r.StartPostgres(ctx, rig.PostgresOptions{})
		if err != nil {
			return p, nil, err
		}
		name, err := server.CreateDatabase(ctx)
		p.URL = server.URL(name)
		return p, server, err
	case Redis, Tier:
		server, err := r.StartRedis(ctx, rig.RedisOptions{Settings: map[string]string{"appendonly": "yes", "appendfsync": "always"}})
		if err != nil {
			return p, nil, err
		}
		p.Addr = server.Addr()
		return p, server, nil
	case TierPostgres:
		return startTierPostgres(ctx, r)
	case ZooKeeper:
		z, err := r.StartZooKeeper(ctx, 3)
		if err != nil {
			return p, nil, err
		}
		p.Addr = strings.Join(z.Addrs(), ",")
		return p, ensemble{z}, nil
	case MySQL:
		return startMySQL(ctx, r)
	case SQLite:
		return p, nil, nil
	}
	return p, nil, errNoStore(kind)
}

// ensemble is ZooKeeper's servers, of which the leader is killed. The network is the way to the first.
type ensemble struct{ *rig.ZooKeeper }

func (e ensemble) Addr() string { return e.Servers[0].Addr() }

func (e ensemble) Kill() error {
	leader, err := e.Leader(context.Background())
	if err != nil {
		return err
	}
	return leader.Kill()
}

func (e ensemble) Close() (err error) {
	for _, s := range e.Servers {
		err = errors.Join(err, s.Close())
	}
	return err
}

func errNoStore(kind string) error {
	return fmt.Errorf("crashtest: there is no store %q; there are %s", kind, strings.Join(Kinds, ", "))
}

// Store is a store as a judge needs it.
type Store interface {
	store.Store
	store.Browser
}

// Site is a place as a process uses it. Beside the records of a store with
// transactions is a table of effects, without any unique constraint.
type Site struct {
	Store    Store
	SQLite   *sqlite.Store                                                      // or nil
	Postgres *postgres.Store                                                    // or nil
	MySQL    *mysql.Store                                                       // or nil
	Recorded store.Store                                                        // Store, with its calls in the history, if there is one
	Protect  func(*stet.Engine, stethttp.Options) (*stethttp.Middleware, error) // in transactions of Recorded; nil: it has none
	Have     func(context.Context, Effect) error                                // in the request's transaction
	Effects  func(context.Context) ([]Effect, error)                            // nil: there is no table
	Close    func() error
}

const (
	createEffects = `CREATE TABLE IF NOT EXISTS effects (id TEXT, scope TEXT, key TEXT, amount INTEGER, part TEXT, fence BIGINT, attempt INTEGER, process INTEGER, at BIGINT, emits BOOLEAN)`
	insertEffect  = `INSERT INTO effects VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)`
	selectEffects = `SELECT id, scope, key, amount, part, fence, attempt, process, at, emits FROM effects`
)

func (e *Effect) values() []any {
	return []any{e.ID, e.Scope, e.Key, e.Amount, e.Part, e.Fence, e.Attempt, e.Process, e.At, e.Emits}
}

func (e *Effect) scan(row interface{ Scan(...any) error }) error {
	return row.Scan(&e.ID, &e.Scope, &e.Key, &e.Amount, &e.Part, &e.Fence, &e.Attempt, &e.Process, &e.At, &e.Emits)
}

// InSQLite has an effect in a transaction.
func InSQLite(ctx context.Context, tx *sql.Tx, e Effect) error {
	_, err := tx.ExecContext(ctx, insertEffect, e.values()...)
	return err
}

// InPostgres has an effect in a transaction.
func InPostgres(ctx context.Context, tx pgx.Tx, e Effect) error {
	_, err := tx.Exec(ctx, insertEffect, e.values()...)
	return err
}

// Prepare makes the tables, once, before any child, and more in PostgreSQL.
func (p Place) Prepare(ctx context.Context, more ...string) error {
	switch p.Kind {
	case Postgres, TierPostgres:
		return p.preparePostgres(ctx, more)
	case MySQL:
		return p.prepareMySQL(ctx)
	}
	return nil
}

func (p Place) preparePostgres(ctx context.Context, more []string) error {
	pool, err := pgxpool.New(ctx, p.URL)
	if err != nil {
		return err
	}
	defer pool.Close()
	err = postgres.Migrate(ctx, pool, postgres.Options{})
	for _, statement := range append(more, createEffects) {
		if err == nil {
			_, err = pool.Exec(ctx, statement)
		}
	}
	return err
}

// Open opens the store; with a history, calls of Recorded are in it.
func (p Place) Open(ctx context.Context, h *History) (*Site, error) {
	switch p.Kind {
	case SQLite:
		return p.openSQLite(ctx, h)
	case Postgres:
		return p.openPostgres(ctx, h)
	case Redis:
		return p.openRedis(ctx, h)
	case ZooKeeper:
		servers, err := zookeeper.Open(ctx, strings.Split(p.Addr, ","), zookeeper.Options{})
		if err != nil {
			return nil, err
		}
		return withoutTx(&Site{Store: servers, Close: servers.Close}, h), nil
	case Tier, TierPostgres:
		return p.openTier(ctx, h)
	case MySQL:
		return p.openMySQL(ctx, h)
	}
	return nil, errNoStore(p.Kind)
}

// inTx fills in what a store with transactions can.
func inTx[Tx any](s *Site, store store.TxStore[Tx], h *History, insert func(context.Context, Tx, Effect) error) *Site {
	recorded := Recorded(store, h)
	s.Recorded = recorded
	s.Protect = func(e *stet.Engine, o stethttp.Options) (*stethttp.Middleware, error) {
		te, err := stet.WithTx(e, recorded)
		if err != nil {
			return nil, err
		}
		m, err := stethttp.NewTx(te, o)
		if err != nil {
			return nil, err
		}
		return m.Middleware, nil
	}
	s.Have = func(ctx context.Context, e Effect) error { return insert(ctx, stethttp.Tx[Tx](ctx), e) }
	return s
}

func (p Place) openSQLite(ctx context.Context, h *History) (*Site, error) {
	file, err := sqlite.Open(ctx, filepath.Join(p.Dir, "stet.db"), sqlite.Options{})
	if err != nil {
		return nil, err
	}
	if _, err := file.DB().ExecContext(ctx, createEffects); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	effects := func(ctx context.Context) ([]Effect, error) { return effectsOf(ctx, file.DB(), selectEffects) }
	return inTx(&Site{Store: file, SQLite: file, Effects: effects, Close: file.Close}, file, h, InSQLite), nil
}

func (p Place) openPostgres(ctx context.Context, h *History) (*Site, error) {
	at, err := url.Parse(p.URL)
	if err != nil {
		return nil, err
	}
	if p.Pool > 0 {
		q := at.Query()
		q.Set("pool_max_conns", strconv.Itoa(p.Pool))
		at.RawQuery = q.Encode()
	}
	server, err := postgres.Open(ctx, at.String(), postgres.Options{})
	if err != nil {
		return nil, err
	}
	effects := func(ctx context.Context) ([]Effect, error) {
		rows, err := server.Pool().Query(ctx, selectEffects)
		if err != nil {
			return nil, err
		}
		return pgx.CollectRows(rows, func(row pgx.CollectableRow) (e Effect, err error) {
			err = e.scan(row)
			return e, err
		})
	}
	return inTx(&Site{Store: server, Postgres: server, Effects: effects, Close: server.Close}, server, h, InPostgres), nil
}

func (p Place) openRedis(ctx context.Context, h *History) (*Site, error) {
	client, err := goredis.Open(&redisclient.UniversalOptions{Addrs: []string{p.Addr}, PoolSize: p.Pool})
	if err != nil {
		return nil, err
	}
	server, err := redis.New(ctx, client, redis.Options{})
	if err != nil {
		return nil, errors.Join(err, client.Close())
	}
	return withoutTx(&Site{Store: server, Close: func() error { return errors.Join(server.Close(), client.Close()) }}, h), nil
}

// withoutTx fills in the rest of a store without transactions.
func withoutTx(s *Site, h *History) *Site {
	s.Recorded = s.Store
	if h != nil {
		s.Recorded = Record(s.Store, h)
	}
	return s
}
