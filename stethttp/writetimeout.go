package stethttp

import (
	"context"
	"errors"
	"net/http"
	"time"
)

const (
	maxWriteWait = 30 * time.Second // how long a client may read nothing of a stream
	slow         = time.Second      // a write that takes as long waits for the client
)

// errStalled ends a stream whose client does not take it.
var errStalled = errors.New("stethttp: the client takes the response too slowly")

// attend sets the run of a capture. A client that reads a stream slowly is disconnected after half
// of the run's time. Otherwise it could hold the handler until the run's end, and the operation
// would be unknown. A WriteTimeout of the server replaces this limit.
func (c *capture) attend(run context.Context, r *http.Request) {
	c.ctx = run
	server, _ := r.Context().Value(http.ServerContextKey).(*http.Server)
	if end, ok := run.Deadline(); ok && server != nil && server.WriteTimeout <= 0 {
		c.timed, c.end, c.patience = true, end, max(time.Until(end)/2, slow)
	}
}

// push calls do, which sends to the client and may block.
func (c *capture) push(do func() error) error {
	if !c.timed || c.done {
		return do()
	}
	rc, begun := http.NewResponseController(c.w), time.Now()
	within := min(maxWriteWait, c.patience, max(c.end.Sub(begun), slow))
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
