// Package mysql stores records in MySQL (8.0 or later) or MariaDB (10.6 or later).
//
// Concurrent calls share transactions: calls that arrive while all writing connections are
// busy are part of the next batch. With [stet.DoTx] the writes of a service and the record are
// one commit, on [Store.DB] or, by [OverSQL], on any pool of database/sql.
//
// Only the server's clock decides whether something has expired. An acknowledged write is on the server's disk:
// Open, and later each write, refuse a server that may lose one (innodb_flush_log_at_trx_commit
// other than 1; sync_binlog other than 1 with a binary log), a read-only server, a replica, and
// a Galera cluster.
package mysql

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	driver "github.com/go-sql-driver/mysql"

	"github.com/stet-go/stet/store"
)

// DefaultMaxConns is Options.MaxConns if that is 0.
const DefaultMaxConns = 16

// Defaults and limits.
const (
	leastMaxConns   = 4
	defaultMaxQueue = 1 << 15

	writers       = 2                // connections that execute batches
	patience      = 10 * time.Second // for a batch, a rollback, or the answer to a commit
	lockWait      = 1                // seconds that a statement of the store waits for a row
	leastPacket   = 8 << 20          // of max_allowed_packet, in bytes
	besideResults = 9 << 17          // bytes of a row beside its result: messages, label, digests
)

// Options configure a Store. The zero value is usable.
type Options struct {
	// MaxConns is how many connections the store opens for itself at most, beside those of DB.
	// Default 16; at least 4.
	MaxConns int
	// MaxQueue is how many calls can wait for a writing connection. More calls get an error at
	// once, and nothing is done. Default 32,768.
	MaxQueue int
}

// Store is a store.WorkTxStore, store.OutboxStore, store.Sweeper and store.Browser in a MySQL
// or MariaDB database. It is safe for concurrent use by many processes.
type Store struct {
	o      Options
	own    *sql.DB // the store's connections
	db     *sql.DB // the service's
	t      statements
	packet int         // the server's max_allowed_packet
	late   atomic.Bool // a commit can be seen before it is on the disk; a restart of the server can change it

	batches batcher
	flush   flusher
	dueFrom atomic.Pointer[string] // where the next Due of all names begins; nil: at the first
	ahead   atomic.Int64           // microseconds, for tests: how far the store's clock is ahead of the server's
	ctx     context.Context
	cancel  context.CancelFunc
}

var (
	_ store.WorkTxStore[*sql.Tx] = (*Store)(nil)
	_ store.OutboxStore          = (*Store)(nil)
	_ store.Sweeper              = (*Store)(nil)
	_ store.Browser              = (*Store)(nil)
	_ store.Limiter              = (*Store)(nil)
)

// Open connects to the database that dsn names, in the form of go-sql-driver/mysql
// ("user:password@tcp(host:3306)/database") or as a URL (mysql://user:password@host:3306/database).
// Its character set and system variables apply to DB only. The tables must exist: see Migrate. Close the store
// after the engine.
func Open(ctx context.Context, dsn string, o Options) (*Store, error) {
	if o.MaxConns < 0 || o.MaxQueue < 0 || o.MaxConns > 0 && o.MaxConns < leastMaxConns {
		return nil, fmt.Errorf("mysql: Options.MaxConns is %d and MaxQueue %d; MaxConns must be at least %d, MaxQueue positive, or 0 for the default",
			o.MaxConns, o.MaxQueue, leastMaxConns)
	}
	config, err := parse(dsn)
	if err != nil {
		return nil, err
	}
	o.MaxConns, o.MaxQueue = cmp.Or(o.MaxConns, DefaultMaxConns), cmp.Or(o.MaxQueue, defaultMaxQueue)
	s := &Store{o: o, t: statementsOf(config.DBName)}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.batches.start(writers, o)
	if err := s.connect(ctx, config); err != nil {
		return nil, errors.Join(err, s.disconnect())
	}
	return s, nil
}

// parse reads a data source name, which must name a database.
func parse(dsn string) (*driver.Config, error) {
	if strings.HasPrefix(dsn, "mysql://") {
		var err error
		if dsn, err = fromURL(dsn); err != nil {
			return nil, err
		}
	}
	config, err := driver.ParseDSN(dsn)
	if err != nil {
		return nil, errors.New("mysql: the data source name cannot be read; its form is user:password@tcp(host:3306)/database") // the cause may show the password
	}
	if config.DBName == "" {
		return nil, errors.New("mysql: the data source name has no database; append /database")
	}
	return config, nil
}

// connect makes the pools and checks the server and the tables.
func (s *Store) connect(ctx context.Context, config *driver.Config) error {
	db, err := pool(config, nil)
	if err != nil {
		return err
	}
	s.db = db
	if err := s.checkServer(ctx); err != nil {
		return err
	}
	if err := checkSchema(ctx, s.db, s.t.meta); err != nil {
		return err
	}
	own := config.Clone()
	// Parameters are escaped on this side: with another character set a value could end its literal.
	own.Params, own.Collation = nil, ""
	if err := own.Apply(driver.Charset("utf8mb4", "")); err != nil {
		return err
	}
	own.MultiStatements, own.InterpolateParams, own.ClientFoundRows, own.ParseTime = true, true, false, false
	own.MaxAllowedPacket = s.packet
	if s.own, err = pool(own, map[string]string{
		"sql_mode":                 "'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION'",
		"innodb_lock_wait_timeout": fmt.Sprint(lockWait),
		"autocommit":               "1",
	}); err != nil {
		return err
	}
	s.own.SetMaxOpenConns(s.o.MaxConns)
	s.own.SetMaxIdleConns(s.o.MaxConns)
	return explain("open", s.own.PingContext(ctx))
}

// pool returns a pool of connections, with more settings of the session.
func pool(config *driver.Config, settings map[string]string) (*sql.DB, error) {
	config = config.Clone()
	if config.Params == nil {
		config.Params = make(map[string]string)
	}
	for name, value := range settings {
		config.Params[name] = value
	}
	config.Logger = &driver.NopLogger{} // every error is returned as well
	connector, err := driver.NewConnector(config)
	if err != nil {
		return nil, fmt.Errorf("mysql: %w", err)
	}
	return sql.OpenDB(connector), nil
}

// DB returns a pool of connections to the database, with the settings of the data source name, for the
// service's own tables. RunTx and InTx use it. Close closes it. Its limits are the service's to set; by
// default there is none.
func (s *Store) DB() *sql.DB { return s.db }

// MaxResult implements store.Limiter: half of the server's max_allowed_packet, less 1.1 MiB.
func (s *Store) MaxResult() int { return s.packet/2 - besideResults }

// Close waits for the calls in progress, but not for transactions, and closes the connections. Later
// calls fail. It may be called again.
func (s *Store) Close() error {
	s.batches.close()
	return s.disconnect()
}

func (s *Store) disconnect() error {
	s.cancel()
	var errs []error
	for _, db := range []*sql.DB{s.own, s.db} {
		if db != nil {
			errs = append(errs, db.Close())
		}
	}
	return errors.Join(errs...)
}

// flusher lets calls share a durable write.
type flusher struct {
	mu   sync.Mutex
	next *flush        // has not begun
	turn chan struct{} // holds a value while one runs
}

type flush struct {
	done chan struct{}
	err  error
}

// fresh is for how long a commit that can be seen may not be on the disk. The server writes its log
// every second, also without commits.
const fresh = int64(time.Minute / time.Microsecond)

// confirm returns when all commits that were visible at its call are on the server's disk. Without a
// binary log InnoDB shows a commit to others, and releases its locks, before it writes its log. A crash can
// undo it after another call has returned the record. A later durable commit writes the log up to its own position.
func (s *Store) confirm(ctx context.Context) error {
	s.flush.mu.Lock()
	f := s.flush.next
	if f == nil {
		f = &flush{done: make(chan struct{})}
		s.flush.next = f
		if s.flush.turn == nil {
			s.flush.turn = make(chan struct{}, 1)
		}
		s.batches.wg.Go(func() {
			defer close(f.done)
			s.flush.turn <- struct{}{}
			defer func() { <-s.flush.turn }()
			s.flush.mu.Lock()
			s.flush.next = nil
			s.flush.mu.Unlock()
			ctx, cancel := context.WithTimeout(s.ctx, patience)
			defer cancel()
			_, f.err = s.own.ExecContext(ctx, s.t.flush)
		})
	}
	s.flush.mu.Unlock()
	select {
	case <-f.done:
		return explain("confirm the record", f.err)
	case <-ctx.Done():
		return fmt.Errorf("mysql: confirm the record: %w", context.Cause(ctx))
	}
}

// durable reports whether the row is on the disk for certain. A transaction of the service can settle it, and
// commit at any later time.
func (r *row) durable(now micros) bool {
	return !r.stored || r.State.Settled() && r.conn == 0 && now-r.settled > fresh
}

// confirmRead is confirm if an answer is about a row that may not be on the disk yet.
func (s *Store) confirmRead(ctx context.Context, r *row, now micros) error {
	if !s.late.Load() || r.durable(now) {
		return nil
	}
	return s.confirm(ctx)
}
