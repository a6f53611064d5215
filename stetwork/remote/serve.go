package remote

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"time"
	"unicode/utf8"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/admin"
	"github.com/stet-go/stet/internal/problem"
	"github.com/stet-go/stet/store"
)

const (
	maxBody = 2 << 20 // of a request, in bytes
	minRun  = 16      // bytes of a run's name
	maxRun  = 128

	maxNames = 1000   // of a take
	maxSteps = 10_000 // of a run

	// slotPatience is how long a take waits at least until another run can begin,
	// when there is something to run.
	slotPatience = time.Second
)

func (s *Server) routes() {
	s.mux = http.NewServeMux()
	s.mux.HandleFunc("GET /healthz", func(http.ResponseWriter, *http.Request) {})
	s.mux.HandleFunc("POST /runs/{run}/take", s.authorised(s.take))
	for what, end := range map[string]func(request) ending{
		"settle": func(q request) ending { return settled(q.Result, q.Error) },
		"return": func(q request) ending { return returned(q.Error, q.Interrupted) },
		"park":   func(q request) ending { return parked(q.Error) },
	} {
		s.mux.HandleFunc("POST /runs/{run}/"+what, s.authorised(s.known(func(w http.ResponseWriter, r *http.Request, ses *session, q request) {
			if what == "settle" && q.Result == nil && q.Error == "" {
				refuse(w, http.StatusBadRequest, "say the result, which may be null, or the error", store.None)
				return
			}
			if what == "return" && ses.open() {
				refuse(w, http.StatusConflict, "a step was begun: say first that it is undone, or its result", store.Running)
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
	Names       []string        `json:"names"`
	Wait        float64         `json:"wait"` // seconds
	Progress    *progress       `json:"progress"`
	Result      json.RawMessage `json:"result"`
	Error       string          `json:"error"`
	Name        string          `json:"name"`
	Call        string          `json:"call"`
	Once        bool            `json:"once"`
	Undone      bool            `json:"undone"`
	Interrupted bool            `json:"interrupted"`
}

type progress struct {
	Fraction float64 `json:"fraction"`
	Message  string  `json:"message"`
}

// parse refuses fields that it does not know: a misspelt "error" or "once" must not be
// taken for a success, or for a step that may be repeated.
func (q *request) parse(b []byte) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(q); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("there is more after the object")
	}
	return nil
}

// authorised lets requests with the token through, with their bodies.
func (s *Server) authorised(next func(http.ResponseWriter, *http.Request, request)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		if !admin.Bearer(r, s.o.Token) {
			w.Header().Set("WWW-Authenticate", admin.Challenge(r))
			refuse(w, http.StatusUnauthorized, "send the server's token as Authorization: Bearer TOKEN", store.None)
			return
		}
		if n := len(r.PathValue("run")); n < minRun || n > maxRun {
			refuse(w, http.StatusBadRequest, "a run's name is random and has 16 to 128 bytes", store.None)
			return
		}
		var q request
		b, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
		if _, large := errors.AsType[*http.MaxBytesError](err); large {
			refuse(w, http.StatusRequestEntityTooLarge, "a request has 2 MiB at most", store.None)
			return
		}
		if err == nil && len(b) > 0 {
			err = q.parse(b)
		}
		if err != nil || len(q.Names) > maxNames {
			refuse(w, http.StatusBadRequest, "the body must be a JSON object with the fields of the protocol, and 1000 names at most", store.None)
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
		if ses == nil || !ses.hasTaken() {
			refuse(w, http.StatusNotFound, "there is no such run here: it was not taken, or has ended long ago", store.None)
			return
		}
		next(w, r, ses, q)
	}
}

// take waits for something to do.
func (s *Server) take(w http.ResponseWriter, r *http.Request, q request) {
	name := r.PathValue("run")
	ses, fresh := s.session(r.Context(), name)
	switch {
	case ses == nil:
		refuse(w, http.StatusServiceUnavailable, "too many runs; ask again", store.None)
		return
	case !fresh && ses.hasTaken():
		s.again(w, r, ses)
		return
	case !fresh:
		refuse(w, http.StatusServiceUnavailable, "another request asks for this run; ask again", store.None)
		return
	}
	wait := time.Duration(min(max(q.Wait, 0), MaxWait.Seconds()) * float64(time.Second))
	ctx, cancel := context.WithTimeout(r.Context(), wait)
	defer cancel()
	s.asks(q.Names, wait)
	names := make(map[string]bool, len(q.Names))
	for _, name := range q.Names {
		names[name] = true
	}
	for r.Context().Err() == nil {
		it, found, arrived := s.next(names)
		if found {
			begun, err := s.begin(ctx, ses, it)
			switch {
			case begun && r.Context().Err() != nil && ses.unheard():
				refuse(w, http.StatusServiceUnavailable, "the request was given up; ask again", store.None)
				return
			case begun:
				s.again(w, r, ses)
				return
			case err == nil || stet.KindOf(err) == stet.KindInvalid: // it is not to be run, or not here
				ses = s.renew(r.Context(), name)
				continue
			}
			s.putBack(it)
			if stet.KindOf(err) != stet.KindClosed || !errors.Is(err, context.DeadlineExceeded) { // else no slot was free
				break
			}
		} else {
			select {
			case <-arrived:
				continue
			case <-ctx.Done():
			}
		}
		s.drop(name)
		w.WriteHeader(http.StatusNoContent)
		return
	}
	s.drop(name)
	refuse(w, http.StatusServiceUnavailable, "nothing can be taken now; ask again", store.None)
}

// again answers a take, also one that is repeated because the answer to the first
// was lost: it describes the run, if that goes on. One that has ended is not handed out, because it may have
// been given to another worker since.
func (s *Server) again(w http.ResponseWriter, r *http.Request, ses *session) {
	if run, payload, _ := ses.extend(); run != nil {
		describe(w, run, payload, ses.lease)
		return
	}
	s.refuse(w, r, ses)
}

// refuse answers a request about a run that has ended, when that is stored.
func (s *Server) refuse(w http.ResponseWriter, r *http.Request, ses *session) {
	select {
	case <-ses.over:
		s.state(w, r, ses, http.StatusConflict)
	case <-r.Context().Done():
		refuse(w, http.StatusServiceUnavailable, "not stored yet; ask again", store.None)
	}
}

// session returns the session of a name, and whether it is a new one; nil if there
// are too many.
func (s *Server) session(asks context.Context, name string) (ses *session, fresh bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ses, ok := s.runs[name]; ok {
		return ses, false
	}
	if len(s.runs)-len(s.past) >= maxLive || s.worker == nil {
		return nil, false
	}
	ses = newSession(asks, name)
	s.runs[name] = ses
	return ses, true
}

// renew gives a name another session, after an operation was not to be run. Only
// the request that the session is of does so.
func (s *Server) renew(asks context.Context, name string) *session {
	s.mu.Lock()
	defer s.mu.Unlock()
	ses := newSession(asks, name)
	s.runs[name] = ses
	return ses
}

// ended has a run remembered for a while, for requests that are repeated.
func (s *Server) ended(ses *session, id store.ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pending[id] == ses {
		delete(s.pending, id)
	}
	if s.runs[ses.name] != ses || !ses.hasTaken() {
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

// begin has the worker take an operation, for a session, as soon as fewer than
// Concurrency run: if that is not before slot ends, nothing is taken. It reports
// whether there is something to do; else the error is that of Worker.Do.
func (s *Server) begin(slot context.Context, ses *session, it stet.Item) (begun bool, err error) {
	s.mu.Lock()
	worker := s.worker
	_, begins := s.pending[it.ID]
	if !begins {
		s.pending[it.ID] = ses
	}
	s.mu.Unlock()
	if begins {
		return false, nil
	}
	// A worker that does not want to wait gets a slot that is free nevertheless.
	slot, cancel := context.WithTimeout(ses.asks, max(untilEnd(slot), slotPatience))
	ended := make(chan error, 1)
	go func() { // Worker.Shutdown waits for it
		defer cancel()
		err := worker.Do(slot, it)
		ses.forgo()
		s.ended(ses, it.ID)
		ended <- err
		close(ses.over)
	}()
	select {
	case <-ses.begun:
		return true, nil
	case err := <-ended:
		return ses.hasTaken(), err
	}
}

// untilEnd returns how long a context with a deadline has yet.
func untilEnd(ctx context.Context) time.Duration {
	end, _ := ctx.Deadline()
	return time.Until(end)
}

// description is what a worker is told about its run.
type description struct {
	ID      string          `json:"id"`
	Name    string          `json:"name"`
	Scope   string          `json:"scope,omitempty"`
	Scope64 []byte          `json:"scope_base64,omitempty"` // of what is no text: JSON would change it
	Key     string          `json:"key,omitempty"`
	Key64   []byte          `json:"key_base64,omitempty"`
	Attempt int             `json:"attempt"`
	Fence   int64           `json:"fence,string"` // text, because numbers of its size are rounded by much that reads JSON
	Lease   float64         `json:"lease"`        // seconds
	Payload json.RawMessage `json:"payload,omitempty"`
	Bytes   []byte          `json:"payload_base64,omitempty"`
}

// text returns s as text, or if it is none, its bytes.
func text(s string) (string, []byte) {
	if utf8.ValidString(s) {
		return s, nil
	}
	return "", []byte(s)
}

func describe(w http.ResponseWriter, run *stet.Run, payload []byte, lease time.Duration) {
	d := description{ID: run.ID().String(), Name: run.Op().Name, Attempt: run.Attempt(), Fence: run.Fence(), Lease: lease.Seconds()}
	d.Scope, d.Scope64 = text(run.Op().Scope)
	d.Key, d.Key64 = text(run.Op().Key)
	if json.Valid(payload) && utf8.Valid(payload) { // which not all readers of JSON forgive
		d.Payload = payload
	} else {
		d.Bytes = payload
	}
	answer(w, http.StatusOK, d)
}

func (s *Server) extend(w http.ResponseWriter, r *http.Request, ses *session, q request) {
	run, _, cancelling := ses.extend()
	if run == nil {
		s.refuse(w, r, ses)
		return
	}
	if q.Progress != nil && !cancelling {
		// What was not written down now is with the next.
		_ = run.Progress(r.Context(), q.Progress.Fraction, q.Progress.Message)
	}
	answer(w, http.StatusOK, map[string]bool{"cancelling": cancelling})
}

// step begins a step, or ends it.
func (s *Server) step(w http.ResponseWriter, r *http.Request, ses *session, q request) {
	begins := !q.Undone && q.Result == nil
	st := ses.begin(q.Name, q.Call, q.Once)
	switch {
	case st == nil:
		s.refuse(w, r, ses)
		return
	case begins && st.another(q.Call):
		refuse(w, http.StatusBadRequest, "this run has begun a step of that name before: each step needs a name of its own, also in a loop", store.None)
		return
	case begins:
		select {
		case <-st.begun:
			if !closed(st.over) {
				answer(w, http.StatusOK, map[string]bool{"done": false})
				return
			}
		case <-st.over:
		case <-r.Context().Done():
			refuse(w, http.StatusServiceUnavailable, "not noted down yet; ask again", store.None)
			return
		}
	default:
		st.say(word{q.Result, q.Undone})
	}
	select {
	case <-st.over:
	case <-r.Context().Done():
		refuse(w, http.StatusServiceUnavailable, "not noted down yet; ask again", store.None)
		return
	}
	switch {
	case st.err == nil:
		answer(w, http.StatusOK, map[string]any{"done": true, "result": st.result})
	case errors.Is(st.err, errUndone) && stet.KindOf(st.err) != stet.KindStore:
		ses.forget(q.Name)
		answer(w, http.StatusOK, map[string]bool{"done": false})
	case stet.KindOf(st.err) == stet.KindInvalid:
		ses.forget(q.Name)
		refuse(w, http.StatusBadRequest, st.err.Error(), store.None)
	default: // in doubt, or stale: the run is to be ended
		refuse(w, http.StatusConflict, st.err.Error(), store.Unknown)
	}
}

// end gives a run its end, and answers when that is durable.
func (s *Server) end(w http.ResponseWriter, r *http.Request, ses *session, e ending) {
	ses.say(e) // or find what was said before
	select {
	case <-ses.over:
		s.state(w, r, ses, http.StatusOK)
	case <-r.Context().Done():
		refuse(w, http.StatusServiceUnavailable, "not stored yet; ask again", store.None)
	}
}

// state tells what stands.
func (s *Server) state(w http.ResponseWriter, r *http.Request, ses *session, status int) {
	s.mu.Lock()
	engine := s.worker.Engine()
	s.mu.Unlock()
	now, err := engine.Lookup(r.Context(), ses.operation())
	st := now.Record.State
	switch {
	case err != nil:
		refuse(w, http.StatusServiceUnavailable, "the store cannot be asked; ask again", store.None)
	case status != http.StatusOK:
		refuse(w, status, "the run has ended", st)
	default:
		answer(w, status, map[string]string{"state": st.String()})
	}
}

func answer(w http.ResponseWriter, status int, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		refuse(w, http.StatusInternalServerError, "the answer is not JSON", store.None)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(b)
}

// refuse answers with a problem document.
func refuse(w http.ResponseWriter, status int, detail string, state store.State) {
	doc := map[string]any{"title": http.StatusText(status), "status": status, "detail": detail}
	if state != store.None {
		doc["state"] = state.String()
	}
	again := time.Duration(0)
	if status == http.StatusServiceUnavailable {
		again = time.Second
	}
	problem.Write(w, status, problem.Marshal(doc), again)
}
