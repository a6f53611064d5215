package zookeeper

import (
	"context"
	"fmt"
	"math"
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

	mu       sync.Mutex
	offset   time.Duration // from local time to the leader's, since 1970
	taken    time.Duration // local time of the last sample; 0 before the first
	next     *touch        // that has not begun
	inFlight bool          // a touch has begun
	turn     sync.Mutex    // of writing the znode
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

// read returns the estimate and the age of the last sample.
func (c *clock) read() (now millis, age time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	local := c.local()
	if age = local - c.taken; c.taken == 0 {
		age = math.MaxInt64
	}
	return (c.offset + local).Milliseconds(), age
}

// now returns the time on the store's clock. It takes a new sample in good time, so that calls rarely wait.
func (s *Store) now(ctx context.Context) (millis, error) {
	now, age := s.clock.read()
	if age > sampleAge {
		if err := s.touch(ctx); err != nil {
			return 0, err
		}
		now, _ = s.clock.read()
	} else if age > sampleAge/2 {
		s.begin(true)
	}
	return now, nil
}

// touch writes the znode "clock". All writes that were acknowledged before the call are then visible
// to the reads of this session. Calls that wait for their turn share the next write.
func (s *Store) touch(ctx context.Context) error {
	t := s.begin(false)
	select {
	case <-t.done:
		return t.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// begin returns the next touch, unless one in flight is enough.
func (s *Store) begin(orInFlight bool) *touch {
	c := &s.clock
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.next != nil || orInFlight && c.inFlight {
		return c.next
	}
	t := &touch{done: make(chan struct{})}
	if s.closed.Load() {
		t.err = errClosed
		close(t.done)
		return t
	}
	c.next = t
	s.wg.Go(func() { s.write(t) })
	return t
}

// write makes the write of t when that of an earlier touch has ended.
func (s *Store) write(t *touch) {
	c := &s.clock
	c.turn.Lock()
	defer c.turn.Unlock()
	c.mu.Lock()
	c.next, c.inFlight = nil, true
	c.mu.Unlock()
	sent := c.local()
	stat, err := s.conn.Set(s.root+"/clock", nil, -1)
	if err != nil {
		t.err = fmt.Errorf("zookeeper: write %s/clock: %w", s.root, err)
	} else {
		c.sample(stat.Mtime, sent)
	}
	c.mu.Lock()
	c.inFlight = false
	c.mu.Unlock()
	close(t.done)
}
