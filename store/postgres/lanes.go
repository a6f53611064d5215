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

// Connections of the store's own, besides those of batches, by what they are for.
const (
	slowLanes = 2 // for calls that have to be dealt with alone
	workLanes = 4 // for workers' calls
	heldLanes = 2 // for calls on records that another transaction has locked
	lookLanes = 2 // for finding out about commits
	onlyLanes = 4 // one each for heartbeats, sweeps, confirmations and the listener
)

const (
	// rowPatience is how long one statement waits for a lock. What shares the
	// statement, or its connection, waits with it.
	rowPatience     = 50 * time.Millisecond
	connectPatience = 3 * time.Second
	heldFor         = 5 * time.Second // how long a key is remembered after it was found held
	maxHeld         = 1024            // keys that are held

	maxLookPause = 200 * time.Millisecond // between looks at what became of a commit
)

// inLane calls fn with a token of lane, which bounds how many connections that use
// takes.
func (s *Store) inLane(ctx context.Context, lane chan struct{}, fn func() error) error {
	select {
	case lane <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-lane }()
	if s.closed.Load() {
		return errClosed
	}
	return fn()
}

// alone has calls executed like exec, in a lane. They wait for no row.
func (s *Store) alone(ctx context.Context, lane chan struct{}, make func() []call) error {
	return s.inLane(ctx, lane, func() error { return s.exec(ctx, make) })
}

// onRow has calls executed that change the record of id. If another transaction has it
// locked they leave lane, and wait for it where only those wait that have to.
func (s *Store) onRow(ctx context.Context, lane chan struct{}, id store.ID, make func() []call) error {
	if !s.holds.has(id) {
		err := s.inLane(ctx, lane, func() error {
			if s.holds.has(id) {
				return errHeld // found out while this queued
			}
			return s.execOnRow(ctx, make)
		})
		if !isHeld(err) {
			return err
		}
	}
	return s.onHeld(ctx, id, make)
}

// onHeld has calls executed that change the record of id, which is locked. They
// share their lanes with those on other keys by turns, and of each key there is
// one at a time.
func (s *Store) onHeld(ctx context.Context, id store.ID, make func() []call) error {
	h, err := s.holds.join(id)
	if err != nil {
		return err
	}
	free := false
	defer func() { s.holds.leave(id, h, free) }()
	select {
	case h.turn <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", context.Cause(ctx), errHeld)
	}
	defer func() { <-h.turn }()
	for {
		err := s.inLane(ctx, s.held, func() error { return s.execOnRow(ctx, make) })
		if !isHeld(err) {
			free = err == nil
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

// errHeld is what onRow makes of a key that is known to be held.
var errHeld = errors.New("another transaction has the record locked, or the table")

// isHeld reports whether a statement has waited for a lock in vain.
func isHeld(err error) bool { return sqlState(err) == codeLocked || errors.Is(err, errHeld) }

// holds are the keys that were found locked by another transaction. Calls
// on them stay out of what others share.
type holds struct {
	n     atomic.Int64 // of keys
	mu    sync.Mutex
	keys  map[store.ID]*heldKey
	clear time.Time // when those that are over are removed next
}

// heldKey is one such key.
type heldKey struct {
	turn  chan struct{} // full while a call is at it
	calls int           // that have joined
	until time.Time     // when it is forgotten, once no call is left
}

func (k *heldKey) over(now time.Time) bool { return k.calls == 0 && now.After(k.until) }

// has reports whether id is known to be held.
func (h *holds) has(id store.ID) bool {
	if h.n.Load() == 0 {
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if now := time.Now(); now.After(h.clear) {
		h.remove(now)
	}
	return h.keys[id] != nil
}

// remove removes the keys that are over. The caller holds h.mu.
func (h *holds) remove(now time.Time) {
	maps.DeleteFunc(h.keys, func(_ store.ID, k *heldKey) bool { return k.over(now) })
	h.n.Store(int64(len(h.keys)))
	h.clear = now.Add(heldFor / 5)
}

// found remembers id, which was found held.
func (h *holds) found(id store.ID) {
	if k, err := h.join(id); err == nil {
		h.leave(id, k, false)
	}
}

// join adds a call on id, which is held.
func (h *holds) join(id store.ID) (*heldKey, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	k := h.keys[id]
	if k == nil {
		if len(h.keys) >= maxHeld {
			h.remove(time.Now())
		}
		if len(h.keys) >= maxHeld {
			return nil, fmt.Errorf("%w, as are %d others; nothing was done", errHeld, maxHeld)
		}
		if h.keys == nil {
			h.keys = make(map[store.ID]*heldKey)
		}
		k = &heldKey{turn: make(chan struct{}, 1)}
		h.keys[id] = k
	}
	k.calls++
	k.until = time.Now().Add(heldFor)
	h.n.Store(int64(len(h.keys)))
	return k, nil
}

// leave ends a call on id; free if it found it so.
func (h *holds) leave(id store.ID, k *heldKey, free bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	k.calls--
	if k.until = time.Now().Add(heldFor); free {
		k.until = time.Time{}
	}
	if k.over(time.Now()) {
		delete(h.keys, id)
	}
	h.n.Store(int64(len(h.keys)))
}
