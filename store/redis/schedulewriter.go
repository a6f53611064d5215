package redis

import (
	"context"
	"sync"
	"time"

	"github.com/stet-go/stet/internal/timer"
	"github.com/stet-go/stet/store"
)

const (
	scheduleWithin   = 250 * time.Millisecond // that a write waits for the schedule at most
	scheduleTimeout  = 5 * time.Second        // of one try to write the schedule
	minSchedulePause = 20 * time.Millisecond  // after a try that failed
	maxSchedulePause = time.Second            // it doubles up to this
)

// scheduleWriter writes the schedule of a cluster, which is on another server than most
// records. Entries that come while a write is in progress go together with the next.
type scheduleWriter struct {
	s    *Store
	wake chan struct{}

	mu      sync.Mutex
	pending [len(queueNames)]map[spot]time.Time // when something is due, on this process's clock
	written chan struct{}                       // closed when one try to write pending has ended
}

func newScheduleWriter(s *Store) *scheduleWriter {
	return &scheduleWriter{s: s, wake: make(chan struct{}, 1), written: make(chan struct{})}
}

// schedule writes into the schedule of a cluster when a record will be due. It waits for that,
// but not long: the writer tries again until it succeeds. If the process dies first, the next
// sweep writes it.
func (s *Store) schedule(ctx context.Context, what waitsFor, name string, id store.ID, after time.Duration) {
	if s.cluster {
		_ = timer.Until(ctx, s.writer.add(what, spot{shardOf(id), name}, time.Now().Add(after)), scheduleWithin)
	}
}

// add returns a channel that is closed after a try to write the entry.
func (w *scheduleWriter) add(what waitsFor, at spot, due time.Time) <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.put(what, at, due)
	select {
	case w.wake <- struct{}{}:
	default:
	}
	return w.written
}

// put adds an entry unless there is an earlier one. The caller holds w.mu.
func (w *scheduleWriter) put(what waitsFor, at spot, due time.Time) {
	if w.pending[what] == nil {
		w.pending[what] = make(map[spot]time.Time)
	}
	if was, ok := w.pending[what][at]; !ok || due.Before(was) {
		w.pending[what][at] = due
	}
}

// run writes entries until ctx ends.
func (w *scheduleWriter) run(ctx context.Context) {
	pause := minSchedulePause
	for {
		select {
		case <-w.wake:
		case <-ctx.Done():
			return
		}
		for !w.write(ctx) {
			if !timer.Sleep(ctx, pause) {
				return
			}
			pause = min(2*pause, maxSchedulePause)
		}
		pause = minSchedulePause
	}
}

// write writes the pending entries, or puts them back and returns false.
func (w *scheduleWriter) write(ctx context.Context) (ok bool) {
	w.mu.Lock()
	some, written := w.pending, w.written
	clear(w.pending[:])
	w.written = make(chan struct{})
	w.mu.Unlock()
	defer close(written)
	ctx, cancel := context.WithTimeout(ctx, scheduleTimeout)
	defer cancel()
	ok = true
	for what, spots := range some {
		var reads []queueRead
		for at, due := range spots {
			reads = append(reads, queueRead{spot: at, next: max(time.Until(due), 0), more: true})
		}
		if len(reads) == 0 || w.s.writeSchedule(ctx, waitsFor(what), reads) == nil {
			continue
		}
		ok = false
		w.mu.Lock()
		for at, due := range spots {
			w.put(waitsFor(what), at, due)
		}
		w.mu.Unlock()
	}
	return ok
}
