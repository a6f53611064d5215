package simulate

import "sync/atomic"

// Crew is goroutines that play the clients of one schedule after another. It
// saves what a new one costs for each: above all its stack, which an engine
// makes large. The zero value is ready. It belongs to one bubble of
// testing/synctest and to the goroutine of it that calls Run; Dismiss it there
// before the bubble ends.
type Crew struct {
	parts chan told
	idle  atomic.Int64
}

// play has a client played.
func (c *Crew) play(t told) {
	if c == nil {
		go t.process.ask(t)
		return
	}
	if c.parts == nil {
		c.parts = make(chan told)
	}
	if c.idle.Load() == 0 {
		go c.member(t)
		return
	}
	c.idle.Add(-1)
	c.parts <- t
}

func (c *Crew) member(t told) {
	for ok := true; ok; t, ok = <-c.parts {
		t.process.ask(t)
		c.idle.Add(1)
	}
}

// Dismiss ends the crew's goroutines.
func (c *Crew) Dismiss() {
	if c.parts != nil {
		close(c.parts)
		c.parts = nil
	}
}
