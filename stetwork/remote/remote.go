// Package remote lets workers in other languages run accepted operations, over
// plain HTTP: they take one, say now and then that they are alive, and settle it.
//
//	server, err := remote.New(remote.Options{Token: token})
//	worker, err := stetwork.New(engine, stetwork.Options{Queue: server})
//	err = server.Handle(worker, "ship")
//	// worker.Run(ctx), and http.ListenAndServe(addr, server)
//
// Attempts, backoff, cancellation and what becomes of dead runs are the
// stetwork.Worker's, as for handlers in this process, which may be registered with
// the same Worker. The claim is this process's too; a remote worker that is not
// heard of for the lease of the operation's class is taken for dead.
//
// # Protocol
//
// Requests are POSTs with a JSON object and "Authorization: Bearer TOKEN". The
// worker makes up a fresh random name for each run that it asks for, so that it may
// repeat any request whose answer it has not heard:
//
//	POST /runs/{run}/take    {"names": ["ship"], "wait": 20}
//	  200 {"id", "name", "scope", "key", "attempt", "fence", "lease": 30, "payload": …}
//	      The payload is JSON, or in "payload_base64" if it is not. What is not heard
//	      of for "lease" seconds is taken for dead.
//	  204 There was nothing to do for "wait" seconds, at most 60. Ask again.
//	POST /runs/{run}/extend  {"progress": {"fraction": 0.5, "message": "…"}}
//	  200 {"cancelling": false}; when true, stop and settle: the lease grows no more.
//	POST /runs/{run}/settle  {"result": …} or {"error": "…"}
//	  200 {"state": "completed"}: what stands now, durably.
//	POST /runs/{run}/return  {"error": "…"}: nothing happened; it is run again later.
//	POST /runs/{run}/park    {"error": "…"}: nobody can know what happened.
//	  200 {"state": "accepted"}
//	POST /runs/{run}/step    {"name": "charge", "once": true}: begin a step
//	  200 {"done": false}: do it, and tell; or {"done": true, "result": …} of an
//	      earlier attempt.
//	POST /runs/{run}/step    {"name": "charge", "result": …}, or {"name": …, "undone": true}
//	  200 {"done": true, "result": …}, or {"done": false} when it is struck.
//	GET  /healthz            200, without a token
//
// Errors are problem documents (RFC 9457): 400 for what does not parse, 401, 404
// for a run that there is not, 409 for one that has ended or is in doubt (see its
// "state": what was to be written is not), 413, and 503 for what to try again.
package remote

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stetwork"
)

const (
	// MaxWait is how long a take waits at most.
	MaxWait = time.Minute
	// DefaultWaiting is the default of Options.Waiting.
	DefaultWaiting = 1000

	// remembered is how many runs that have ended are known, for requests that
	// are repeated.
	remembered = 10_000
	// maxLive bounds the others, and the takes that wait.
	maxLive = 1000
)

// Options configure a Server. Token is required.
type Options struct {
	// Token is what remote workers show. At least 16 bytes.
	Token string
	// Waiting is how many operations wait in this process for a remote worker;
	// the store hands out others again later. Default DefaultWaiting.
	Waiting int
}

// Server is a stetwork.Queue of what remote workers run, and the http.Handler that
// they talk to.
type Server struct {
	o   Options
	mux *http.ServeMux

	mu      sync.Mutex
	worker  *stetwork.Worker
	local   chan struct{} // a token for each operation that runs in this process
	names   map[string]bool
	waiting []stet.Item
	listed  map[stet.ID]bool    // of waiting
	arrived chan struct{}       // closed when something has begun to wait
	runs    map[string]*session // by their names
	past    []string            // those that have ended, oldest first
	pending map[stet.ID]*session
}

// New returns a server without handlers. Wrong options are errors of kind
// stet.ErrInvalid.
func New(o Options) (*Server, error) {
	if len(o.Token) < 16 {
		return nil, invalid("Options.Token has %d bytes; it must have 16 at least", len(o.Token))
	}
	if o.Waiting < 0 {
		return nil, invalid("Options.Waiting is negative: %d", o.Waiting)
	}
	if o.Waiting == 0 {
		o.Waiting = DefaultWaiting
	}
	s := &Server{o: o, names: make(map[string]bool), listed: make(map[stet.ID]bool), arrived: make(chan struct{}),
		runs: make(map[string]*session), pending: make(map[stet.ID]*session)}
	s.routes()
	return s, nil
}

// Handle has remote workers run the operations of that name, as stetwork.Handle
// has a function do: an operation is run again only if its worker returns it.
func (s *Server) Handle(w *stetwork.Worker, name string) error {
	return s.handle(w, name, stetwork.Handle[[]byte, json.RawMessage])
}

// HandleIdempotent is Handle for workers that may run an operation again whatever
// became of an earlier run, as stetwork.HandleIdempotent.
func (s *Server) HandleIdempotent(w *stetwork.Worker, name string) error {
	return s.handle(w, name, stetwork.HandleIdempotent[[]byte, json.RawMessage])
}

func (s *Server) handle(w *stetwork.Worker, name string, register func(*stetwork.Worker, string, func(context.Context, []byte) (json.RawMessage, error)) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w == nil || s.worker != nil && s.worker != w {
		return invalid("a server needs a worker, and the same one for all names")
	}
	if err := register(w, name, s.run); err != nil {
		return err
	}
	if s.worker == nil {
		s.worker, s.local = w, make(chan struct{}, w.Concurrency())
	}
	s.names[name] = true
	return nil
}

// Enqueue implements stetwork.Queue: it keeps what remote workers are to run until
// one asks, and has the Worker run the rest in this process.
func (s *Server) Enqueue(ctx context.Context, items []stet.Item) error {
	for _, it := range items {
		s.mu.Lock()
		w, ours := s.worker, s.names[it.Name]
		if ours && !s.listed[it.ID] && len(s.waiting) < s.o.Waiting {
			s.waiting = append(s.waiting, it)
			s.listed[it.ID] = true
			close(s.arrived)
			s.arrived = make(chan struct{})
		}
		s.mu.Unlock()
		if ours {
			continue
		}
		if w == nil {
			return errors.New("stetwork/remote: no handler is registered")
		}
		select {
		case s.local <- struct{}{}:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		go func() { // Worker.Shutdown waits for it
			defer func() { <-s.local }()
			_ = w.Do(ctx, it) // else it is handed out again
		}()
	}
	return nil
}

// next returns an item of one of the names, which then waits no longer; or what
// tells that there may be one.
func (s *Server) next(names []string) (it stet.Item, found bool, arrived <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, it := range s.waiting {
		for _, name := range names {
			if it.Name == name {
				s.waiting = append(s.waiting[:i], s.waiting[i+1:]...)
				delete(s.listed, it.ID)
				return it, true, nil
			}
		}
	}
	return it, false, s.arrived
}

func invalid(format string, args ...any) error {
	return &stet.Error{Kind: stet.ErrInvalid, Execution: stet.NotExecuted, Cause: fmt.Errorf("stetwork/remote: "+format, args...)}
}
