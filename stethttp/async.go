package stethttp

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/fault"
	"github.com/stet-go/stet/internal/misuse"
	"github.com/stet-go/stet/internal/problem"
	"github.com/stet-go/stet/store"
)

const (
	// DefaultRetryAfter is when to ask again for an operation that has not ended.
	DefaultRetryAfter = time.Second
	// DefaultMaxStreams bounds the streams of events that are served at a time.
	DefaultMaxStreams = 256
)

// AsyncOptions configure an Async. StatusURL is required; the zero value of every
// other field stands for its default.
type AsyncOptions struct {
	// StatusURL is where Async.Status is served, as clients see it: an absolute
	// path or URL that ends with a slash, behind which the operation's ID
	// follows. It must be the same in every process.
	StatusURL string
	// Wait is how long a request waits for the outcome if it has no preference of its
	// own, neither "Prefer: wait=N" nor "respond-async" (RFC 7240). Default 0: it is
	// answered with 202 at once. At most store.MaxWait.
	Wait time.Duration
	// RepeatAcceptance repeats the 202 for an operation that has ended, unless the request
	// waits. By default such a request gets the outcome: status, header and body of the
	// worker.
	RepeatAcceptance bool
	// Conflict answers a retry of an operation that has not ended with 409 (problem
	// in-flight) in place of the 202. It still has the Location.
	Conflict bool
	// RetryAfter is when to ask again for an operation that has not ended, in
	// the header of that name: rounded up to whole seconds. Default
	// DefaultRetryAfter.
	RetryAfter time.Duration
	// MaxStreams bounds the streams of server-sent events that are served at a
	// time; above it a stream ends after its first event, and the client comes
	// back for the next. Default DefaultMaxStreams.
	MaxStreams int
	// Accepted, if set, is called when a request's operation was accepted, by this request
	// (Status.New) or an earlier one, before it is answered.
	Accepted func(*http.Request, stet.Status)
	// AcceptTx, if set, is called in place of stet.TxEngine.Accept, in the transaction of the
	// acceptance, which Tx finds in ctx. It must call stet.TxEngine.Accept, and may write more
	// to the same transaction: a job, for a queue whose jobs are rows of the same
	// database (the AcceptTx of stetwork/river does both). If it returns an error, all
	// is rolled back, nothing is accepted, and the request is answered with 503 or by
	// the kind of an *stet.Error. It needs the middleware of NewTx.
	AcceptTx func(ctx context.Context, op stet.Op, w stet.Work) (stet.Status, error)
}

// Async answers requests with 202, leaves their operations to workers (see
// stet.Engine.Take), and serves their state and outcome. It is safe for concurrent use.
type Async struct {
	m          *Middleware
	o          AsyncOptions
	retryAfter time.Duration
	streams    atomic.Int64
	ctx        context.Context // ends with Close
	cancel     context.CancelFunc
}

// NewAsync returns an Async whose keys, scopes, classes, fingerprints, bodies and
// problems are m's: Options.Skip, FailOpen, NotExecuted and those of stored headers
// have no meaning here. With Options.Optional, a request without a key is accepted
// under a new one, so that each retry is another operation. MaxWait bounds every wait
// that a request prefers. With a Middleware of NewTx, an operation is accepted in the
// same transaction as the writes of Accept's prepare.
//
// Wrong options, and a store that keeps no work (see store.WorkStore), are errors of
// kind stet.KindInvalid.
func NewAsync(m *Middleware, o AsyncOptions) (*Async, error) {
	if m == nil {
		return nil, misuse.Errorf("stethttp: NewAsync needs a middleware; New makes one")
	}
	if _, ok := store.As[store.WorkStore](m.engine.Store()); !ok {
		return nil, misuse.Errorf("stethttp: NewAsync needs a store.WorkStore; %T is none", m.engine.Store())
	}
	if m.transact != nil && m.acceptTx == nil {
		return nil, misuse.Errorf("stethttp: NewAsync in transactions needs a store.WorkTxStore; %T is none", m.engine.Store())
	}
	if m.acceptTx == nil && o.AcceptTx != nil {
		return nil, misuse.Errorf("stethttp: AsyncOptions.AcceptTx is called in transactions, and this middleware has none; create it with NewTx")
	}
	u, err := url.Parse(o.StatusURL)
	if err != nil || !strings.HasPrefix(u.Path, "/") || !strings.HasSuffix(o.StatusURL, "/") || (u.Scheme == "") != (u.Host == "") || u.RawQuery != "" || u.String() != o.StatusURL {
		return nil, misuse.Errorf("stethttp: AsyncOptions.StatusURL %q is not an absolute path or URL that ends with a slash", o.StatusURL)
	}
	if o.Wait < 0 || o.Wait > store.MaxWait {
		return nil, misuse.Errorf("stethttp: AsyncOptions.Wait is %v; it must be 0 to %v", o.Wait, store.MaxWait)
	}
	if o.RepeatAcceptance && o.Conflict {
		return nil, misuse.Errorf("stethttp: AsyncOptions.RepeatAcceptance and Conflict contradict each other: a retry is answered with the 202 again, or it is not")
	}
	if o.RetryAfter < 0 || o.MaxStreams < 0 {
		return nil, misuse.Errorf("stethttp: AsyncOptions.RetryAfter is %v, MaxStreams %d; neither may be negative", o.RetryAfter, o.MaxStreams)
	}
	o.MaxStreams = cmp.Or(o.MaxStreams, DefaultMaxStreams)
	a := &Async{m: m, o: o, retryAfter: cmp.Or(o.RetryAfter, DefaultRetryAfter)}
	a.ctx, a.cancel = context.WithCancel(context.Background())
	return a, nil
}

// Close ends all waits and streams and returns at once. They respond with the current state.
// Later requests do not wait. Call it from http.Server.RegisterOnShutdown: otherwise waiting
// requests delay the shutdown.
func (a *Async) Close() { a.cancel() }

// Accept returns the handler that accepts operations for the workers of that name. It panics
// if the name is not valid for stet.Work.
//
// prepare makes the work of a request before anything is stored; if Work.Name is "", it is
// name. To refuse a request, prepare writes the response and returns false. Nothing is stored
// then, and the key can be used again. It must have no other effects. With the m of NewTx it
// may write through Tx; these writes are rolled back if it refuses, or if the operation was
// accepted before. It is also called for retries, whose work is not used.
//
// A nil prepare accepts JSON (a media type application/json or +json),
// and uses the body as payload, byte for byte.
//
// A new operation gets 202, Location and Retry-After. Until it has ended, every retry gets the
// same response, byte for byte, marked as a replay (see AsyncOptions.Conflict). After that,
// and for requests that wait long enough, the response is the outcome: 200 with the worker's
// result, the problem operation-failed, or the response of a worker that used Outcome. It is
// the same for every retry.
func (a *Async) Accept(name string, prepare func(http.ResponseWriter, *http.Request) (stet.Work, bool)) http.Handler {
	if name == "" || len(name) > store.MaxName || !utf8.ValidString(name) {
		panic("stethttp: Accept needs a name of at most store.MaxName bytes of UTF-8")
	}
	limit := a.m.o.MaxBody
	if prepare == nil {
		limit = min(limit, store.MaxWork)
	}
	return &acceptor{a: a, own: &guard{m: a.m}, workName: name, prepare: prepare, limit: limit}
}

// acceptor is the handler of Accept.
type acceptor struct {
	a        *Async
	own      *guard // which protects nothing
	workName string
	prepare  func(http.ResponseWriter, *http.Request) (stet.Work, bool)
	limit    int64 // of the body, in bytes
}

// acceptance is a request on its way to be accepted.
type acceptance struct {
	*call
	*acceptor
	async   bool     // the request prefers an answer before the outcome
	refusal *capture // what prepare has written
	wrote   bool     // it has
	dropped bool     // the body, before a wait
}

// ServeHTTP implements http.Handler.
func (ac *acceptor) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	m := ac.a.m
	w.Header().Add("Vary", "Prefer")
	if !slices.Contains(m.o.Methods, r.Method) {
		m.refuseMethod(w, m.o.Methods...)
		return
	}
	keys := r.Header[m.header]
	c := &acceptance{call: &call{guard: ac.own, w: w, r: r}, acceptor: ac}
	if m.pointer != nil && !c.readFirst(ac.limit) {
		return
	}
	if len(keys) == 0 && !c.pointed.there && m.o.Optional {
		keys = []string{strconv.Quote(stet.NewKey())}
	}
	if problem, detail := c.name(keys); problem != nil {
		m.refuse(w, problem, detail, 0)
		return
	}
	_, c.async = preference(r.Header["Prefer"], "respond-async")
	if m.pointer == nil && !c.read(ac.limit) {
		return
	}
	c.refer()
	defer c.end()
	defer c.forget()
	for range acceptRounds {
		st, err := c.accept()
		if err == nil && c.a.o.Accepted != nil {
			c.a.o.Accepted(c.r, st)
		}
		switch {
		case errors.Is(err, errRefused):
			c.refused()
			return
		case err != nil:
			c.refuseAcceptance(err)
			return
		case c.answer(st):
			return
		case c.dropped:
			c.refuse(errReleased)
			return
		}
	}
	c.refuse(errReleased)
}

// acceptRounds is how often a request is accepted again, if the operation that it waited for
// had no effect.
const acceptRounds = 4

// Why an operation is not accepted.
var (
	errRefused = errors.New("stethttp: prepare has refused the request")
	errStands  = errors.New("stethttp: the operation was accepted before")
	// What the request has waited for was no accepted operation, and has had no
	// effect: a retry is accepted.
	errReleased = &stet.Error{Kind: stet.KindInFlight, Execution: stet.NotExecuted}
)

// accept prepares and accepts. The error is errRefused, or means what that of
// stet.Engine.Accept does.
func (c *acceptance) accept() (stet.Status, error) {
	ctx := c.r.Context()
	if c.m.acceptTx != nil {
		// A client that leaves must not cut off a commit.
		p, _ := c.m.engine.Policy(c.op.Class)
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.RunTimeout)
		defer cancel()
		return c.m.acceptTx(ctx, c.op, c.work, c.a.o.AcceptTx)
	}
	work, ok := c.work(ctx)
	if !ok {
		return stet.Status{}, errRefused
	}
	return c.m.engine.Accept(ctx, c.op, work)
}

// work makes the work of a request. If it refuses that, the refusal is kept for
// when it is known that nothing stands under the key.
func (c *acceptance) work(ctx context.Context) (w stet.Work, ok bool) {
	c.forget() // what an earlier round has kept
	rw := c.capture(0, true)
	defer func() { // also when prepare panics
		c.wrote = rw.status != 0
		rw.finish()
		if c.refusal = rw; ok {
			rw.retract()
		}
	}()
	prepare := c.prepare
	if prepare == nil {
		prepare = c.json
	}
	w, ok = prepare(rw, c.request(ctx))
	w.Name = cmp.Or(w.Name, c.workName)
	return w, ok
}

// forget frees the refusal that was kept.
func (c *acceptance) forget() {
	if c.refusal != nil {
		c.refusal.free()
		c.refusal = nil
	}
}

// json is the prepare of operations whose payload is the body.
func (c *acceptance) json(w http.ResponseWriter, r *http.Request) (stet.Work, bool) {
	switch {
	case !isJSON(mediaTypeOf(strings.Join(r.Header["Content-Type"], ", "))) || len(r.Header["Content-Encoding"]) > 0:
		c.m.refuse(w, &mediaTypeUnsupported, "", 0)
	case !json.Valid(c.sent):
		c.m.refuse(w, &bodyInvalid, "", 0)
	default:
		return stet.Work{Payload: c.sent}, true
	}
	return stet.Work{}, false
}

// refused answers a request that prepare has refused. If the operation was
// accepted nevertheless, earlier, the refusal is no answer to its retry.
func (c *acceptance) refused() {
	st, err := c.m.engine.Status(c.r.Context(), c.op.Scope, c.m.engine.ID(c.op.Scope, c.op.Key))
	if err == nil && st.Record.State == store.Retryable && st.Record.Fingerprint == c.op.Fingerprint {
		st = stet.Status{} // it had no effect, and no outcome was returned
	}
	if err == nil && st.Record.State == store.None && c.wrote {
		c.refusal.send()
		return
	}
	c.refusal.retract()
	switch {
	case err != nil:
		c.refuseAcceptance(err)
	case st.Record.State != store.None && st.Record.Fingerprint != c.op.Fingerprint:
		c.refuse(&stet.Error{Kind: stet.KindMismatch, Execution: stet.NotExecuted})
	case st.Record.State != store.None:
		if !c.answer(st) {
			c.refuse(errReleased)
		}
	default:
		c.m.log().ErrorContext(c.r.Context(), "stethttp: prepare has refused a request without an answer; nothing was accepted",
			slog.String("work", c.workName))
		c.m.refuse(c.w, &misconfigured, "", 0)
	}
}

// refuseAcceptance responds with the problem of an engine's error.
func (c *acceptance) refuseAcceptance(err error) {
	switch own, ok := errors.AsType[*stet.Error](err); {
	case ok && own.Kind == stet.KindDamaged:
		st, _ := c.m.engine.Status(c.r.Context(), c.op.Scope, c.m.engine.ID(c.op.Scope, c.op.Key))
		c.unreadable(st, err)
	case !ok || own.Kind == stet.KindStore && own.Execution != stet.NotExecuted:
		c.m.log().ErrorContext(c.r.Context(), "stethttp: it is unknown whether an operation was accepted", slog.Any("error", err))
		c.refuseUnknown(&acceptanceUnknown, c.m.o.RetryAfter)
	case own.Kind == stet.KindStore:
		c.m.log().ErrorContext(c.r.Context(), "stethttp: an operation could not be accepted", slog.Any("error", err))
		c.refuse(err)
	default:
		c.refuse(err)
	}
}

// unreadable responds that the stored record is damaged.
func (c *call) unreadable(st stet.Status, err error) {
	c.m.log().ErrorContext(c.r.Context(), "stethttp: the record of an operation cannot be read",
		slog.String("id", st.Record.ID.String()), slog.Any("error", err))
	problem := &operationUnreadable
	if st.Record.State.Settled() {
		problem = resultUnreadable.as(executed(st.Record))
	}
	c.m.refuse(c.w, problem, "", 0)
}

// answer responds with the state of the operation, now or after the wait. It returns false if
// another run of the key had no effect, so that there is no state.
func (c *acceptance) answer(st stet.Status) bool {
	a := c.a
	final := c.waits || !a.o.RepeatAcceptance
	if !c.waits && !c.async && a.o.Wait > 0 {
		c.begun, c.wait, final = time.Now(), a.o.Wait, true
	}
	if c.wait > 0 && (st.Record.State == store.Accepted || st.Record.State == store.Running) {
		if len(c.sent) > maxWaitingBody {
			c.close()
			c.sent, c.dropped = nil, true
		}
		now, err := c.a.await(c.call, st.Record.ID)
		switch own, ok := errors.AsType[*stet.Error](err); {
		case ok && own.Kind == stet.KindDamaged:
			c.unreadable(now, err)
			return true
		case err == nil && now.Record.State != store.None:
			now.New = st.New
			st = now
		}
	}
	switch {
	case c.unaccepted(&st):
		c.refuse(&stet.Error{Kind: stet.KindInFlight, Execution: stet.MayHaveExecuted, RetryAfter: st.Record.LeaseLeft})
	case st.Record.State == store.Retryable:
		return false
	case a.o.Conflict && !st.New && (st.Record.State == store.Accepted || st.Record.State == store.Running):
		c.w.Header().Set("Location", a.o.StatusURL+st.Record.ID.String())
		c.applied(false)
		c.m.refuse(c.w, &inFlight, "", a.retryAfter)
	case !final || st.Record.State == store.Accepted || st.Record.State == store.Running:
		c.accepted(st)
	case st.Record.State == store.Unknown: // workers resolve expired runs of accepted operations
		c.applied(false)
		c.refuseUnknown(&outcomeUnknown, max(c.m.resolvedAfter(c.op.Class), c.a.retryAfter))
	case !st.Record.State.Settled():
		return false
	default:
		c.applied(true)
		if st.Outcome.Gone {
			c.m.refuse(c.w, resultExpired.as(executed(st.Record)), "", 0)
			break
		}
		if err := unsendable(st.Outcome); err != nil {
			c.unreadable(st, err)
			break
		}
		c.expires = expiry(st.Record.ForgetAt)
		if !c.foreign(st.Outcome) {
			c.sendStored(c.a.outcome(st), !st.New)
		}
	}
	return true
}

// unaccepted reports whether what runs under the key was not accepted: another process
// runs it at once, and if it has no effect, no worker runs it again. An expired run is
// resolved like any other.
func (c *acceptance) unaccepted(st *stet.Status) bool {
	if st.New || st.Record.State != store.Running || !st.AcceptedAt.IsZero() {
		return false
	}
	// Not every answer of a store has the work of an operation.
	now, err := c.m.engine.Status(c.r.Context(), c.op.Scope, st.Record.ID)
	if err != nil || now.Record.State == store.None {
		return false
	}
	*st = now
	return st.Record.State == store.Running && st.AcceptedAt.IsZero()
}

// await waits for as long as the request prefers.
func (a *Async) await(c *call, id store.ID) (stet.Status, error) {
	ctx, cancel := context.WithDeadline(c.r.Context(), c.begun.Add(c.wait))
	defer cancel()
	defer context.AfterFunc(a.ctx, cancel)()
	return a.m.engine.Await(ctx, c.op.Scope, id)
}

// accepted responds with 202.
func (c *acceptance) accepted(st stet.Status) {
	if c.async {
		c.applied(false, "respond-async")
	} else {
		c.applied(false)
	}
	id := st.Record.ID.String()
	location := c.a.o.StatusURL + id
	h := c.w.Header()
	h.Set("Location", location)
	problem.RetryAfter(h, c.a.retryAfter)
	if !st.New {
		h[c.m.o.ReplayedHeader] = []string{"true"}
	}
	body, _ := json.Marshal(struct {
		ID        string `json:"id"`
		StatusURL string `json:"status_url"`
	}{id, location}) // strings never fail
	fault.At(fault.ResponseBefore)
	writeJSON(c.w, http.StatusAccepted, append(body, '\n'))
	fault.At(fault.ResponseAfter)
}
