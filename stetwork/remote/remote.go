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
//	      The payload is JSON, or in "payload_base64" if it is not; so are a scope and
//	      a key that are not UTF-8. What is not heard of for "lease" seconds is taken
//	      for dead.
//	  204 There was nothing to do for "wait" seconds, at most 60, or
//	      stetwork.Options.Concurrency operations were running all the while. Ask
//	      again.
//	  409 This run was taken, and has ended. Ask under a fresh name.
//	POST /runs/{run}/extend  {"progress": {"fraction": 0.5, "message": "…"}}
//	  200 {"cancelling": false}; when true, stop and settle: the lease grows no more.
//	POST /runs/{run}/settle  {"result": …}, which may be null, or {"error": "…"}
//	  200 {"state": "completed"}: what stands now, durably.
//	POST /runs/{run}/return  {"error": "…"}: nothing happened; it is run again later.
//	      With "interrupted": true, as of a worker that shuts down, at once, and the
//	      attempt does not count.
//	POST /runs/{run}/park    {"error": "…"}: it may have had its effect.
//	  200 {"state": "accepted"}
//	POST /runs/{run}/step    {"name": "charge", "once": true, "call": "…"}: begin a step
//	  200 {"done": false}: do it, and tell; or {"done": true, "result": …} of an
//	      earlier attempt.
//	  400 This run has begun a step of that name before, as in a loop. "call" is a
//	      random text, the same when the request is repeated, that tells the two
//	      apart: without it only a step is refused whose result this run has told.
//	POST /runs/{run}/step    {"name": "charge", "result": …}, or {"name": …, "undone": true}
//	  200 {"done": true, "result": …}, or {"done": false} when it is struck. A run has
//	      10,000 steps at most.
//	GET  /healthz            200, without a token
//
// Errors are problem documents (RFC 9457): 400 for what does not parse, or has fields that
// are not named here, 401, 404
// for a run that there is not, 409 for one that has ended or is in doubt (see its
// "state": what was to be written is not), 413, and 503 for what to try again.
package remote

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/misuse"
	"github.com/stet-go/stet/stetwork"
	"github.com/stet-go/stet/store"
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

	// interest is how long after a remote worker has asked for a name the store is
	// asked for it.
	interest = time.Minute

	// storePause is how long an operation waits that could not be looked at.
	storePause = time.Second
)

// Options configure a Server. Token is required.
type Options struct {
	// Token is what remote workers show. At least 16 bytes.
	Token string
	// Waiting is how many operations of each name wait in this process for a remote
	// worker; the store hands out others as soon as there is room. Default
	// DefaultWaiting.
	Waiting int
}

// Server is a stetwork.Queue of what remote workers run, and the http.Handler that
// they talk to.
type Server struct {
	o   Options
	mux *http.ServeMux

	mu      sync.Mutex
	worker  *stetwork.Worker
	names   map[string]bool
	asked   map[string]time.Time // when a remote worker has last asked for a name, or will have
	waiting map[string][]waiting // for remote workers, by name
	local   []stet.Item          // waiting to run in this process
	running int                  // of those that were
	listed  map[store.ID]bool    // of waiting and local
	nth     int                  // of what has begun to wait
	arrived chan struct{}        // closed when something has begun to wait
	runs    map[string]*session  // by their names
	past    []string             // those that have ended, oldest first
	pending map[store.ID]*session
}

// New returns a server without handlers. Wrong options are errors of kind
// stet.KindInvalid.
func New(o Options) (*Server, error) {
	if len(o.Token) < 16 {
		return nil, misuse.Errorf("stetwork/remote: Options.Token has %d bytes; it must have 16 at least", len(o.Token))
	}
	if o.Waiting < 0 {
		return nil, misuse.Errorf("stetwork/remote: Options.Waiting is negative: %d", o.Waiting)
	}
	if o.Waiting == 0 {
		o.Waiting = DefaultWaiting
	}
	s := &Server{o: o, names: make(map[string]bool), asked: make(map[string]time.Time), waiting: make(map[string][]waiting), listed: make(map[store.ID]bool), arrived: make(chan struct{}),
		runs: make(map[string]*session), pending: make(map[store.ID]*session)}
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
		return misuse.Errorf("stetwork/remote: a server needs a worker, and the same one for all names")
	}
	if err := register(w, name, s.run); err != nil {
		return err
	}
	if s.worker == nil {
		s.worker = w
	}
	s.names[name] = true
	return nil
}

// Enqueue implements stetwork.Queue: it keeps what remote workers are to run until
// one asks, and has the Worker run the rest in this process. It waits for neither.
func (s *Server) Enqueue(_ context.Context, items []stet.Item) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.worker == nil {
		return errors.New("stetwork/remote: no handler is registered")
	}
	for _, it := range items {
		if s.listed[it.ID] || s.room(it.Name) == 0 {
			continue
		}
		s.listed[it.ID] = true
		if !s.names[it.Name] {
			s.local = append(s.local, it)
			continue
		}
		s.nth++
		s.waiting[it.Name] = append(s.waiting[it.Name], waiting{it, s.nth})
	}
	s.tell()
	s.runLocal()
	return nil
}

// waiting is an operation that waits for a remote worker.
type waiting struct {
	stet.Item
	nth int // of those that have begun to wait
}

// tell has takes look for what waits. The caller holds s.mu.
func (s *Server) tell() {
	close(s.arrived)
	s.arrived = make(chan struct{})
}

// limit is how many operations of a name wait here, or of all local names together. The
// caller holds s.mu.
func (s *Server) limit(name string) int {
	if s.names[name] {
		return s.o.Waiting
	}
	return 2 * s.worker.Concurrency() // no more, as the store lets names take turns
}

// room is how many operations of a name may begin to wait. The caller holds s.mu.
func (s *Server) room(name string) int {
	wait := len(s.local)
	if s.names[name] {
		wait = len(s.waiting[name])
	}
	return max(s.limit(name)-wait, 0)
}

// left has more handed out, when half of what can wait is left. The caller holds s.mu.
func (s *Server) left(name string) {
	if s.room(name) == s.limit(name)-s.limit(name)/2 {
		s.worker.Engine().Wake()
	}
}

// runLocal has the Worker run what waits for this process, as many at a time as it
// runs. The caller holds s.mu.
func (s *Server) runLocal() {
	for ; len(s.local) > 0 && s.running < s.worker.Concurrency(); s.running++ {
		it := s.local[0]
		s.local = s.local[1:]
		delete(s.listed, it.ID)
		s.left(it.Name)
		go func() { // Worker.Shutdown waits for it
			err := s.worker.Do(context.Background(), it)
			if stet.KindOf(err) == stet.KindStore {
				time.AfterFunc(storePause, func() { s.ranLocal(it) })
				return
			}
			s.ranLocal() // what it has not run is handed out again
		}()
	}
}

// ranLocal goes on after an operation of this process, which may have to wait again.
func (s *Server) ranLocal(again ...stet.Item) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running--
	for _, it := range again {
		if !s.listed[it.ID] {
			s.local = append(s.local, it)
			s.listed[it.ID] = true
		}
	}
	s.runLocal()
}

// Room says how many operations of each of Names may begin to wait.
func (s *Server) Room() int {
	room := 0
	names := s.Names()
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, name := range names {
		if r := s.room(name); i == 0 || r < room {
			room = r
		}
	}
	return room
}

// Names are those of the operations for which there is room, and that a worker runs: this
// process, or remote workers that have asked for them not long ago. Others are left to
// other processes.
func (s *Server) Names() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.worker == nil {
		return nil
	}
	return slices.DeleteFunc(s.worker.Names(), func(name string) bool {
		return s.names[name] && time.Since(s.asked[name]) > interest || s.room(name) == 0
	})
}

// asks notes that a remote worker asks for names, for a time.
func (s *Server) asks(names []string, wait time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	until, first := now.Add(wait), false
	for _, name := range names {
		if s.names[name] && until.After(s.asked[name]) {
			first = first || now.Sub(s.asked[name]) > interest
			s.asked[name] = until
		}
	}
	if first { // what waits is asked for now, and not after a poll
		s.worker.Engine().Wake()
	}
}

// next returns the item of one of the names that has waited longest, and then waits no
// longer; or what tells that there may be one.
func (s *Server) next(names map[string]bool) (it stet.Item, found bool, arrived <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	first := waiting{}
	for name := range names {
		if list := s.waiting[name]; len(list) > 0 && (!found || list[0].nth < first.nth) {
			first, found = list[0], true
		}
	}
	if !found {
		return it, false, s.arrived
	}
	s.waiting[first.Name] = s.waiting[first.Name][1:]
	delete(s.listed, first.ID)
	s.left(first.Name)
	return first.Item, true, nil
}

// putBack has an item that was not taken wait again, before the others.
func (s *Server) putBack(it stet.Item) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.listed[it.ID] {
		list := s.waiting[it.Name]
		first := s.nth
		if len(list) > 0 {
			first = list[0].nth
		}
		s.waiting[it.Name] = slices.Insert(list, 0, waiting{it, first})
		s.listed[it.ID] = true
		s.tell()
	}
}
