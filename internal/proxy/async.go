package proxy

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/stetwork"
	"github.com/stet-go/stet/store"
)

// DefaultStatus is where the states of accepted operations are served.
const DefaultStatus = "/operations/"

// Async accepts a route's requests with 202 and the URL of a status. A worker sends them to
// the service later: see Parts.
type Async struct {
	Status           string   `yaml:"status"`
	NoCancel         bool     `yaml:"no_cancel"`
	Running          string   `yaml:"running" oneof:"accepted conflict"`
	RepeatAcceptance bool     `yaml:"repeat_acceptance"`
	RetryAfter       Duration `yaml:"retry_after"`
	Wait             Duration `yaml:"wait"`
	Headers          []string `yaml:"headers"`

	Repeatable  bool     `yaml:"repeatable"`
	Concurrency int      `yaml:"concurrency"`
	MaxAttempts int      `yaml:"max_attempts"`
	MinBackoff  Duration `yaml:"min_backoff"`
	MaxBackoff  Duration `yaml:"max_backoff"`
}

// What Config.Worker and Async.Running can say.
const (
	workerElsewhere = "elsewhere"
	runningConflict = "conflict"
)

// maxKeptHead is the limit of a stored request without its content, in bytes.
const maxKeptHead = 32 << 10

func (a *Async) status() string { return cmp.Or(a.Status, DefaultStatus) }

func (a *Async) options() stethttp.AsyncOptions {
	return stethttp.AsyncOptions{StatusURL: a.status(), Wait: time.Duration(a.Wait), RepeatAcceptance: a.RepeatAcceptance, Conflict: a.Running == runningConflict,
		RetryAfter: time.Duration(a.RetryAfter)}
}

func (a *Async) check(r *Route) error {
	bad := func(field, format string, args ...any) error { return under(at(field, format, args...), "async") }
	switch {
	case !strings.HasPrefix(a.status(), "/") || !strings.HasSuffix(a.status(), "/") || !plainPath(a.status()):
		return bad("status", "%q is no path that begins and ends with a slash and needs no encoding", a.Status)
	case a.RepeatAcceptance && a.Running == runningConflict:
		return bad("repeat_acceptance", "it contradicts running: conflict; a retry gets the 202 again, or it does not")
	case a.Wait < 0 || time.Duration(a.Wait) > store.MaxWait:
		return bad("wait", "%v; it must be 0 to %v", time.Duration(a.Wait), store.MaxWait)
	case a.RetryAfter < 0:
		return bad("retry_after", "%v is negative", time.Duration(a.RetryAfter))
	case slices.ContainsFunc(a.Headers, unkeepable):
		name := a.Headers[slices.IndexFunc(a.Headers, unkeepable)]
		return bad("headers", "%q is no name of a field that can be kept: the host and the length of the content are always sent, fields of the connection and Stet- fields never", name)
	case a.MinBackoff < 0 || a.maxBackoff() < a.minBackoff() || a.maxBackoff() > store.MaxDelay:
		return bad("max_backoff", "from %v to %v is no range of waits of at most %v", a.minBackoff(), a.maxBackoff(), store.MaxDelay)
	case r.Pass:
		return at("async", "a route that lets requests pass accepts none")
	case r.FailOpen:
		return at("fail_open", "without the store nothing can be accepted")
	case r.Tries != 0:
		return at("tries", "it is for requests whose clients wait; async.max_attempts is how often an accepted operation is sent")
	case int64(r.MaxBody) > store.MaxWork-maxKeptHead:
		return at("max_body", "%d; an accepted request is stored in %d bytes with its header, so at most %d are left", r.MaxBody, store.MaxWork, store.MaxWork-maxKeptHead)
	case len(r.class()) > store.MaxName:
		return at("name", "%d bytes; the name of a route that accepts has at most %d", len(r.class()), store.MaxName)
	case a.Repeatable && r.Verify != nil:
		return bad("repeatable", "an operation that can be sent again needs no verify; leave one of them out")
	}
	return nil
}

// plainPath reports whether a path that ends with a slash has one spelling, so that clients
// request the path that they received.
func plainPath(p string) bool {
	return strings.TrimSuffix(path.Clean(p), "/")+"/" == p && (&url.URL{Path: p}).EscapedPath() == p && !strings.ContainsAny(p, "?#{}%")
}

// unkeepable reports whether a field cannot be stored for the service.
func unkeepable(name string) bool {
	return !isToken(name) || ofProxy(name) || ofConnection(name)
}

func (a *Async) minBackoff() time.Duration {
	return cmp.Or(time.Duration(a.MinBackoff), stetwork.MinBackoff)
}

func (a *Async) maxBackoff() time.Duration {
	return cmp.Or(time.Duration(a.MaxBackoff), max(stetwork.MaxBackoff, a.minBackoff()))
}

// kept returns the fields of requests that are stored, in canonical form.
func (c *Config) kept(r *Route) []string {
	all := []string{"Accept", "Accept-Language", "Content-Disposition", "Content-Encoding", "Content-Language", "Content-Type", "Digest", "Content-Digest", "Repr-Digest", "User-Agent"}
	if c.Forwarded {
		all = append(all, "Forwarded", "X-Forwarded-Host", "X-Forwarded-Proto")
	}
	for _, name := range append(slices.Clone(r.Async.Headers), c.scope(r).named()...) {
		all = append(all, http.CanonicalHeaderKey(name))
	}
	return all
}

// named returns the headers of a scope that have no credentials.
func (s *Scope) named() (all []string) {
	if s.Header != "" && !strings.EqualFold(s.Header, "Authorization") && !strings.EqualFold(s.Header, "Cookie") {
		all = append(all, s.Header)
	}
	for _, one := range s.All {
		all = append(all, one.named()...)
	}
	return all
}

// pack encodes a job as the payload of an operation.
func (e *job) pack() ([]byte, error) {
	head, err := json.Marshal(e.written(widened))
	if err != nil {
		return nil, err
	}
	if len(head) > maxKeptHead {
		return nil, fmt.Errorf("proxy: the target and the header of the request have %d bytes; at most %d are kept", len(head), maxKeptHead)
	}
	return append(append(head, '\n'), e.Body...), nil
}

// unpackJob reverses pack.
func unpackJob(b []byte) (*job, error) {
	head, body, ok := bytes.Cut(b, []byte("\n"))
	e := &job{}
	if err := json.Unmarshal(head, e); err != nil || !ok {
		return nil, errors.New("proxy: the operation was not accepted by stet proxy")
	}
	e = e.written(narrowed)
	e.Body = body
	return e, nil
}

// written returns the job with its texts converted.
func (e *job) written(as func(string) string) *job {
	other := *e
	other.Target, other.Header = as(e.Target), make(http.Header, len(e.Header))
	for name, values := range e.Header {
		for _, v := range values {
			other.Header[name] = append(other.Header[name], as(v))
		}
	}
	return &other
}

// widened converts each byte to a character. A target or a field can have any byte, and JSON
// replaces bytes that are not UTF-8.
func widened(s string) string {
	var b strings.Builder
	for i := range len(s) {
		b.WriteRune(rune(s[i]))
	}
	return b.String()
}

// narrowed reverses widened.
func narrowed(s string) string {
	b := make([]byte, 0, len(s))
	for _, r := range s {
		b = append(b, byte(r))
	}
	return string(b)
}

// accepting accepts the requests of a route.
type accepting struct {
	async   *stethttp.Async
	handler http.Handler
	budget  *budget
	scope   extractor
	kept    []string
}

func newAccepting(c *Config, cr *checkedRoute, m *stethttp.Middleware, b *budget) (*accepting, error) {
	o := cr.Async.options()
	o.RetryAfter = cmp.Or(o.RetryAfter, time.Duration(c.RetryAfter))
	o.Accepted, o.MaxStreams = accepted, cmp.Or(c.Limits.Waiters, DefaultWaiters)
	async, err := stethttp.NewAsync(m, o)
	if err != nil {
		return nil, err
	}
	a := &accepting{async: async, budget: b, scope: cr.options.Scope, kept: c.kept(&cr.Route)}
	a.handler = async.Accept(cr.class(), a.prepare)
	return a, nil
}

// affordance is the place of a request in the budget.
type affordance struct {
	giveBack func()
	used     bool
}

type affordKey struct{}

// ServeHTTP implements http.Handler.
func (a *accepting) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	place := &affordance{giveBack: func() {}}
	defer func() {
		if !place.used {
			place.giveBack()
		}
	}()
	a.handler.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), affordKey{}, place)))
}

// accepted is called after an operation was accepted.
func accepted(r *http.Request, st stet.Status) {
	place, _ := r.Context().Value(affordKey{}).(*affordance)
	place.used = place.used || st.New
}

// prepare returns the work of a request.
func (a *accepting) prepare(w http.ResponseWriter, r *http.Request) (stet.Work, bool) {
	problems := stateOf(r.Context()).manner
	body, err := io.ReadAll(r.Body)
	if err != nil {
		problems.refuse(w, &upstreamUnreachable) // it is in memory
		return stet.Work{}, false
	}
	e := &job{Method: r.Method, Target: stateOf(r.Context()).target, Host: r.Host, TLS: r.TLS != nil, Header: http.Header{}, Body: body}
	for _, name := range a.kept {
		if values, ok := r.Header[name]; ok {
			e.Header[name] = values
		}
	}
	stripClient(e.Header)
	payload, err := e.pack()
	if err != nil || len(payload) > store.MaxWork {
		problems.refuse(w, &tooLargeToAccept)
		return stet.Work{}, false
	}
	place, _ := r.Context().Value(affordKey{}).(*affordance)
	place.giveBack() // of an earlier call
	place.giveBack = func() {}
	scope, _ := a.scope(r) // it exists: the middleware has read it
	giveBack := a.budget.takeOrRefuse(w, problems, scope)
	if giveBack == nil {
		return stet.Work{}, false
	}
	place.giveBack = giveBack
	return stet.Work{Payload: payload}, true
}

// statusPage serves the states of operations of one or more routes.
type statusPage struct {
	path     string
	noCancel bool
	handler  http.Handler
	reports  http.Handler // of the service, about its progress: it is no caller
}

// is reports whether the page serves a request.
func (s *statusPage) is(r *http.Request) bool {
	last, ok := strings.CutPrefix(r.URL.Path, s.path)
	if !ok || last == "" || r.URL.RawPath != "" {
		return false
	}
	_, err := store.ParseID(last)
	return err == nil || last == stethttp.ByKey
}

// ServeHTTP implements http.Handler.
func (s *statusPage) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if s.noCancel && r.Method == http.MethodDelete {
		w.Header().Set("Allow", "GET, HEAD, PATCH")
		stateOf(r.Context()).manner.refuse(w, &cancelRefused)
		return
	}
	if r.Method == http.MethodPatch {
		s.reports.ServeHTTP(w, r)
		return
	}
	s.handler.ServeHTTP(w, r)
}
