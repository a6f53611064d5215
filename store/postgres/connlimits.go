package postgres

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stet-go/stet/store"
)

// The store's own pool has as many connections as all its uses together, and each use is limited. No
// use can take another's connections, and an exhausted service pool cannot stop lease renewals.

// Connections besides those of batches, by use.
const (
	slowConns   = 2 // calls that cannot be batched
	workConns   = 4 // calls of workers
	lockedConns = 2 // calls on records that another transaction has locked
	commitConns = 2 // queries for the outcome of unacknowledged commits
	singleConns = 4 // one each for lease renewals, sweeps, confirmations and the listener
)

const (
	// rowPatience is how long one statement waits for a lock. Calls that share the
	// statement or its connection wait with it.
	rowPatience     = 50 * time.Millisecond
	connectPatience = 3 * time.Second
	lockedFor       = 5 * time.Second // how long a key is remembered after its record was found locked
	maxLocked       = 1024            // keys that are remembered

	maxLookPause = 200 * time.Millisecond // between queries for the outcome of a commit
)

// limit bounds the connections of one use: it is full when all are in use.
type limit chan struct{}

// limited calls fn within l.
func (s *Store) limited(ctx context.Context, l limit, fn func() error) error {
	select {
	case l <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-l }()
	if s.closed.Load() {
		return errClosed
	}
	return fn()
}

// alone executes calls like exec, within l. They wait for no row.
func (s *Store) alone(ctx context.Context, l limit, make func() []call) error {
	return s.limited(ctx, l, func() error { return s.exec(ctx, make) })
}

// onRow executes calls that change the record of id. If another transaction has it locked,
// they wait within the limit of such calls and not within l.
func (s *Store) onRow(ctx context.Context, l limit, id store.ID, make func() []call) error {
	if !s.locked.has(id) {
		err := s.limited(ctx, l, func() error {
			if s.locked.has(id) {
				return errLockedRow // found while this call queued
			}
			return s.execOnRow(ctx, make)
		})
		if !isLocked(err) {
			return err
		}
	}
	return s.onLockedRow(ctx, id, make)
}

// onLockedRow executes calls that change the record of id, which is locked, until they succeed or
// ctx ends.
func (s *Store) onLockedRow(ctx context.Context, id store.ID, make func() []call) error {
	for {
		s.locked.add(id)
		err := s.limited(ctx, s.lockedRows, func() error { return s.execOnRow(ctx, make) })
		if !isLocked(err) {
			if err == nil {
				s.locked.remove(id)
			}
			return err
		}
		if ended := context.Cause(ctx); ended != nil {
			return fmt.Errorf("%w: %w", ended, err)
		}
		// A statement that is cut off costs its connection.
		if end, ok := ctx.Deadline(); ok && time.Until(end) < 2*rowPatience {
			return err
		}
	}
}

// errLockedRow is for a key whose record is known to be locked.
var errLockedRow = errors.New("another transaction has the record locked, or the table")

// isLocked reports whether a statement has waited for a lock without getting it.
func isLocked(err error) bool { return sqlState(err) == codeLocked || errors.Is(err, errLockedRow) }

// lockedKeys are the keys whose records were found locked by another transaction. Calls on them
// share no statement with others.
type lockedKeys struct {
	n     atomic.Int64 // of keys
	mu    sync.Mutex
	until map[store.ID]time.Time
}

func (l *lockedKeys) has(id store.ID) bool {
	if l.n.Load() == 0 {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	until, ok := l.until[id]
	if ok && time.Now().After(until) {
		l.delete(time.Now())
		return false
	}
	return ok
}

// add remembers id for a while. If too many are remembered, it is not.
func (l *lockedKeys) add(id store.ID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.until == nil {
		l.until = make(map[store.ID]time.Time)
	}
	now := time.Now()
	if len(l.until) >= maxLocked {
		l.delete(now)
	}
	if _, ok := l.until[id]; ok || len(l.until) < maxLocked {
		l.until[id] = now.Add(lockedFor)
	}
	l.n.Store(int64(len(l.until)))
}

func (l *lockedKeys) remove(id store.ID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.until, id)
	l.n.Store(int64(len(l.until)))
}

// delete deletes the keys whose time is over. The caller holds l.mu.
func (l *lockedKeys) delete(now time.Time) {
	maps.DeleteFunc(l.until, func(_ store.ID, until time.Time) bool { return now.After(until) })
	l.n.Store(int64(len(l.until)))
}
