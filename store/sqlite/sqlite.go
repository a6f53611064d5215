// Package sqlite is the embedded, durable store: a file on the local disk that
// several processes of one host may use at a time. It needs no server and no C
// compiler.
//
// Acknowledged writes are on the disk (write-ahead log, synchronous=FULL). Concurrent calls
// share transactions and the wait for the disk: calls that arrive during one write are part of
// the next. The file can also contain the service's own tables; with [stet.DoTx] their changes
// and the record are one commit.
//
// The store's clock is that of the host, so all processes agree on it. If the clock is set
// back, leases and retention last longer; if it jumps ahead, they end early. Fences grow in
// both cases.
package sqlite

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stet-go/stet/store"
	modernc "modernc.org/sqlite"
)

// Defaults and limits of Options.
const (
	defaultBusyTimeout = 5 * time.Second
	defaultMaxQueue    = 1 << 15
	maxBatch           = 512 // operations in one transaction
)

// Options configure a Store. The zero value is usable.
type Options struct {
	// BusyTimeout is how long a write waits for other processes, and for the
	// service's own transactions. Default 5 s; at least 1 ms.
	BusyTimeout time.Duration
	// MaxQueue is how many calls can wait for the writer. More calls get an error at once, and
	// nothing is done. Default 32,768.
	MaxQueue int
	// MaxReaders is how many connections Read uses at most. Default: the number of processors of
	// the process, at least 2.
	MaxReaders int
	// Clock is the store's clock, the same for all processes that share the file. Default
	// time.Now, the host's clock.
	Clock func() time.Time
}

// Store is a store.WorkTxStore, store.Sweeper, store.Browser and store.HistoryStore in an SQLite file. It
// is safe for concurrent use, and so is the file for several processes of one host.
type Store struct {
	o    Options
	path string
	file string // path, as SQLite sees it

	w      *writer
	writes *sql.DB   // one connection, of the caller that holds w
	stmts  *prepared // on writes
	failed failures  // of writes

	readers
	dueFrom atomic.Pointer[string] // where the next Due of all names begins; nil: at the first

	db     *sql.DB             // the service's
	commit func(*sql.Tx) error // (*sql.Tx).Commit, for tests to break
}

// readers are the connections for reading.
type readers struct {
	reads     *sql.DB
	readStmts *prepared    // on reads
	reading   sync.RWMutex // locked by Close, after the last read
}

var (
	_ store.WorkTxStore[*sql.Tx] = (*Store)(nil)
	_ store.OutboxStore          = (*Store)(nil)
	_ store.Sweeper              = (*Store)(nil)
	_ store.Browser              = (*Store)(nil)
)

// Open opens the store in the file at path. It creates the file if it does not exist; the folder must
// exist. Close the store after the engine.
//
// Only this user can read and write a new file (mode 0600) and the two files that SQLite creates
// beside it. An older file keeps its mode, which SQLite gives to those two also. The files have the
// data of operations: keep them private.
//
// Open refuses a file in memory (use package store/memory), a file with several names (hard links:
// processes that open different ones do not see the writes of each other), and a file with tables of
// a newer version of this package.
func Open(ctx context.Context, path string, o Options) (*Store, error) {
	switch {
	case path == "" || path == ":memory:":
		return nil, fmt.Errorf("sqlite: the path is %q, which keeps nothing; name a file, or use store/memory", path)
	case strings.HasPrefix(path, "file:"):
		return nil, errors.New("sqlite: the path is a URI; give the plain path (a file that is really named so: ./file:…)")
	case strings.ContainsRune(path, 0):
		return nil, errors.New("sqlite: the path has a NUL byte")
	case o.BusyTimeout < 0 || o.MaxQueue < 0 || o.MaxReaders < 0:
		return nil, fmt.Errorf("sqlite: Options.BusyTimeout (%v), MaxQueue (%d) and MaxReaders (%d) must not be negative", o.BusyTimeout, o.MaxQueue, o.MaxReaders)
	case o.BusyTimeout > 0 && o.BusyTimeout < time.Millisecond:
		return nil, fmt.Errorf("sqlite: Options.BusyTimeout is %v; it must be 1ms at least", o.BusyTimeout)
	}
	o.BusyTimeout = cmp.Or(o.BusyTimeout, defaultBusyTimeout)
	o.MaxQueue = cmp.Or(o.MaxQueue, defaultMaxQueue)
	o.MaxReaders = cmp.Or(o.MaxReaders, max(2, runtime.GOMAXPROCS(0)))
	if o.Clock == nil {
		o.Clock = time.Now
	}
	s := &Store{o: o, path: path, w: newWriter(o.MaxQueue, maxBatch), commit: (*sql.Tx).Commit}
	if err := s.open(ctx); err != nil {
		return nil, errors.Join(err, s.disconnect())
	}
	return s, nil
}

// open makes the pools, and the tables of a new file.
func (s *Store) open(ctx context.Context) error {
	if err := createFile(s.path); err != nil {
		return err
	}
	dsn, err := source(s.path, 0) // Store.begin polls the lock
	if err != nil {
		return err
	}
	if s.failed.Connector, err = modernc.NewConnector(dsn); err != nil {
		return fmt.Errorf("sqlite: %w", err)
	}
	if dsn, err = source(s.path, s.o.BusyTimeout); err != nil {
		return err
	}
	shared, err := modernc.NewConnector(dsn)
	if err != nil {
		return fmt.Errorf("sqlite: %w", err)
	}
	s.db, s.reads, s.writes = sql.OpenDB(shared), sql.OpenDB(shared), sql.OpenDB(&s.failed)
	s.reads.SetMaxOpenConns(s.o.MaxReaders)
	s.reads.SetMaxIdleConns(s.o.MaxReaders)
	s.writes.SetMaxOpenConns(1)
	if err := s.prepare(ctx); err != nil {
		return err
	}
	if s.stmts, err = prepareOn(ctx, s.writes); err == nil {
		s.readStmts, err = prepareOn(ctx, s.reads)
	}
	return s.explain("open", err, s.path)
}

// DB returns a pool of connections to the same file, for the service's own tables: write-ahead log,
// synchronous=FULL, foreign keys on, the store's busy timeout. BeginTx takes the lock at once, unless
// it is read-only: no transaction fails midway because it cannot get the lock. Close closes the pool.
//
// The store's writes wait while one of its transactions is open, and fail after BusyTimeout: keep
// them short. Inside RunTx, write in its transaction, not through DB.
func (s *Store) DB() *sql.DB { return s.db }

// Close waits for the calls in progress, RunTx included, and closes the file. Later calls fail. It may
// be called again.
func (s *Store) Close() error {
	if !s.w.close() {
		return nil
	}
	s.reading.Lock()
	defer s.reading.Unlock()
	return s.disconnect()
}

// disconnect closes every connection; last that of the writer, which copies the log back.
func (s *Store) disconnect() error {
	var errs []error
	for _, db := range []*sql.DB{s.reads, s.db, s.writes} {
		if db != nil {
			errs = append(errs, db.Close())
		}
	}
	return errors.Join(errs...)
}
