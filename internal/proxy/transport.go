package proxy

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync"
	"sync/atomic"
	"time"
)

const (
	defaultConnectTimeout = 5 * time.Second
	defaultIdleTimeout    = time.Second
	defaultMaxIdle        = 256
	maxResponseHeader     = 1 << 20 // bytes
)

// toService returns the transport to the service.
func toService(u Upstream) (serviceTransport, error) {
	t := serviceTransport{newTransport(u)}
	if !u.secured() {
		return t, nil
	}
	var err error
	if t.TLSClientConfig, err = clientTLS(u.CA, u.Certificate, u.Key); err == nil {
		t.TLSClientConfig.ServerName = u.ServerName
	}
	return t, err
}

// newTransport returns a transport for u, without its TLS.
func newTransport(u Upstream) *http.Transport {
	dialer := &net.Dialer{Timeout: cmp.Or(time.Duration(u.ConnectTimeout), defaultConnectTimeout)}
	idle := cmp.Or(u.MaxIdle, defaultMaxIdle)
	t := &http.Transport{
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := dialer.DialContext(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			return &countedConn{Conn: conn, shared: u.Protocol == "h2c"}, nil
		},
		TLSHandshakeTimeout:    dialer.Timeout,
		MaxIdleConns:           idle,
		MaxIdleConnsPerHost:    idle,
		IdleConnTimeout:        cmp.Or(time.Duration(u.IdleTimeout), defaultIdleTimeout),
		ExpectContinueTimeout:  time.Second,
		MaxResponseHeaderBytes: maxResponseHeader,
		DisableCompression:     true, // responses pass as they are
		Protocols:              new(http.Protocols),
	}
	switch u.Protocol {
	case "h2c":
		t.Protocols.SetUnencryptedHTTP2(true)
	case "http1":
		t.Protocols.SetHTTP1(true)
	default:
		t.Protocols.SetHTTP1(true)
		t.Protocols.SetHTTP2(true)
	}
	return t
}

// secured reports whether u has fields of TLS.
func (u *Upstream) secured() bool {
	return u.CA != "" || u.Certificate != "" || u.Key != "" || u.ServerName != ""
}

// trip is the state of one request to the service.
type trip struct {
	route *route      // nil on routes that are not protected
	own   http.Header // fields that the proxy adds
	job   bool        // no caller waits for the response

	unreached bool   // nothing was sent
	why       string // that is so

	connUse

	empty bool   // the request has no content
	small []byte // its content, if it is sent in one write with the header

	unread atomic.Bool // the response's content broke off
	undone bool        // the response says that nothing was executed
}

// keeps is how many bytes of the response are stored at most.
func (t *trip) keeps() int { return int(cmp.Or(t.route.MaxResult, 1<<20)) }

// connUse is the connection that a request was sent on.
type connUse struct {
	mu     sync.Mutex
	shared bool         // others use it at the same time
	conn   *countedConn // if it is not shared; so many writes to it had been begun
	before int64
	turn   int64 // the request's own of that connection
	reused bool  // which had been used
}

type tripKey struct{}

func tripOf(ctx context.Context) *trip {
	t, _ := ctx.Value(tripKey{}).(*trip)
	return t
}

// context returns the context under which the request is sent.
func (t *trip) context(ctx context.Context) context.Context {
	return httptrace.WithClientTrace(context.WithValue(ctx, tripKey{}, t), &httptrace.ClientTrace{GotConn: t.gotConn})
}

func (t *trip) gotConn(info httptrace.GotConnInfo) {
	t.mu.Lock()
	defer t.mu.Unlock()
	conn := info.Conn
	if tc, ok := conn.(*tls.Conn); ok {
		if tc.ConnectionState().NegotiatedProtocol == "h2" {
			t.shared = true
			return
		}
		conn = tc.NetConn()
	}
	counted, ok := conn.(*countedConn)
	if !ok || counted.shared {
		t.shared = true
		return
	}
	t.conn, t.before, t.turn, t.reused = counted, counted.written.Load(), counted.take(), info.Reused
}

// untouched reports whether certainly no byte of the request was sent: it had no connection, or
// nothing was written to its connection.
func (t *trip) untouched() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return !t.shared && (t.conn == nil || t.conn.written.Load() == t.before)
}

// opaque is a content that the transport cannot rewind. The transport would send a request with
// an Idempotency-Key again when a reused connection breaks, if it has no content or can rewind
// it.
type opaque struct{ io.ReadCloser }

// once makes the transport send a request once.
func once(r *http.Request) {
	r.GetBody = nil
	if r.Body != nil && r.Body != http.NoBody {
		r.Body = opaque{r.Body}
		return
	}
	r.Body = opaque{http.NoBody}
	if t := tripOf(r.Context()); t != nil {
		t.empty = true
	}
	// The transport would send a content of unknown length as chunked, and services that read
	// Content-Length only would wait for more. "identity" prevents that. The spelling of the
	// field keeps net/http from removing it.
	r.ContentLength = 0
	r.TransferEncoding = []string{"identity"}
	switch r.Method {
	case http.MethodPost, http.MethodPut, http.MethodPatch:
		r.Header["content-length"] = []string{"0"}
	}
}

// maxSmall is the greatest content that is sent in one write with the header.
const maxSmall = 4 << 10

// together makes the transport send a small content, which is in memory, in one write with the
// header. The transport does so with a bytes.Reader only. It cannot rewind it without GetBody.
func (t *trip) together(r *http.Request) {
	if t.empty || r.ContentLength <= 0 || r.ContentLength > maxSmall {
		return
	}
	b := make([]byte, r.ContentLength)
	n, _ := io.ReadFull(r.Body, b) // the transport fails if it is short
	t.small = b[:n]
	r.Body = io.NopCloser(bytes.NewReader(t.small))
}
