package stettest

import (
	"context"
	"net/http"
	"sync"
	"time"
)

// faults is a handler that applies planned faults before and in another one.
type faults struct {
	next   http.Handler
	header string

	mu      sync.Mutex
	planned map[string]*fault // by key
}

// fault is planned for the requests of a key.
type fault struct {
	arrive  int           // requests that must have arrived before the first continues
	arrived chan struct{} // closed then
	entered chan struct{} // closed when a request has entered; nil if no caller waits
	abort   bool          // the next response is lost
	running int
}

// of returns the fault of a key. The caller holds mu.
func (f *faults) of(key string) *fault {
	if f.planned[key] == nil {
		f.planned[key] = &fault{arrived: make(chan struct{})}
	}
	return f.planned[key]
}

// meet lets requests of a key continue when n have arrived.
func (f *faults) meet(key string, n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.of(key).arrive = n
}

// plan plans a fault of the next request of a key. The channel is closed when the request has entered.
func (f *faults) plan(key string, abort bool) (entered <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	planned := f.of(key)
	planned.abort, planned.entered = abort, make(chan struct{})
	return planned.entered
}

// wait waits until no request of a key runs, at most for a time.
func (f *faults) wait(key string, most time.Duration) {
	for end := time.Now().Add(most); time.Now().Before(end); time.Sleep(time.Millisecond) {
		f.mu.Lock()
		running := f.of(key).running
		f.mu.Unlock()
		if running == 0 {
			return
		}
	}
}

// ServeHTTP implements http.Handler.
func (f *faults) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	planned := f.of(r.Header.Get(f.header))
	planned.running++
	defer func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		planned.running--
	}()
	if planned.arrive > 0 {
		if planned.arrive--; planned.arrive == 0 {
			close(planned.arrived)
		}
		f.mu.Unlock()
		select {
		case <-planned.arrived:
		case <-r.Context().Done():
		}
		f.mu.Lock()
	}
	if planned.entered != nil {
		close(planned.entered)
		planned.entered = nil
	}
	if planned.abort {
		planned.abort = false
		w = aborting{w}
	}
	f.mu.Unlock()
	f.next.ServeHTTP(w, r)
}

// aborting loses the response.
type aborting struct{ http.ResponseWriter }

func (aborting) WriteHeader(status int) {
	if status >= http.StatusOK {
		panic(http.ErrAbortHandler)
	}
}
func (aborting) Write([]byte) (int, error) { panic(http.ErrAbortHandler) }
func (aborting) Flush()                    { panic(http.ErrAbortHandler) }

// disconnected lets the client leave while its request runs, and retries.
func (c *checker) disconnected() {
	c.t.Helper()
	const name = "the client disconnects"
	op := c.begin()
	ctx, leave := context.WithCancel(c.t.Context())
	defer leave()
	if c.faults != nil {
		entered := c.faults.plan(op.key, false)
		answered := c.start(ctx, op)
		select {
		case <-entered:
		case <-answered:
		}
	} else {
		wait(c.start(ctx, op), c.typical/2)
	}
	leave()
	c.count(name, op, c.final(name, op))
}

// lost loses a response.
func (c *checker) lost() {
	c.t.Helper()
	const name = "the response is lost"
	op := c.begin()
	c.faults.plan(op.key, true)
	c.send(c.t.Context(), op.n, op.key)
	c.count(name, op, c.final(name, op))
}
