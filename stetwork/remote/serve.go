package remote

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/desk"
)

const (
	maxBody = 2 << 20 // of a request, in bytes
	minRun  = 16      // bytes of a run's name
	maxRun  = 128
)

func (s *Server) routes() {
	s.mux = http.NewServeMux()
	s.mux.HandleFunc("GET /healthz", func(http.ResponseWriter, *http.Request) {})
	s.mux.HandleFunc("POST /runs/{run}/take", s.authorised(s.take))
	for what, end := range map[string]func(request) ending{
		"settle": func(q request) ending { return settled(q.Result, q.Error) },
		"return": func(q request) ending { return returned(q.Error) },
		"park":   func(q request) ending { return parked(q.Error) },
	} {
		s.mux.HandleFunc("POST /runs/{run}/"+what, s.authorised(s.known(func(w http.ResponseWriter, r *http.Request, ses *session, q request) {
			if what == "return" && ses.open() {
				problem(w, http.StatusConflict, "a step was begun: say first that it is undone, or its result", stet.Running)
				return
			}
			s.end(w, r, ses, end(q))
		})))
	}
	s.mux.HandleFunc("POST /runs/{run}/extend", s.authorised(s.known(s.extend)))
	s.mux.HandleFunc("POST /runs/{run}/step", s.authorised(s.known(s.step)))
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.mux.ServeHTTP(w, r) }

// request is what any request may say.
type request struct {
	Names    []string        `json:"names"`
	Wait     float64         `json:"wait"` // seconds
	Progress *progress       `json:"progress"`
	Result   json.RawMessage `json:"result"`
	Error    string          `json:"error"`
	Name     string          `json:"name"`
	Once     bool            `json:"once"`
	Undone   bool            `json:"undone"`
}

type progress struct {
	Fraction float64 `json:"fraction"`
	Message  string  `json:"message"`
}

// authorised lets requests with the token through, with their bodies.
func (s *Server) authorised(next func(http.ResponseWriter, *http.Request, request)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		if !desk.Bearer(r, s.o.Token) {
			w.Header().Set("WWW-Authenticate", desk.Challenge(r))
			problem(w, http.StatusUnauthorized, "send the server's token as Authorization: Bearer TOKEN", stet.None)
			return
		}
		if n := len(r.PathValue("run")); n < minRun || n > maxRun {
			problem(w, http.StatusBadRequest, "a run's name is random and has 16 to 128 bytes", stet.None)
			return
		}
		var q request
		b, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
		if _, large := errors.AsType[*http.MaxBytesError](err); large {
			problem(w, http.StatusRequestEntityTooLarge, "a request has 2 MiB at most", stet.None)
			return
		}
		if err == nil && len(b) > 0 {
			err = json.Unmarshal(b, &q)
		}
		if err != nil {
			problem(w, http.StatusBadRequest, "the body must be a JSON object", stet.None)
			return
		}
		next(w, r, q)
	}
}

// known finds the run that a request is about, once it has begun.
func (s *Server) known(next func(http.ResponseWriter, *http.Request, *session, request)) func(http.ResponseWriter, *http.Request, request) {
	return func(w http.ResponseWriter, r *http.Request, q request) {
		s.mu.Lock()
		ses := s.runs[r.PathValue("run")]
		s.mu.Unlock()
		if ses == nil || ses.claimed() == nil {
			problem(w, http.StatusNotFound, "there is no such run here: it was not taken, or has ended long ago", stet.None)
			return
		}
		next(w, r, ses, q)
	}
}

func (ses *session) claimed() *stet.Run {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	return ses.run
}

// take waits for something to do.
func (s *Server) take(w http.ResponseWriter, r *http.Request, q request) {
	name := r.PathValue("run")
	ses, fresh := s.session(name)
	switch {
	case ses == nil:
		problem(w, http.StatusServiceUnavailable, "too many runs; ask again", stet.None)
		return
	case !fresh && ses.claimed() != nil: // the answer to the first time was lost
		describe(w, ses)
		return
	case !fresh:
		problem(w, http.StatusServiceUnavailable, "another request asks for this run; ask again", stet.None)
		return
	}
	wait := time.Duration(min(max(q.Wait, 0), MaxWait.Seconds()) * float64(time.Second))
	over := time.NewTimer(wait)
	defer over.Stop()
	for {
		it, found, arrived := s.next(q.Names)
		if found {
			if s.begin(r.Context(), ses, it) {
				describe(w, ses)
				return
			}
			if ses = s.renew(name); ses == nil {
				problem(w, http.StatusServiceUnavailable, "too many runs; ask again", stet.None)
				return
			}
			continue
		}
		select {
		case <-arrived:
			continue
		case <-over.C:
		case <-r.Context().Done():
		}
		s.drop(name)
		w.WriteHeader(http.StatusNoContent)
		return
	}
}

// session returns the session of a name, and whether it is a new one; nil if there
// are too many.
func (s *Server) session(name string) (ses *session, fresh bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ses, ok := s.runs[name]; ok {
		return ses, false
	}
	if len(s.runs)-len(s.past) >= maxLive || s.worker == nil {
		return nil, false
	}
	ses = newSession(name)
	s.runs[name] = ses
	return ses, true
}

// renew gives a name another session, after an operation was not to be run.
func (s *Server) renew(name string) *session {
	s.drop(name)
	ses, _ := s.session(name)
	return ses
}

// ended has a run remembered for a while, for requests that are repeated.
func (s *Server) ended(ses *session, id stet.ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pending[id] == ses {
		delete(s.pending, id)
	}
	if s.runs[ses.name] != ses || ses.claimed() == nil {
		return
	}
	s.past = append(s.past, ses.name)
	if len(s.past) > remembered {
		delete(s.runs, s.past[0])
		s.past = s.past[1:]
	}
}

func (s *Server) drop(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.runs, name)
}

// begin has the worker take an operation, for a session. It reports whether there
// is something to do.
func (s *Server) begin(ctx context.Context, ses *session, it stet.Item) bool {
	s.mu.Lock()
	worker := s.worker
	_, begins := s.pending[it.ID]
	if !begins {
		s.pending[it.ID] = ses
	}
	s.mu.Unlock()
	if begins {
		return false
	}
	go func() { // Worker.Shutdown waits for it
		_ = worker.Do(context.WithoutCancel(ctx), it) // else it is handed out again
		close(ses.over)
		s.ended(ses, it.ID)
	}()
	select {
	case <-ses.begun:
	case <-ses.over:
		return ses.claimed() != nil
	}
	if ctx.Err() != nil { // nobody has heard of it
		ses.say(ending{err: errUnheard})
	}
	return true
}

// description is what a worker is told about its run.
type description struct {
	ID      string          `json:"id"`
	Name    string          `json:"name"`
	Scope   string          `json:"scope"`
	Key     string          `json:"key"`
	Attempt int             `json:"attempt"`
	Fence   int64           `json:"fence,string"` // text, because numbers of its size are rounded by much that reads JSON
	Lease   float64         `json:"lease"`        // seconds
	Payload json.RawMessage `json:"payload,omitempty"`
	Bytes   []byte          `json:"payload_base64,omitempty"`
}

func describe(w http.ResponseWriter, ses *session) {
	run := ses.claimed()
	d := description{ID: run.ID().String(), Name: run.Work().Name, Scope: run.Scope(), Key: run.Key(), Attempt: run.Attempt(), Fence: run.Fence(), Lease: ses.lease.Seconds()}
	if payload := run.Work().Payload; json.Valid(payload) {
		d.Payload = payload
	} else {
		d.Bytes = payload
	}
	answer(w, http.StatusOK, d)
}

func (s *Server) extend(w http.ResponseWriter, r *http.Request, ses *session, q request) {
	select {
	case <-ses.over:
		s.state(w, r, ses, http.StatusConflict)
		return
	default:
	}
	cancelling := ses.extend()
	if q.Progress != nil && !cancelling {
		// What was not written down now is with the next.
		_ = ses.claimed().Progress(r.Context(), q.Progress.Fraction, q.Progress.Message)
	}
	answer(w, http.StatusOK, map[string]bool{"cancelling": cancelling})
}

// step begins a step, or ends it.
func (s *Server) step(w http.ResponseWriter, r *http.Request, ses *session, q request) {
	kind := stet.StepIdempotent
	if q.Once {
		kind = stet.StepOnce
	}
	st := ses.begin(q.Name, kind)
	if q.Undone || q.Result != nil {
		st.say(word{q.Result, q.Undone})
	} else {
		select {
		case <-st.begun:
			answer(w, http.StatusOK, map[string]bool{"done": false})
			return
		case <-st.over:
		case <-r.Context().Done():
			problem(w, http.StatusServiceUnavailable, "not noted down yet; ask again", stet.None)
			return
		}
	}
	select {
	case <-st.over:
	case <-r.Context().Done():
		problem(w, http.StatusServiceUnavailable, "not noted down yet; ask again", stet.None)
		return
	}
	switch {
	case st.err == nil:
		answer(w, http.StatusOK, map[string]any{"done": true, "result": st.result})
	case errors.Is(st.err, errUndone) && !errors.Is(st.err, stet.ErrStore):
		ses.forget(q.Name)
		answer(w, http.StatusOK, map[string]bool{"done": false})
	case errors.Is(st.err, stet.ErrInvalid):
		ses.forget(q.Name)
		problem(w, http.StatusBadRequest, st.err.Error(), stet.None)
	default: // in doubt, or stale: the run is to be ended
		problem(w, http.StatusConflict, st.err.Error(), stet.Unknown)
	}
}

// end gives a run its end, and answers when that is durable.
func (s *Server) end(w http.ResponseWriter, r *http.Request, ses *session, e ending) {
	ses.say(e) // or find what was said before
	select {
	case <-ses.over:
		s.state(w, r, ses, http.StatusOK)
	case <-r.Context().Done():
		problem(w, http.StatusServiceUnavailable, "not stored yet; ask again", stet.None)
	}
}

// state tells what stands.
func (s *Server) state(w http.ResponseWriter, r *http.Request, ses *session, status int) {
	s.mu.Lock()
	engine := s.worker.Engine()
	s.mu.Unlock()
	now, err := engine.Lookup(r.Context(), ses.claimed().ID())
	st := now.Record.State
	switch {
	case err != nil:
		problem(w, http.StatusServiceUnavailable, "the store cannot be asked; ask again", stet.None)
	case status != http.StatusOK:
		problem(w, status, "the run has ended", st)
	default:
		answer(w, status, map[string]string{"state": st.String()})
	}
}

func answer(w http.ResponseWriter, status int, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		problem(w, http.StatusInternalServerError, "the answer is not JSON", stet.None)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(b)
}

// problem answers with a problem document (RFC 9457).
func problem(w http.ResponseWriter, status int, detail string, state stet.State) {
	doc := map[string]any{"title": http.StatusText(status), "status": status, "detail": detail}
	if state != stet.None {
		doc["state"] = state.String()
	}
	if status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "1")
	}
	b, _ := json.Marshal(doc) // strings and numbers
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	_, _ = w.Write(b)
}
