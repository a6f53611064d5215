package redis

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/stet-go/stet/internal/timer"
	"github.com/stet-go/stet/store"
)

const (
	maxWatchers = 4096                   // watchers in a process
	pollEvery   = 500 * time.Millisecond // how often a watcher polls: a message may be lost
	relisten    = 250 * time.Millisecond // between tries to subscribe
)

var (
	errTooManyWatchers = errors.New("redis: too many watchers; poll")
	errNoListener      = errors.New("redis: the client cannot subscribe; poll")
)

// Watch implements store.Watcher, by publish/subscribe. The end of a run is published only if
// a caller watches it, because a cluster sends messages to all of its servers. One subscription,
// which lasts until Close, serves all watchers of the process. With a client that is not a
// Listener it returns an error, so that its caller polls.
func (s *Store) Watch(ctx context.Context, id store.ID, fenced int64) error {
	if err := s.begin(ctx); err != nil {
		return err
	}
	woken, leave, err := s.watchers.join(id)
	if err != nil {
		return err
	}
	defer leave()
	for {
		// The script marks the run as watched. If the subscription begins later, hear wakes
		// the watcher, and it reads the record again.
		reply, err := s.call(ctx, "watch", watchScript, []string{s.keys(id).record}, fence(fenced))
		if err != nil {
			return err
		}
		rec, err := decode(id, reply)
		if err != nil {
			return err
		}
		if rec.State != store.Running || rec.Fence != fenced || rec.LeaseLeft <= 0 {
			return nil
		}
		_ = timer.Until(ctx, woken, min(rec.LeaseLeft, timer.Around(s.watchers.every)))
	}
}

// watcher is woken at the end of a run.
type watcher chan struct{}

func (w watcher) wake() {
	select {
	case w <- struct{}{}:
	default:
	}
}

// hub wakes the watchers of a process when a message arrives.
type hub struct {
	ctx      context.Context
	listener Listener // nil if the client cannot subscribe
	channel  string
	every    time.Duration // how often a watcher polls

	mu       sync.Mutex
	watchers map[store.ID]map[watcher]struct{}
	n        int // watchers of all records
	running  bool
	closed   bool
	wg       sync.WaitGroup
}

func (h *hub) init(ctx context.Context, s *Store) {
	h.ctx, h.channel, h.every = ctx, s.channel, pollEvery
	h.listener, _ = s.client.(Listener)
	h.watchers = make(map[store.ID]map[watcher]struct{})
}

// join adds a watcher of a record.
func (h *hub) join(id store.ID) (w watcher, leave func(), err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.closed:
		return nil, nil, errClosed
	case h.listener == nil:
		return nil, nil, errNoListener
	case h.n >= maxWatchers:
		return nil, nil, errTooManyWatchers
	}
	w = make(watcher, 1)
	if h.watchers[id] == nil {
		h.watchers[id] = make(map[watcher]struct{})
	}
	h.watchers[id][w] = struct{}{}
	h.n++
	if !h.running {
		h.running = true
		h.wg.Go(h.listen)
	}
	return w, func() { h.leave(id, w) }, nil
}

func (h *hub) leave(id store.ID, w watcher) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.n--
	if delete(h.watchers[id], w); len(h.watchers[id]) == 0 {
		delete(h.watchers, id)
	}
}

// listen keeps the subscription until the store is closed.
func (h *hub) listen() {
	for ok := true; ok; ok = timer.Sleep(h.ctx, timer.Around(relisten)) {
		_ = h.listener.Listen(h.ctx, h.channel, h.hear) // tried again after any error
	}
}

// channelOf is the channel to which the end of runs is published. The message is the identity.
func channelOf(prefix string) string { return prefix + ":ended" }

// probing is a message that only tests the right to publish.
const probing = "probe"

// hear wakes the watchers of a record, or all of them if messages may have been lost.
func (h *hub) hear(message string) {
	if message == probing {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(message) == len(store.ID{}) {
		for w := range h.watchers[store.ID([]byte(message))] {
			w.wake()
		}
		return
	}
	for _, watchers := range h.watchers {
		for w := range watchers {
			w.wake()
		}
	}
}

// close ends the subscription; its context has ended already.
func (h *hub) close() {
	h.mu.Lock()
	h.closed = true
	h.mu.Unlock()
	h.wg.Wait()
}
