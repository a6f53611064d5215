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
	glance      = 500 * time.Millisecond // how often a watcher looks by itself: a message may be lost
	relisten    = 250 * time.Millisecond // between tries to subscribe
)

var (
	errTooManyWatchers = errors.New("redis: too many watchers; poll")
	errNoListener      = errors.New("redis: the client cannot subscribe; poll")
)

// Watch implements store.Watcher, by publish/subscribe. The end of a run is
// published only if a caller watches it, because a cluster sends what is
// published to all of its servers. One subscription, which lasts until Close,
// serves all watchers of the process.
//
// With a client that is not a Listener it returns an error, so that its caller
// polls.
func (s *Store) Watch(ctx context.Context, id store.ID, fenced int64) error {
	if err := s.begin(ctx); err != nil {
		return err
	}
	told, leave, err := s.watchers.join(id)
	if err != nil {
		return err
	}
	defer leave()
	if err := s.watchers.ready(ctx); err != nil {
		return err
	}
	for {
		reply, err := s.eval(ctx, watchScript, []string{s.keys(id).record}, fence(fenced))
		if err != nil {
			return explain("watch", err)
		}
		rec, err := decode(id, reply)
		if err != nil {
			return err
		}
		if rec.State != store.Running || rec.Fence != fenced || rec.LeaseLeft <= 0 {
			return nil
		}
		_ = timer.Until(ctx, told, min(rec.LeaseLeft, timer.Around(s.watchers.glance)))
		if err := s.begin(ctx); err != nil {
			return err
		}
	}
}

// watcher waits for the end of a run.
type watcher chan struct{}

func (w watcher) tell() {
	select {
	case w <- struct{}{}:
	default:
	}
}

// hub tells the watchers of a process what is published.
type hub struct {
	ctx      context.Context
	listener Listener // nil if the client cannot subscribe
	channel  string
	glance   time.Duration // how often a watcher looks by itself

	mu       sync.Mutex
	watchers map[store.ID][]watcher
	n        int
	running  bool
	closed   bool
	up       chan struct{} // closed while subscribed
	wg       sync.WaitGroup
}

func (h *hub) init(ctx context.Context, s *Store) {
	h.ctx, h.channel, h.glance = ctx, s.channel, glance
	h.listener, _ = s.client.(Listener)
	h.watchers = make(map[store.ID][]watcher)
	h.up = make(chan struct{})
}

// join adds a watcher of a record.
func (h *hub) join(id store.ID) (e watcher, leave func(), err error) {
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
	e = make(watcher, 1)
	h.watchers[id] = append(h.watchers[id], e)
	h.n++
	if !h.running {
		h.running = true
		h.wg.Go(h.listen)
	}
	return e, func() { h.leave(id, e) }, nil
}

func (h *hub) leave(id store.ID, e watcher) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.n--
	var others []watcher
	for _, other := range h.watchers[id] {
		if other != e {
			others = append(others, other)
		}
	}
	if len(others) == 0 {
		delete(h.watchers, id)
		return
	}
	h.watchers[id] = others
}

// ready waits until there is a subscription. It does not wait for long: a watcher
// also looks by itself.
func (h *hub) ready(ctx context.Context) error {
	h.mu.Lock()
	up := h.up
	h.mu.Unlock()
	return timer.Until(ctx, up, h.glance)
}

// listen keeps the subscription until the store is closed.
func (h *hub) listen() {
	for {
		_ = h.listener.Listen(h.ctx, h.channel, h.heard) // tried again after any error
		h.mu.Lock()
		select {
		case <-h.up:
			h.up = make(chan struct{})
		default:
		}
		h.mu.Unlock()
		if !timer.Sleep(h.ctx, timer.Around(relisten)) {
			return
		}
	}
}

// channelOf is where the end of runs is published. The message is the identity.
func channelOf(prefix string) string { return prefix + ":ended" }

// probing is a message that only tries whether one may be published.
const probing = "probe"

// heard wakes the watchers of a record; all of them if messages may have been
// lost.
func (h *hub) heard(message string) {
	if message == probing {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(message) == len(store.ID{}) {
		for _, e := range h.watchers[store.ID([]byte(message))] {
			e.tell()
		}
		return
	}
	select {
	case <-h.up:
	default:
		close(h.up)
	}
	for _, watchers := range h.watchers {
		for _, e := range watchers {
			e.tell()
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
