package proxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/observe"
	"github.com/stet-go/stet/stethttp"
)

// route is a Route of a generation.
type route struct {
	Route
	after   time.Duration // how long the service can still run a request that broke off
	handler http.Handler  // the middleware around the forwarder
}

// forwarder sends requests to the service, each once.
type forwarder struct {
	proxy     *httputil.ReverseProxy
	upstream  *url.URL
	reserved  *reservedHeaders
	forwarded bool
	longest   time.Duration // of unprotected requests
	log       *slog.Logger
	propagate func(context.Context, http.Header) // may be nil
	budget    *budget                            // may be nil
	emits     *emits
	targets   *targets
}

func newForwarder(c *Config, upstream *url.URL, g *reservedHeaders, transport http.RoundTripper, o Options) *forwarder {
	f := &forwarder{upstream: upstream, reserved: g, forwarded: c.Forwarded, longest: cmp.Or(time.Duration(c.Limits.Longest), DefaultLongest), log: o.ErrorLog, propagate: o.Propagate}
	f.proxy = &httputil.ReverseProxy{
		Rewrite:        f.rewrite,
		Transport:      transport,
		ModifyResponse: f.response,
		ErrorHandler:   f.failed,
		BufferPool:     buffers{},
		ErrorLog:       slog.NewLogLogger(o.ErrorLog.Handler(), slog.LevelDebug), // f logs errors itself
	}
	return f
}

// handler returns the handler of a route; nil is for unprotected requests.
func (f *forwarder) handler(rt *route) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		run := stet.FromContext(r.Context())
		t := &trip{route: rt}
		r = r.WithContext(t.context(r.Context()))
		if run == nil {
			ctx, cancel := context.WithTimeout(r.Context(), f.longest)
			defer cancel()
			f.proxy.ServeHTTP(w, r.WithContext(ctx))
			return
		}
		back, ok := f.afford(w, stateOf(r.Context()).manner, run, t)
		if !ok {
			return
		}
		defer back()
		f.run(w, r, run, t)
	})
}

// run sends a protected request. If the response breaks off, the outcome is unknown.
func (f *forwarder) run(w http.ResponseWriter, r *http.Request, run *stet.Run, t *trip) {
	v := stateOf(r.Context())
	v.proxy.runs.Add(1)
	defer v.proxy.runs.Add(-1)
	if end, ok := r.Context().Deadline(); ok {
		// A client that reads a large response slowly must not use up the time of the run: the
		// service's response would count as broken off.
		v.writeUntil(end.Add(-time.Until(end) / 10))
		defer v.writeUntil(time.Time{})
	}
	defer func() {
		v := recover()
		if v == nil {
			return
		}
		if !t.unread.Load() && v == http.ErrAbortHandler { //nolint:errorlint // the very value
			return // the client has left: the service's response stands
		}
		f.leave(run, t, "the response broke off", observe.Why{Reason: observe.ReasonReset})
		if v != http.ErrAbortHandler { //nolint:errorlint // see above
			panic(v)
		}
	}()
	f.proxy.ServeHTTP(w, r)
	if t.unread.Load() { // without a server around it, httputil returns as if the response was complete
		f.leave(run, t, "the response broke off", observe.Why{Reason: observe.ReasonReset})
	}
}

// leave makes the operation unknown.
func (f *forwarder) leave(run *stet.Run, t *trip, why string, cause observe.Why) {
	if run.Explain(cause); cause.Err == nil {
		run.Explain(observe.Why{Err: errors.New(why)})
	}
	what := "proxy: the outcome of an operation is unknown: "
	if t.route.Settles == settlesService {
		what = "proxy: the service has not answered; its settled outcome counts: "
	}
	f.log.Warn(what+why, operation(run, t.route.class()), slog.String("reason", string(cause.Reason)))
	run.Declare(stet.MayHaveExecuted, t.route.after)
}

// upgrading are the fields of a request for another protocol. Only those for WebSocket are
// forwarded: with h2c a client could send any request to the service on the same connection, past
// the proxy.
var upgrading = []string{"Upgrade", "Connection", "Http2-Settings"}

// webSocket reports whether a request is for WebSocket only.
func webSocket(r *http.Request) bool {
	upgrade := r.Header["Upgrade"]
	return r.Method == http.MethodGet && len(upgrade) == 1 && strings.EqualFold(upgrade[0], "websocket")
}

// rewrite makes the request to the service.
func (f *forwarder) rewrite(pr *httputil.ProxyRequest) {
	out := pr.Out
	pr.SetURL(f.upstream)
	out.Host = pr.In.Host
	setForwarded(pr, f.forwarded)
	stripClient(out.Header)
	setTarget(out.URL, stateOf(out.Context()).target)
	if f.propagate != nil {
		f.propagate(out.Context(), out.Header)
	}
	out.Trailer = nil // a service can merge its fields into the header
	run := stet.FromContext(out.Context())
	if run == nil && !webSocket(pr.In) {
		for _, name := range upgrading {
			out.Header.Del(name)
		}
	}
	if run != nil {
		for _, name := range []string{"Expect", "Upgrade", "Connection"} { // its content was read already, and its response is stored
			out.Header.Del(name)
		}
		describe(out.Header, run.ID(), run.Op().Scope, run.Fence(), run.Attempt())
		t := tripOf(out.Context())
		switch {
		case t.job:
			maps.Copy(out.Header, t.own)
		case t.route.Settles == settlesService:
			out.Header[HeaderClaim] = pr.In.Header[HeaderClaim]
		}
		once(out)
		t.together(out)
	} else if !safe(out.Method) {
		once(out)
	}
}

// setForwarded sets the fields with the client's address, host and protocol. If the client is a
// gateway that is trusted, its own are kept.
func setForwarded(pr *httputil.ProxyRequest, trusted bool) {
	keep := func(names ...string) {
		for _, name := range names {
			if v, ok := pr.In.Header[name]; trusted && ok {
				pr.Out.Header[name] = slices.Clone(v)
			}
		}
	}
	keep("Forwarded", "X-Forwarded-For")
	pr.SetXForwarded()
	keep("X-Forwarded-Host", "X-Forwarded-Proto")
}

// safe reports whether a method is safe (RFC 9110, section 9.2.1).
func safe(method string) bool {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace:
		return true
	}
	return false
}

// errSwitched: the service switched to another protocol unasked.
var errSwitched = errors.New("proxy: the service switched to another protocol unasked")

// response reads the header of the service's response before it is forwarded.
func (f *forwarder) response(res *http.Response) error {
	ctx := res.Request.Context()
	execution := res.Header.Get(HeaderExecution)
	said := http.Header{HeaderEmit: res.Header[HeaderEmit]}
	strip(res.Header)
	strip(res.Trailer)
	if res.StatusCode == http.StatusSwitchingProtocols && res.Request.Header.Get("Upgrade") == "" {
		return errSwitched // which ends the connection, too
	}
	run, t := stet.FromContext(ctx), tripOf(ctx)
	if run == nil || t == nil {
		f.emitted(nil, nil, said)
		if res.StatusCode != http.StatusSwitchingProtocols { // its content is a connection
			res.Body = &responseBody{ReadCloser: res.Body, of: res, emitted: func(h http.Header) { f.emitted(nil, nil, h) }}
		}
		return nil
	}
	if t.route.MCP != nil {
		notOwn(res.Header)
	}
	res.Body = &responseBody{ReadCloser: res.Body, of: res, trip: t, emitted: func(h http.Header) { f.emitted(run, t, h) }}
	switch {
	case execution == none:
		run.Explain(observe.Why{Reason: observe.ReasonDeclared, Status: res.StatusCode})
		run.Declare(stet.NotExecuted, 0)
	case slices.Contains(t.route.Unknown, res.StatusCode):
		f.leave(run, t, "the service's status says so", observe.Why{Reason: observe.ReasonDeclared, Status: res.StatusCode})
	case execution == executed:
		stethttp.Executing(ctx)
	default:
		t.undone = t.route.notExecuted(res.StatusCode, res.Header)
	}
	f.emitted(run, t, said)
	return nil
}

// failed responds in place of the service.
func (f *forwarder) failed(w http.ResponseWriter, r *http.Request, err error) {
	run, t, problems := stet.FromContext(r.Context()), tripOf(r.Context()), stateOf(r.Context()).manner
	if run == nil || t == nil {
		switch {
		case errors.Is(err, context.Canceled):
			panic(http.ErrAbortHandler) // the client has left
		case t != nil && t.untouched():
			problems.refuse(w, &upstreamUnreachable)
		default:
			problems.refuse(w, &upstreamFailed)
		}
		return
	}
	cause := observe.Why{Reason: observe.ReasonOf(err), Err: errors.New(logError(err))}
	if cause.Reason == observe.ReasonDeclared { // nothing else is known of it
		cause.Reason = observe.ReasonUnreadable
	}
	if t.untouched() {
		run.Explain(cause)
	}
	if t.untouched() && t.job {
		t.unreached, t.why = true, logError(err)
		return
	}
	if t.untouched() {
		f.log.Warn("proxy: the service cannot be reached; nothing was executed", operation(run, t.route.class()), slog.String("error", logError(err)))
		run.Declare(stet.NotExecuted, 0)
		problems.refuse(w, &upstreamUnreachable)
		return
	}
	f.leave(run, t, logError(err), cause)
	problems.refuse(w, &upstreamFailed) // not sent: the middleware says that the outcome is unknown
}

// responseBody is the content of a response of the service.
type responseBody struct {
	io.ReadCloser
	of   *http.Response
	trip *trip // nil on routes that are not protected

	emitted func(trailer http.Header) // receives the trailer
	counted int                       // bytes in memory, because the response is stored
}

// Read implements io.Reader. If the content breaks off, it sets trip.unread.
func (a *responseBody) Read(p []byte) (int, error) {
	n, err := a.ReadCloser.Read(p)
	if a.trip != nil && a.counted < a.trip.keeps() {
		a.counted += n
		stateOf(a.of.Request.Context()).hold(n)
	}
	switch {
	case err == io.EOF: //nolint:errorlint // a wrapped one is no end
		a.emitted(a.of.Trailer)
		strip(a.of.Trailer)
	case err != nil && a.trip != nil:
		a.trip.unread.Store(true)
	}
	return n, err
}

// logError returns what a log may have of an error about the service. An error about a
// malformed answer quotes it, and must not be logged.
func logError(err error) string {
	var network *net.OpError
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return "it took too long"
	case errors.Is(err, context.Canceled):
		return "the run was cancelled"
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return "the connection ended"
	case errors.As(err, &network):
		return network.Error()
	}
	return fmt.Sprintf("its answer could not be read (%T)", err)
}

// buffers are reused for the content of responses.
type buffers struct{}

var copyBuffers = sync.Pool{New: func() any { b := make([]byte, 32<<10); return &b }}

// Get implements httputil.BufferPool.
func (buffers) Get() []byte { return *copyBuffers.Get().(*[]byte) }

// Put implements httputil.BufferPool.
func (buffers) Put(b []byte) { copyBuffers.Put(&b) }
