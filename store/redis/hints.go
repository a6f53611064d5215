package redis

import (
	"context"
	"sync"
	"time"

	"github.com/stet-go/stet"
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
	pending [len(queueNames)]map[int]time.Time // by shard, when something is due, on this process's clock
	written chan struct{}                      // closed when what is pending has been tried
	running bool
	closed  bool
	wg      sync.WaitGroup
}

func (h *hints) init(ctx context.Context, s *Store) { h.ctx, h.s = ctx, s }

// hint writes into the agenda of a cluster that a record will be due, and waits for
// that, but not for long: it is tried again until it succeeds. If the process dies
// first, the next sweep does it.
func (s *Store) hint(ctx context.Context, what stet.Due, id stet.ID, after time.Duration) {
	if !s.cluster {
		return
	}
	written := s.hints.add(what, shardOf(id), time.Now().Add(after))
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
func (h *hints) add(what stet.Due, shard int, due time.Time) <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil
	}
	h.put(what, shard, due)
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
func (h *hints) put(what stet.Due, shard int, due time.Time) {
	if h.pending[what] == nil {
		h.pending[what] = make(map[int]time.Time)
	}
	if was, ok := h.pending[what][shard]; !ok || due.Before(was) {
		h.pending[what][shard] = due
	}
}

// write writes hints until there are none.
func (h *hints) write() {
	pause := minHintPause
	for {
		h.mu.Lock()
		some, written := h.pending, h.written
		if written == nil && len(some[stet.DueRun])+len(some[stet.DueRelay]) == 0 || h.ctx.Err() != nil {
			h.running = false
			h.mu.Unlock()
			return
		}
		clear(h.pending[:])
		h.written = nil
		h.mu.Unlock()

		failed := false
		for what, shards := range some {
			failed = h.send(stet.Due(what), shards) != nil || failed
		}
		if written != nil {
			close(written)
		}
		if !failed {
			pause = minHintPause
			continue
		}
		sleep(h.ctx, pause)
		pause = min(2*pause, maxHintPause)
	}
}

// send writes some hints, or puts them back.
func (h *hints) send(what stet.Due, shards map[int]time.Time) error {
	if len(shards) == 0 {
		return nil
	}
	var visits []visit
	for shard, due := range shards {
		visits = append(visits, visit{shard: shard, next: max(time.Until(due), 0), more: true})
	}
	ctx, cancel := context.WithTimeout(h.ctx, hintTimeout)
	defer cancel()
	err := h.s.plan(ctx, what, visits)
	if err != nil {
		h.mu.Lock()
		defer h.mu.Unlock()
		for shard, due := range shards {
			h.put(what, shard, due)
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
