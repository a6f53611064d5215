package proxy

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/stet-go/stet"
)

// route is a Route at work.
type route struct {
	Route
	h2c     bool
	after   time.Duration // how long the service may be at work on what broke off
	handler http.Handler  // the middleware around the forwarder
}

// forwarder sends requests to the service, each once.
type forwarder struct {
	proxy     *httputil.ReverseProxy
	upstream  *url.URL
	forwarded bool
	log       *slog.Logger
	propagate func(context.Context, http.Header) // may be nil
}

func newForwarder(c *Config, upstream *url.URL, transport http.RoundTripper, o Options) *forwarder {
	f := &forwarder{upstream: upstream, forwarded: c.Forwarded, log: o.ErrorLog, propagate: o.Propagate}
	f.proxy = &httputil.ReverseProxy{
		Rewrite:        f.rewrite,
		Transport:      transport,
		ModifyResponse: f.response,
		ErrorHandler:   f.failed,
		BufferPool:     buffers{},
		ErrorLog:       slog.NewLogLogger(o.ErrorLog.Handler(), slog.LevelDebug), // f says what matters
	}
	return f
}

// handler returns the forwarder of a route; of none, with nil.
func (f *forwarder) handler(rt *route) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		run := stet.FromContext(r.Context())
		t := &trip{route: rt}
		r = r.WithContext(t.context(r.Context()))
		if run == nil {
			f.proxy.ServeHTTP(w, r)
			return
		}
		// The upload is over: its deadline is, too.
		_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
		f.run(w, r, run, t)
	})
}

// run sends a protected request. When the response breaks off, nobody knows what
// the operation came to.
func (f *forwarder) run(w http.ResponseWriter, r *http.Request, run *stet.Run, t *trip) {
	defer func() {
		v := recover()
		if v == nil {
			return
		}
		if !t.unread.Load() && v == http.ErrAbortHandler { //nolint:errorlint // the very value
			return // a client that has left: what the service answered stands
		}
		f.leave(run, t, "the response broke off")
		if v != http.ErrAbortHandler { //nolint:errorlint // see above
			panic(v)
		}
	}()
	f.proxy.ServeHTTP(w, r)
}

// leave makes the operation unknown.
func (f *forwarder) leave(run *stet.Run, t *trip, why string) {
	f.log.Warn("proxy: the outcome of an operation is unknown: "+why, slog.String("id", run.ID().String()),
		slog.String("route", t.route.class()), slog.Int64("fence", run.Fence()))
	run.OutcomeUnknown(t.route.after)
}

// hopByHop are what a protected request cannot ask for: its content was read
// already, and its response is kept.
var hopByHop = []string{"Expect", "Upgrade", "Connection"}

// rewrite makes the request that is sent.
func (f *forwarder) rewrite(pr *httputil.ProxyRequest) {
	out := pr.Out
	pr.SetURL(f.upstream)
	out.Host = pr.In.Host
	if f.forwarded {
		for _, name := range []string{"Forwarded", "X-Forwarded-For"} {
			if v, ok := pr.In.Header[name]; ok {
				out.Header[name] = slices.Clone(v)
			}
		}
	}
	pr.SetXForwarded()
	if f.forwarded {
		for _, name := range []string{"X-Forwarded-Host", "X-Forwarded-Proto"} {
			if v, ok := pr.In.Header[name]; ok {
				out.Header[name] = slices.Clone(v)
			}
		}
	}
	strip(out.Header)
	if f.propagate != nil {
		f.propagate(out.Context(), out.Header)
	}
	run := stet.FromContext(out.Context())
	if run != nil {
		for _, name := range hopByHop {
			out.Header.Del(name)
		}
		describe(out.Header, run.ID(), run.Fence(), run.Attempt())
	}
	switch out.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace: // safe: RFC 9110, section 9.2.1
		if run == nil {
			return
		}
	}
	once(out, run != nil)
}

// response looks at the service's answer before it is passed on.
func (f *forwarder) response(res *http.Response) error {
	ctx := res.Request.Context()
	noEffect := res.Header.Get(HeaderExecution) == none
	strip(res.Header)
	run, t := stet.FromContext(ctx), tripOf(ctx)
	if run == nil || t == nil {
		return nil
	}
	switch {
	case noEffect:
		run.NothingHappened()
	case slices.Contains(t.route.Unknown, res.StatusCode):
		f.leave(run, t, "the service's status says so")
		return nil
	}
	res.Body = &brokenBody{res.Body, t}
	return nil
}

// failed answers in place of the service.
func (f *forwarder) failed(w http.ResponseWriter, r *http.Request, err error) {
	run, t := stet.FromContext(r.Context()), tripOf(r.Context())
	if run == nil || t == nil {
		switch {
		case errors.Is(err, context.Canceled):
			panic(http.ErrAbortHandler) // the client has left
		case t != nil && t.untouched():
			refuse(w, &upstreamUnreachable)
		default:
			refuse(w, &upstreamFailed)
		}
		return
	}
	if t.untouched() {
		f.log.Warn("proxy: the service cannot be reached; nothing was executed", slog.String("id", run.ID().String()),
			slog.String("route", t.route.class()), slog.Any("error", err))
		run.NothingHappened()
		refuse(w, &upstreamUnreachable)
		return
	}
	f.leave(run, t, err.Error())
	refuse(w, &upstreamFailed) // not sent: the middleware says that the outcome is unknown
}

// buffers are lent to responses while they are passed on.
type buffers struct{}

var copyBuffers = sync.Pool{New: func() any { b := make([]byte, 32<<10); return &b }}

// Get implements httputil.BufferPool.
func (buffers) Get() []byte { return *copyBuffers.Get().(*[]byte) }

// Put implements httputil.BufferPool.
func (buffers) Put(b []byte) { copyBuffers.Put(&b) }
