package redis

import (
	"context"
	"sync"
	"time"

	"github.com/stet-go/stet/internal/timer"
	"github.com/stet-go/stet/store"
)

const (
	hintWithin   = 250 * time.Millisecond // that a write waits for the agenda at most
	hintTimeout  = 5 * time.Second        // of one try to write into it
	minHintPause = 20 * time.Millisecond  // after one that failed
	maxHintPause = time.Second            // it doubles up to this
)

// hints are what is to be written into the agenda of a cluster, which is on another
// server than most records. What comes while a write is under way goes together with
// the next.
type hints struct {
	ctx context.Context
	s   *Store

	mu      sync.Mutex
	pending [len(queueNames)]map[spot]time.Time // when something is due, on this process's clock
	written chan struct{}                       // closed when what is pending has been tried
	running bool
	closed  bool
	wg      sync.WaitGroup
}

// spot is a queue: of a shard, under a name.
type spot struct {
	shard int
	name  string
}

func (h *hints) init(ctx context.Context, s *Store) { h.ctx, h.s = ctx, s }

// hint writes into the agenda of a cluster that a record will be due, and waits for
// that, but not for long: it is tried again until it succeeds. If the process dies
// first, the next sweep does it.
func (s *Store) hint(ctx context.Context, what waitsFor, name string, id store.ID, after time.Duration) {
	if !s.cluster {
		return
	}
	written := s.hints.add(what, spot{shardOf(id), name}, time.Now().Add(after))
	if written == nil {
		return
	}
	t := time.NewTimer(hintWithin)
	defer t.Stop()
	select {
	case <-written:
	case <-t.C:
	case <-ctx.Done():
	}
}

// add returns what is closed once it has been tried to write the hint; nil if the
// store is closed.
func (h *hints) add(what waitsFor, at spot, due time.Time) <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil
	}
	h.put(what, at, due)
	if h.written == nil {
		h.written = make(chan struct{})
	}
	if !h.running {
		h.running = true
		h.wg.Go(h.write)
	}
	return h.written
}

// put notes a hint, unless there is an earlier one. The caller holds h.mu.
func (h *hints) put(what waitsFor, at spot, due time.Time) {
	if h.pending[what] == nil {
		h.pending[what] = make(map[spot]time.Time)
	}
	if was, ok := h.pending[what][at]; !ok || due.Before(was) {
		h.pending[what][at] = due
	}
}

// write writes hints until there are none.
func (h *hints) write() {
	pause := minHintPause
	for {
		h.mu.Lock()
		some, written := h.pending, h.written
		if written == nil && len(some[toRun])+len(some[toSend]) == 0 || h.ctx.Err() != nil {
			h.running = false
			h.mu.Unlock()
			return
		}
		clear(h.pending[:])
		h.written = nil
		h.mu.Unlock()

		failed := false
		for what, spots := range some {
			failed = h.send(waitsFor(what), spots) != nil || failed
		}
		if written != nil {
			close(written)
		}
		if !failed {
			pause = minHintPause
			continue
		}
		timer.Sleep(h.ctx, pause)
		pause = min(2*pause, maxHintPause)
	}
}

// send writes some hints, or puts them back.
func (h *hints) send(what waitsFor, spots map[spot]time.Time) error {
	if len(spots) == 0 {
		return nil
	}
	var visits []visit
	for at, due := range spots {
		visits = append(visits, visit{spot: at, next: max(time.Until(due), 0), more: true})
	}
	ctx, cancel := context.WithTimeout(h.ctx, hintTimeout)
	defer cancel()
	err := h.s.plan(ctx, what, visits)
	if err != nil {
		h.mu.Lock()
		defer h.mu.Unlock()
		for at, due := range spots {
			h.put(what, at, due)
		}
	}
	return err
}

// close ends writing; its context has ended already.
func (h *hints) close() {
	h.mu.Lock()
	h.closed = true
	h.mu.Unlock()
	h.wg.Wait()
}
