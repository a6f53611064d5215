package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/go-zookeeper/zk"

	"github.com/stet-go/stet/internal/timer"
	"github.com/stet-go/stet/store"
)

// maxWatches is how many records of a process are watched at a time. A watch cannot be taken back: it
// ends when its record changes.
const maxWatches = 4096

// watches are the watched records of a process.
type watches struct {
	mu  sync.Mutex
	all map[store.ID]*watch
}

// watch is a watch of a record, for all callers that wait for it.
type watch struct {
	ready   chan struct{} // closed when node and err are set
	changed chan struct{} // closed when the record has changed, or the watch has failed
	node    *node
	err     error
}

// Watch implements store.Watcher, by watches of ZooKeeper. A process watches at most 4,096 records; above
// that it returns an error.
func (s *Store) Watch(ctx context.Context, id store.ID, fence int64) error {
	for {
		w, err := s.watch(id)
		if err != nil {
			return err
		}
		select {
		case <-w.ready:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if errors.Is(w.err, zk.ErrNoNode) {
			return ctx.Err()
		}
		if w.err != nil {
			return fmt.Errorf("zookeeper: watch %v: %w", id, w.err)
		}
		now, err := s.now(ctx)
		if err != nil {
			return err
		}
		rec := w.node.record(now)
		if rec.State != store.Running || rec.Fence != fence || rec.LeaseLeft <= 0 {
			return ctx.Err()
		}
		if err := timer.Until(ctx, w.changed, rec.LeaseLeft); err != nil {
			return err
		}
	}
}

// watch returns the watch of a record, and begins one if there is none.
func (s *Store) watch(id store.ID) (*watch, error) {
	s.watches.mu.Lock()
	defer s.watches.mu.Unlock()
	w := s.watches.all[id]
	switch {
	case w != nil:
		return w, nil
	case s.closed.Load():
		return nil, errClosed
	case len(s.watches.all) >= maxWatches:
		return nil, fmt.Errorf("zookeeper: %d records are watched, the limit; poll", maxWatches)
	}
	w = &watch{ready: make(chan struct{}), changed: make(chan struct{}), node: &node{id: id}}
	s.watches.all[id] = w
	s.wg.Go(func() { s.wait(id, w) })
	return w, nil
}

// wait waits until the record changes.
func (s *Store) wait(id store.ID, w *watch) {
	data, stat, changed, err := s.conn.GetW(s.path(id))
	if w.err = err; err == nil {
		w.node.stat, w.node.exists = *stat, true
		w.err = w.node.unmarshal(data)
	}
	close(w.ready)
	if err == nil {
		<-changed
	}
	s.watches.mu.Lock()
	delete(s.watches.all, id)
	s.watches.mu.Unlock()
	close(w.changed)
}
