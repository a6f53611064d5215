package proxy

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// requestState is a request of a client, and the http.ResponseWriter of its response.
type requestState struct {
	w       http.ResponseWriter
	control *http.ResponseController
	proxy   *Proxy
	manner  manner
	target  string  // of the request to the service
	content *upload // nil: none

	protocol
	response
	directions

	starved bool         // there was no memory for the request's content
	peer    *peer        // nil: of no client
	held    atomic.Int64 // bytes of the budget
}

// protocol is how a request came.
type protocol struct {
	http2 bool
	old   bool // HTTP/1.0, which has no responses of 1xx
	last  bool // no other request may follow on the connection
}

// response is how far the response to a client is.
type response struct {
	begun  bool  // the header was written
	deaf   bool  // it is complete; further writes are dropped
	broken error // the error of a write
	status int   // 0: none was written
	bytes  int64 // of its content
	class  string
}

// directions are both sides of a client's connection. mu guards the fields and the deadlines.
type directions struct {
	mu      sync.Mutex
	over    bool
	reading direction // of the content
	writing direction // of the response
}

// direction is the reading or the writing side of a client's connection.
type direction struct {
	pace
	active bool
	until  time.Time // it must end by then; zero: no limit
}

type stateKey struct{}

func stateOf(ctx context.Context) *requestState {
	v, _ := ctx.Value(stateKey{}).(*requestState)
	return v
}

// newRequestState returns the state of a request, and the request with that state in its
// context.
func (p *Proxy) newRequestState(w http.ResponseWriter, r *http.Request, problems manner) (*requestState, *http.Request) {
	v := &requestState{w: w, control: http.NewResponseController(w), proxy: p, manner: problems,
		protocol: protocol{http2: r.ProtoMajor == 2, old: !r.ProtoAtLeast(1, 1), last: doubtful(r)}}
	r = r.WithContext(context.WithValue(r.Context(), stateKey{}, v))
	if r.Body != nil && r.Body != http.NoBody {
		v.content = &upload{ReadCloser: r.Body, state: v}
		r.Body = v.content
		if !v.http2 { // also for reads of the server itself, which looks for the next request
			v.deadline(v.control.SetReadDeadline, &direction{})
		}
	}
	return v, r
}

// doubtful reports whether a gateway before the proxy can see another end of this request than
// net/http, so that it would take the next request for content (RFC 9112, section 6.1). net/http
// removes the fields that say so; therefore all requests that can have them are doubtful.
func doubtful(r *http.Request) bool {
	return r.ProtoMajor == 1 && (len(r.TransferEncoding) > 0 || !r.ProtoAtLeast(1, 1))
}

// deadline sets the deadline of a read or a write that begins now.
func (v *requestState) deadline(set func(time.Time) error, d *direction) {
	v.mu.Lock()
	defer v.mu.Unlock()
	now := time.Now()
	d.active, d.began = true, now
	at := now.Add(min(v.proxy.stall(), v.proxy.limits.patience(&d.pace)))
	if !d.until.IsZero() && d.until.Before(at) {
		at = d.until
	}
	if !v.over {
		_ = set(at) // a server without deadlines has its own
	}
}

// done counts n bytes. It removes the deadline if forget is true, or with HTTP/2, whose
// deadlines also count while nothing is read or written.
func (v *requestState) done(set func(time.Time) error, d *direction, forget bool, n int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	d.active = false
	d.waited += time.Since(d.began)
	d.bytes += int64(n)
	if !v.over && (forget || v.http2) {
		_ = set(time.Time{})
	}
}

// hurry shortens the deadlines of a read and a write that are in progress.
func (v *requestState) hurry() {
	v.mu.Lock()
	defer v.mu.Unlock()
	at := time.Now().Add(drainStall)
	if v.reading.active && !v.over {
		_ = v.control.SetReadDeadline(at)
	}
	if v.writing.active && !v.over {
		_ = v.control.SetWriteDeadline(at)
	}
}

// writeUntil bounds writes to the client; the zero time removes the bound.
func (v *requestState) writeUntil(at time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.writing.until = at
}

// protect is called before the content of a protected request is read into memory.
func (v *requestState) protect() {
	if v.content == nil {
		return
	}
	v.mu.Lock()
	v.reading.until = time.Now().Add(v.proxy.limits.upload())
	v.mu.Unlock()
	v.content.kept = true
}

// hold counts bytes that are in memory until the request ends.
func (v *requestState) hold(n int) {
	v.held.Add(int64(n))
	v.count(int64(n))
}

// Unwrap is for http.ResponseController.
func (v *requestState) Unwrap() http.ResponseWriter { return v.w }

// Header implements http.ResponseWriter.
func (v *requestState) Header() http.Header { return v.w.Header() }

// WriteHeader implements http.ResponseWriter.
func (v *requestState) WriteHeader(status int) {
	switch {
	case v.deaf, status < 200 && v.old:
		return
	case v.starved: // the middleware knows only that reading failed
		v.starved = false
		v.refuseBusy()
		v.deaf = true
		return
	case status >= 200 && !v.begun:
		v.begun, v.status = true, status
		if v.last {
			v.w.Header()["Connection"] = []string{"close"}
		}
	case status == http.StatusSwitchingProtocols:
		v.status = status
	case status < 200:
		stripHint(v.w.Header())
	}
	v.w.WriteHeader(status)
}

// Write implements http.ResponseWriter. It takes the client to make progress.
func (v *requestState) Write(p []byte) (n int, err error) {
	v.begin()
	if v.deaf {
		return len(p), nil
	}
	v.count(int64(len(p)))
	defer v.count(-int64(len(p)))
	for first := true; first || n < len(p); first = false {
		if v.broken != nil {
			return n, v.broken
		}
		v.deadline(v.control.SetWriteDeadline, &v.writing)
		m, err := v.w.Write(p[n:min(len(p), n+maxPiece)])
		v.done(v.control.SetWriteDeadline, &v.writing, false, m)
		v.bytes += int64(m)
		n += m
		if err != nil && !errors.Is(err, http.ErrBodyNotAllowed) && !errors.Is(err, http.ErrContentLength) {
			v.broken = err
		}
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// FlushError is for http.ResponseController.
func (v *requestState) FlushError() error {
	v.begin()
	if v.deaf || v.broken != nil {
		return v.broken
	}
	v.deadline(v.control.SetWriteDeadline, &v.writing)
	defer v.done(v.control.SetWriteDeadline, &v.writing, false, 0)
	err := v.control.Flush()
	if err != nil && !errors.Is(err, http.ErrNotSupported) {
		v.broken = err
	}
	return err
}

func (v *requestState) begin() {
	if !v.begun {
		v.WriteHeader(http.StatusOK)
	}
}

// end is called after the handler has returned. The server still sends its buffers.
func (v *requestState) end() {
	if v.broken != nil {
		panic(http.ErrAbortHandler) // the end of the response would say that all of it was sent
	}
	if v.last && !v.begun {
		v.w.Header()["Connection"] = []string{"close"}
	}
	v.deadline(v.control.SetWriteDeadline, &v.writing)
}

// leave is called last.
func (v *requestState) leave() {
	v.mu.Lock()
	v.over = true
	v.mu.Unlock()
	v.proxy.mu.Lock()
	delete(v.proxy.active, v)
	v.count(-v.held.Load())
	if v.peer != nil {
		if v.peer.active--; v.peer.active == 0 {
			delete(v.proxy.peers, v.peer.from)
		}
	}
	v.proxy.mu.Unlock()
}

// errBusy: there is no memory for a request's content.
var errBusy = errors.New("proxy: the memory limit is reached")

// upload is the content of a request.
type upload struct {
	io.ReadCloser
	state *requestState
	kept  bool // its bytes stay in memory
	ended bool
}

// Read implements io.Reader. The client must make progress, up to the end of
// the content. After that there is no deadline. Reads after the end return io.EOF: the server
// closes the content when a response begins, and another error would break the response off.
func (u *upload) Read(p []byte) (int, error) {
	if u.ended {
		return 0, io.EOF
	}
	v := u.state
	v.deadline(v.control.SetReadDeadline, &v.reading)
	n, err := u.ReadCloser.Read(p)
	u.ended = err == io.EOF //nolint:errorlint // a wrapped one is no end
	v.done(v.control.SetReadDeadline, &v.reading, u.ended, n)
	if u.kept && n > 0 && !v.take(int64(n)) {
		v.starved = true
		return 0, errBusy
	}
	return n, err
}
