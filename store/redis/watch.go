package redis

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/stet-go/stet"
)

const (
	maxEars  = 4096                   // watchers in a process
	glance   = 500 * time.Millisecond // how often a watcher looks by itself: a message may be lost
	relisten = 250 * time.Millisecond // between tries to subscribe
)

var (
	errNoEars     = errors.New("redis: too many watchers; poll")
	errNoListener = errors.New("redis: the client cannot subscribe; poll")
)

// Watch implements stet.Watcher, by publish/subscribe. The end of a run is
// published only if somebody watches it, because a cluster sends what is
// published to all of its servers. One subscription, which lasts until Close,
// serves all watchers of the process.
//
// With a client that is not a Listener it returns an error, so that its caller
// polls.
func (s *Store) Watch(ctx context.Context, id stet.ID, fenced int64) error {
	if err := s.begin(ctx); err != nil {
		return err
	}
	told, leave, err := s.ears.join(id)
	if err != nil {
		return err
	}
	defer leave()
	if err := s.ears.ready(ctx); err != nil {
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
		if rec.State != stet.Running || rec.Fence != fenced || rec.LeaseLeft <= 0 {
			return nil
		}
		t := time.NewTimer(min(rec.LeaseLeft, glance/2+rand.N(glance)))
		select {
		case <-told:
		case <-t.C:
		case <-ctx.Done():
		}
		t.Stop()
		if err := s.begin(ctx); err != nil {
			return err
		}
	}
}

// ear is a watcher.
type ear chan struct{}

func (e ear) tell() {
	select {
	case e <- struct{}{}:
	default:
	}
}

// hub tells the watchers of a process what is published.
type hub struct {
	ctx      context.Context
	listener Listener // nil if the client cannot subscribe
	channel  string

	mu      sync.Mutex
	ears    map[stet.ID][]ear
	n       int
	running bool
	closed  bool
	up      chan struct{} // closed while subscribed
	wg      sync.WaitGroup
}

func (h *hub) init(ctx context.Context, s *Store) {
	h.ctx, h.channel = ctx, s.channel
	h.listener, _ = s.client.(Listener)
	h.ears = make(map[stet.ID][]ear)
	h.up = make(chan struct{})
}

// join adds a watcher of a record.
func (h *hub) join(id stet.ID) (e ear, leave func(), err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.closed:
		return nil, nil, errClosed
	case h.listener == nil:
		return nil, nil, errNoListener
	case h.n >= maxEars:
		return nil, nil, errNoEars
	}
	e = make(ear, 1)
	h.ears[id] = append(h.ears[id], e)
	h.n++
	if !h.running {
		h.running = true
		h.wg.Go(h.listen)
	}
	return e, func() { h.leave(id, e) }, nil
}

func (h *hub) leave(id stet.ID, e ear) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.n--
	var others []ear
	for _, other := range h.ears[id] {
		if other != e {
			others = append(others, other)
		}
	}
	if len(others) == 0 {
		delete(h.ears, id)
		return
	}
	h.ears[id] = others
}

// ready waits until there is a subscription. It does not wait for long: a watcher
// also looks by itself.
func (h *hub) ready(ctx context.Context) error {
	h.mu.Lock()
	up := h.up
	h.mu.Unlock()
	t := time.NewTimer(glance)
	defer t.Stop()
	select {
	case <-up:
	case <-t.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// listen keeps the subscription until the store is closed.
func (h *hub) listen() {
	for {
		_ = h.listener.Listen(h.ctx, h.channel, h.heard) // tried again, whatever it was
		h.mu.Lock()
		select {
		case <-h.up:
			h.up = make(chan struct{})
		default:
		}
		h.mu.Unlock()
		if !sleep(h.ctx, relisten/2+rand.N(relisten)) {
			return
		}
	}
}

// heard wakes the watchers of a record; all of them if messages may have been
// lost.
func (h *hub) heard(message string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(message) == len(stet.ID{}) {
		for _, e := range h.ears[stet.ID([]byte(message))] {
			e.tell()
		}
		return
	}
	select {
	case <-h.up:
	default:
		close(h.up)
	}
	for _, ears := range h.ears {
		for _, e := range ears {
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
