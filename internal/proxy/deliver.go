package proxy

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stethttp"
)

// job is a request of a worker or of a consumer: no caller waits for its response.
type job struct {
	Method string      `json:"method"`
	Target string      `json:"target"` // path and query, as it was received
	Host   string      `json:"host,omitempty"`
	TLS    bool        `json:"tls,omitempty"` // it came over TLS
	Header http.Header `json:"header,omitempty"`
	Body   []byte      `json:"-"`
}

// delivery sends the jobs of a route to the service, each once a run.
type delivery struct {
	proxy      *Proxy
	forwarder  *forwarder
	route      *route
	middleware *stethttp.Middleware // which judges the answers
	manner     manner
}

// undone is the error of a run whose operation can run again.
type undone struct {
	why       string
	after     time.Duration // the service asks to wait that long
	uncounted bool          // the service was not reached: it has not been tried
}

// Error implements error.
func (u *undone) Error() string { return u.why }

// again returns how the operation runs again, after backoff or later.
func (u *undone) again(backoff time.Duration) stet.Again {
	return stet.Again{After: max(backoff, u.after), Uncounted: u.uncounted}
}

// errBrokenOff is the error of a run that may have executed.
var errBrokenOff = errors.New("the service did not answer, or its answer was incomplete")

// send sends a job, for the run in ctx, with further header fields. It returns the outcome to
// settle. With an *undone error the operation must run again; the outcome is for the case that it
// cannot. With errBrokenOff the run has declared that it may have executed. Other errors are of
// runs that may be repeated.
func (d *delivery) send(ctx context.Context, e *job, own http.Header, repeatable bool) (stet.Outcome, error) {
	run := stet.FromContext(ctx)
	t := &trip{route: d.route, own: own, job: true}
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		v := &requestState{w: w, control: http.NewResponseController(w), proxy: d.proxy, manner: d.manner, target: e.Target}
		defer func() { d.proxy.memory.used.Add(-v.held.Load()) }()
		d.forwarder.run(w, r.WithContext(t.context(context.WithValue(r.Context(), stateKey{}, v))), run, t)
		if t.unreached {
			run.Declare(stet.NotExecuted, 0)
			d.manner.refuse(w, &upstreamUnreachable)
		}
	})
	r, err := d.request(ctx, e)
	if err != nil {
		return stet.Outcome{}, stet.Permanent(err)
	}
	out, after := d.middleware.Respond(ctx, h, r)
	says := run.Declared()
	switch {
	case says == stet.MayHaveExecuted:
		return stet.Outcome{}, errBrokenOff
	case t.unreached:
		return stet.Outcome{}, &undone{why: "the service cannot be reached, and nothing was executed: " + t.why, uncounted: true}
	case says == stet.NotExecuted:
		return out, &undone{why: fmt.Sprintf("the service answered %d, which says that nothing was executed", out.Status), after: after}
	case d.route.Settles == settlesService:
		return d.unsettled(out, after)
	case out.Failed && repeatable:
		return out, &undone{why: fmt.Sprintf("the service answered %d", out.Status), after: after}
	}
	return out, nil
}

// unsettled returns the outcome of a run that the service has not settled.
func (d *delivery) unsettled(out stet.Outcome, after time.Duration) (stet.Outcome, error) {
	switch {
	case 400 <= out.Status && out.Status < 500:
		return out, nil // it has refused
	case out.Failed:
		return out, &undone{why: fmt.Sprintf("the service answered %d, and has not settled the operation", out.Status), after: after}
	}
	return stet.Outcome{}, &undone{why: fmt.Sprintf("the service answered %d without having settled the operation: it must call stet_settle with the claim in %s, in the transaction of its writes", out.Status, HeaderClaim)}
}

// request returns the request of a job.
func (d *delivery) request(ctx context.Context, e *job) (*http.Request, error) {
	u := &url.URL{Scheme: "http", Host: e.Host}
	if !setTarget(u, e.Target) || e.Target == "" || e.Target[0] != '/' {
		return nil, errors.New("the stored target is no path")
	}
	r := (&http.Request{Method: e.Method, URL: u, Host: e.Host, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1}).WithContext(ctx)
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(e.Body)), int64(len(e.Body))
	if e.TLS {
		r.TLS = &tls.ConnectionState{} // for X-Forwarded-Proto
	}
	if r.Header = e.Header.Clone(); r.Header == nil {
		r.Header = http.Header{}
	}
	r.Header.Set(cmp.Or(d.route.KeyHeader, stethttp.DefaultHeader), stet.FromContext(ctx).Op().Key)
	return r, nil
}
