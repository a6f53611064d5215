package zookeeper

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// millis is a time of the store: milliseconds since 1970.
type millis = int64

// sampleAge is how old the clock's last sample may be. In that time a computer's clock drifts by
// less than a millisecond.
const sampleAge = time.Second

// clock estimates the leader's time.
type clock struct {
	begun time.Time // local times count from it, monotonically

	mu     sync.Mutex
	offset time.Duration // from local time to the leader's, since 1970
	taken  time.Duration // local time of the last sample; 0 before the first
	next   *touch        // that has not begun
	turn   sync.Mutex    // of writing the znode
}

// touch is a write of the znode "clock", for all calls that wait for it.
type touch struct {
	done chan struct{}
	err  error
}

func (c *clock) local() time.Duration { return time.Since(c.begun) }

// sample takes the mtime of a write, which was sent at that local time and has been acknowledged. The
// leader's time is now from mtime to mtime plus the round trip. An estimate within these limits
// stays: then the clock does not go back.
func (c *clock) sample(mtime millis, sent time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.local()
	least := time.Duration(mtime) * time.Millisecond
	greatest := least + now - sent + time.Millisecond
	if was := c.offset + now; c.taken == 0 || was < least || was > greatest {
		c.offset = least - now
	}
	c.taken = now
}

// read returns the estimate, and whether it is young enough.
func (c *clock) read() (now millis, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	local := c.local()
	return (c.offset + local).Milliseconds(), c.taken != 0 && local-c.taken <= sampleAge
}

// now returns the time on the store's clock.
func (s *Store) now(ctx context.Context) (millis, error) {
	now, ok := s.clock.read()
	if ok {
		return now, nil
	}
	if err := s.touch(ctx); err != nil {
		return 0, err
	}
	now, _ = s.clock.read()
	return now, nil
}

// touch writes the znode "clock". All writes that were acknowledged before the call are then visible
// to the reads of this session. Calls that wait for their turn share the next write.
func (s *Store) touch(ctx context.Context) error {
	if s.closed.Load() {
		return errClosed
	}
	c := &s.clock
	c.mu.Lock()
	t := c.next
	if t == nil {
		t = &touch{done: make(chan struct{})}
		c.next = t
		s.wg.Go(func() { s.write(t) })
	}
	c.mu.Unlock()
	select {
	case <-t.done:
		return t.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// write makes the write of t when that of an earlier touch has ended.
func (s *Store) write(t *touch) {
	c := &s.clock
	c.turn.Lock()
	defer c.turn.Unlock()
	c.mu.Lock()
	c.next = nil
	c.mu.Unlock()
	sent := c.local()
	stat, err := s.conn.Set(s.root+"/clock", nil, -1)
	if err != nil {
		t.err = fmt.Errorf("zookeeper: write %s/clock: %w", s.root, err)
	} else {
		c.sample(stat.Mtime, sent)
	}
	close(t.done)
}
