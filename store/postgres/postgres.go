// Package postgres is the store for PostgreSQL 13 and later, through pgx. It
// keeps every promise of package stet, on one primary with fsync and
// synchronous_commit on.
//
// With [stet.DoTx] the business writes and the record are one transaction: a
// round trip to enter (BEGIN, a try for the key's advisory lock, the record), after which a
// replay is done; the business statements; and a round trip to leave (the record,
// COMMIT). A crash leaves nothing. In lease mode
// claims and settles are one statement each, and concurrent ones share
// statements: what gathers while a batch is in flight goes out as the next.
//
// The store's clock is the server's. Apply the schema with [Migrate] first.
package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stet-go/stet/store"
	"golang.org/x/sync/semaphore"
)

// Limits.
const (
	maxQueue      = 1 << 15 // claims, settles and reads that wait for a connection, each
	maxBatch      = 256     // calls in one statement
	maxBatchBytes = 8 << 20 // of results in one statement, unless it is one
	batchTimeout  = 15 * time.Second

	statementCache = 128 // statements on a connection of the store's own
)

// Options configure a Store. The zero value is usable.
type Options struct {
	// Schema is the schema of the tables. Default "stet". Any name that
	// PostgreSQL takes will do; it is quoted.
	Schema string
	// Table is the name of the table of records, and the beginning of the
	// others' and, unless it is the default, of the functions'. At most 51 bytes. Default "records".
	Table string
	// PgBouncer says that connections are shared between transactions, as
	// PgBouncer does in transaction mode: then nothing is prepared, nothing
	// is kept in a session, and waiters poll instead of listening. The pool
	// that is given to New must not prepare statements either.
	PgBouncer bool
	// Writers is how many statements with claims, and how many with settles,
	// are in flight at a time, and Readers how many with reads, each on a
	// connection of the store's own. Default 2 and 2.
	Writers, Readers int
	// MayLoseCommits accepts a server that acknowledges a commit before it is on
	// disk: one with fsync or synchronous_commit off. Where such a server or its
	// machine crashes, outcomes that were returned already are lost, and those
	// operations run again. Default: New refuses it.
	MayLoseCommits bool
	// TxOptions are those of transactions. Default: the server's, but for InTx, which
	// works at READ COMMITTED and nothing above it.
	TxOptions pgx.TxOptions
}

// Store is a store.TxStore, store.Watcher, store.Sweeper and store.Browser in
// PostgreSQL. It is safe for concurrent use.
type Store struct {
	o   Options
	n   names
	sql statements
	connections
	batches
	limits
	lifetime

	locked     lockedKeys
	listener   *listener
	dueFrom    atomic.Pointer[string] // the name with which the next Due of all names begins; nil: the first
	durability durability
	looked     func() // for tests: a heartbeat has skipped locked rows
}

// connections are the pools of a store.
type connections struct {
	pool      *pgxpool.Pool // the service's, for RunTx
	ours      bool          // Close closes pool
	own       *pgxpool.Pool // the store's; its size is the sum of the store's limits
	rollbacks rollbacks
}

// batches are the calls that share statements.
type batches struct {
	asks        batcher[write] // claims and acceptances
	ends        batcher[write] // writes that follow on those, and wait for no row
	reads       batcher[read]
	confirms    batcher[struct{}] // see confirm
	late        atomic.Int64      // writes whose callers have left
	standbyWait standbyWait
	replay      replayShare // of claims and acceptances
	txReplay    replayShare // of transactions
}

// limits bound the connections and locks of other calls; see connlimits.go.
type limits struct {
	slow, works, lockedRows, commits, beat, sweeps limit

	groups        *semaphore.Weighted // of keys that groups have locked
	groupKeys     int64               // the size of groups
	commitTimeout time.Duration       // of a commit, and of reading its result
}

// lifetime ends the store's goroutines.
type lifetime struct {
	closed     atomic.Bool
	background context.Context // ends with the store
	cancel     context.CancelFunc
}

var (
	_ store.TxStore[pgx.Tx] = (*Store)(nil)
	_ store.Sweeper         = (*Store)(nil)
	_ store.Watcher         = (*Store)(nil)
	_ store.OutboxStore     = (*Store)(nil)
)

// Open connects to the server at url, which may be a URI or a keyword/value
// string of libpq, and opens the store there. Pool returns the pool that it
// makes for transactions; the url's pool_max_conns sets its size. The files of sslrootcert,
// sslcert and sslkey are read for each new connection, so that they can be renewed.
func Open(ctx context.Context, url string, o Options) (*Store, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("postgres: %w", err)
	}
	if o.PgBouncer && prepares(config) {
		config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
	}
	if config.ConnConfig.TLSConfig != nil {
		config.BeforeConnect = func(_ context.Context, c *pgx.ConnConfig) error {
			now, err := pgx.ParseConfig(url)
			if err == nil {
				c.TLSConfig, c.Fallbacks = now.TLSConfig, now.Fallbacks
			}
			return err
		}
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("postgres: %w", err)
	}
	s, err := New(ctx, pool, o)
	if err != nil {
		pool.Close()
		return nil, err
	}
	s.ours = true
	return s, nil
}

// prepares reports whether a pool's connections keep prepared statements.
func prepares(c *pgxpool.Config) bool {
	return c.ConnConfig.DefaultQueryExecMode == pgx.QueryExecModeCacheStatement
}

// New opens the store on the server of pool, from which RunTx takes its connections. The store
// opens its own connections for everything else, with the pool's configuration: up to 2 ×
// Writers + Readers + 14, 8 more while commits wait for a standby, and every 20 seconds one
// for a moment that checks whether the server still writes commits to disk. An exhausted pool
// therefore cannot stop lease renewals. Close the store before the pool, and after the engine.
// Of the callbacks in the pool's configuration, the store calls only those for making a connection:
// BeforeConnect, ValidateConnect, and the ones that dial, read or return a password.
//
// New refuses a missing or newer schema, a read replica, and a server with fsync or
// synchronous_commit off (see Options.MayLoseCommits). If either is switched off later, claims
// are refused within 20 seconds, until it is on again. Operations with a record still get
// their answer. Except in RunTx, that needs a connection that is already open: new ones are
// refused. Settings that a service changes in its own session or transaction are not read.
// Behind PgBouncer, the settings are those of the assigned server connection: a connection
// that was opened before a change of a role's or a database's settings does not show it.
func New(ctx context.Context, pool *pgxpool.Pool, o Options) (*Store, error) {
	if pool == nil {
		return nil, errors.New("postgres: New needs a pool; Open makes one")
	}
	if o.Writers < 0 || o.Readers < 0 {
		return nil, fmt.Errorf("postgres: Options.Writers (%d) and Readers (%d) must not be negative", o.Writers, o.Readers)
	}
	n, err := newNames(o)
	if err != nil {
		return nil, err
	}
	config := pool.Config()
	if o.PgBouncer && prepares(config) {
		return nil, errors.New("postgres: with Options.PgBouncer the pool must not prepare statements: set ConnConfig.DefaultQueryExecMode to pgx.QueryExecModeCacheDescribe")
	}
	o.Writers, o.Readers = cmp.Or(o.Writers, 2), cmp.Or(o.Readers, 2)
	s := &Store{o: o, n: n, sql: newStatements(n)}
	s.pool, s.commitTimeout = pool, 10*time.Second
	s.replay.over, s.replay.above, s.txReplay.over, s.txReplay.above = 4, 500, 32, 875
	if s.own, err = pgxpool.NewWithConfig(ctx, s.ownConfig(config)); err != nil {
		return nil, fmt.Errorf("postgres: %w", err)
	}
	if err := n.check(ctx, s.own); err != nil {
		s.own.Close()
		return nil, explain("open", err)
	}
	if err := s.own.QueryRow(ctx, sqlLockTable).Scan(&s.groupKeys); err != nil {
		s.own.Close()
		return nil, explain("open", err)
	}
	s.groupKeys = max(1, s.groupKeys/groupShare)
	s.groups = semaphore.NewWeighted(s.groupKeys)
	background, cancel := context.WithCancel(context.WithoutCancel(ctx))
	s.background, s.cancel = background, cancel
	for _, b := range []*batcher[write]{&s.asks, &s.ends} {
		*b = batcher[write]{run: s.runWrites, limit: maxQueue, most: maxBatch, bytes: maxBatchBytes, size: (*write).size, free: o.Writers, patience: batchTimeout, ctx: background}
	}
	s.reads = batcher[read]{run: s.runReads, limit: maxQueue, most: maxBatch, bytes: maxBatchBytes, size: func(*read) int { return 0 }, free: o.Readers, patience: batchTimeout, ctx: background}
	s.confirms = batcher[struct{}]{run: s.runConfirms, limit: math.MaxInt, most: math.MaxInt, bytes: 1, size: func(*struct{}) int { return 0 }, free: 1, patience: s.commitTimeout, ctx: background}
	s.slow, s.works, s.lockedRows = make(limit, slowConns), make(limit, workConns), make(limit, lockedConns)
	s.commits, s.beat, s.sweeps = make(limit, commitConns), make(limit, 1), make(limit, 1)
	s.listener = newListener(background, s)
	s.durability.done = make(chan struct{})
	go func() {
		defer close(s.durability.done)
		if !o.MayLoseCommits {
			s.durability.watch(background, s, durabilityEvery)
		}
	}()
	return s, nil
}

// ownConfig is the configuration of the store's own connections.
func (s *Store) ownConfig(config *pgxpool.Config) *pgxpool.Config {
	config.MaxConns = int32(2*s.o.Writers + s.o.Readers + slowConns + workConns + lockedConns + commitConns + singleConns + maxLate)
	config.MinConns, config.MinIdleConns = 0, 0
	// A try to connect takes a connection's place, also when its caller has given up waiting.
	if t := config.ConnConfig.ConnectTimeout; t <= 0 || t > connectPatience {
		config.ConnConfig.ConnectTimeout = connectPatience
	}
	// Of the service's callbacks only those are called that make a connection.
	config.BeforeAcquire, config.PrepareConn, config.AfterRelease, config.BeforeClose = nil, nil, nil, nil //nolint:staticcheck // the service may still set the deprecated one
	c := config.ConnConfig
	c.DefaultQueryExecMode, c.StatementCacheCapacity, c.DescriptionCacheCapacity = pgx.QueryExecModeCacheStatement, statementCache, statementCache
	if s.o.PgBouncer {
		c.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
	}
	c.Tracer, c.OnNotification, c.AfterConnect, c.OnNotice = nil, nil, nil, onNotice
	// A short time limit of the service could end the preparation of a connection, or the
	// statement after it: prepareSession sets the store's own.
	for _, name := range []string{"statement_timeout", "lock_timeout", "transaction_timeout"} {
		delete(c.RuntimeParams, name)
	}
	c.OnPgError = func(_ *pgconn.PgConn, err *pgconn.PgError) bool { return !strings.EqualFold(err.Severity, "FATAL") }
	c.BuildContextWatcherHandler = func(c *pgconn.PgConn) ctxwatch.Handler { return &pgconn.DeadlineContextWatcherHandler{Conn: c.Conn()} }
	// A statement on a connection that has died is repeated on another; to
	// ask each time beforehand costs more.
	config.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false }
	config.AfterConnect = func(ctx context.Context, c *pgx.Conn) error {
		hush(c.PgConn()) // see standby.go
		return s.prepareSession(ctx, c)
	}
	return config
}

// prepareSession prepares one of the store's own connections. The store's statements read one
// row by key for each element, so it sets these plans. A plan that the planner made while the
// table was small or not analysed would scan the table permanently, because prepared
// statements keep their plan.
func (s *Store) prepareSession(ctx context.Context, c *pgx.Conn) error {
	sql := "SELECT pg_is_in_recovery()::text, current_setting('fsync'), current_setting('synchronous_commit')"
	if !s.o.PgBouncer {
		sql = `SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off; SET enable_bitmapscan = off;
			SET plan_cache_mode = force_generic_plan; SET jit = off;
			SET default_transaction_isolation = 'read committed'; SET default_transaction_read_only = off;
			SET client_min_messages = warning; ` +
			fmt.Sprintf("SET lock_timeout = %d; SET statement_timeout = %d; ", rowPatience.Milliseconds(), statementTimeout.Milliseconds()) + sql
	}
	results, err := c.PgConn().Exec(ctx, sql).ReadAll()
	if err != nil {
		return err
	}
	last := results[len(results)-1].Rows[0]
	switch replica, fsync, commit := string(last[0]), string(last[1]), string(last[2]); {
	case replica != "false":
		return errReplica // after a failover, for one
	case (fsync == "off" || commit == "off") && !s.o.MayLoseCommits:
		return fmt.Errorf("%w: fsync is %s and synchronous_commit %s; turn both on, or set Options.MayLoseCommits", errLossy, fsync, commit)
	}
	return nil
}

// Pool returns the pool that RunTx takes its connections from.
func (s *Store) Pool() *pgxpool.Pool { return s.pool }

// Close waits for the calls at work and closes the store's connections, and the
// pool if Open has made it. Later calls fail. It may be called again.
func (s *Store) Close() error {
	if s.closed.Swap(true) {
		return nil
	}
	s.asks.close()
	s.ends.close()
	s.reads.close()
	s.confirms.close()
	s.cancel()
	<-s.durability.done
	s.listener.close()
	s.rollbacks.close()
	s.own.Close()
	if s.ours {
		s.pool.Close()
	}
	return nil
}
