package stethttp

import (
	"context"
	"errors"
	"net/http"
	"time"
)

const (
	maxStall = 30 * time.Second // how long a client may take nothing of what is streamed to it
	slow     = time.Second      // a write that takes as long is one that waits for the client
)

// errStalled ends a stream whose client does not take it.
var errStalled = errors.New("stethttp: the client takes the response too slowly")

// attend makes a capture that of a run: a client that takes a stream slowly, or
// not, gets half of the run's time, and is then cut off. Otherwise it could
// hold the handler until the run is over, and the operation would be unknown. A
// server with a WriteTimeout has said itself how long a client may take.
func (c *capture) attend(run context.Context, r *http.Request) {
	c.ctx = run
	server, _ := r.Context().Value(http.ServerContextKey).(*http.Server)
	if end, ok := run.Deadline(); ok && server != nil && server.WriteTimeout <= 0 {
		c.timed, c.end, c.patience = true, end, max(time.Until(end)/2, slow)
	}
}

// push passes something on to the client with do, which may wait for it.
func (c *capture) push(do func() error) error {
	if !c.timed || c.done {
		return do()
	}
	rc, begun := http.NewResponseController(c.w), time.Now()
	within := min(maxStall, c.patience, max(c.end.Sub(begun), slow))
	if c.patience > 0 && rc.SetWriteDeadline(begun.Add(within)) != nil {
		c.timed = false // a writer around cannot
		return do()
	}
	err := errStalled
	if c.patience > 0 {
		err = do()
		if took := time.Since(begun); took >= slow {
			c.patience -= took
		}
	}
	if err != nil {
		cutOff(c.w)
		return err
	}
	_ = rc.SetWriteDeadline(time.Time{})
	return nil
}
