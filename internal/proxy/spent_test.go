package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	memorystore "github.com/stet-go/stet/store/memory"
)

// A request that has got a spent connection is sent on another, once.
func TestRequestIsNotWrittenToASpentConnection(t *testing.T) {
	var conns, runs atomic.Int64
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		runs.Add(1)
		content, _ := io.ReadAll(r.Body)
		_, _ = w.Write(content)
	}))
	srv.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			conns.Add(1)
		}
	}
	srv.Start()
	defer srv.Close()
	to, err := toService(Upstream{})
	if err != nil {
		t.Fatal(err)
	}
	defer to.CloseIdleConnections()
	send := func(content string) (*http.Response, *trip, error) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, srv.URL, strings.NewReader(content))
		if err != nil {
			t.Fatal(err)
		}
		tr := &trip{}
		r = r.WithContext(tr.context(r.Context()))
		once(r)
		tr.together(r)
		res, err := to.RoundTrip(r)
		return res, tr, err
	}
	spent := func() {
		res, tr, err := send("{}")
		if err != nil || !tr.spend() {
			t.Fatalf("%v, %v", res, err)
		}
		_, _ = io.Copy(io.Discard, res.Body) // the transport has the connection again, and it is not closed yet
	}
	for _, content := range []string{"{}", "", strings.Repeat("x", 64<<10)} {
		spent()
		had, ran := conns.Load(), runs.Load()
		res, _, err := send(content)
		if err != nil || conns.Load() != had+1 || runs.Load() != ran+1 {
			t.Fatalf("%d bytes: %v, %v, with %d connections more, executed %d times; want 1 and 1", len(content), res, err, conns.Load()-had, runs.Load()-ran)
		}
		if got, err := io.ReadAll(res.Body); string(got) != content || err != nil {
			t.Errorf("the service got %d bytes, %v; want %d", len(got), err, len(content))
		}
		to.CloseIdleConnections()
	}
}

// spend has a request answered, and makes its connection, which is idle by then, a spent one.
func spend(t *testing.T, to serviceTransport, url string) {
	t.Helper()
	res, tr, err := sendOnce(t, to, url)
	if err != nil || !tr.spend() {
		t.Fatalf("%v, %v", res, err)
	}
	_, _ = io.Copy(io.Discard, res.Body)
}

func sendOnce(t *testing.T, to serviceTransport, url string) (*http.Response, *trip, error) {
	t.Helper()
	tr := &trip{}
	r, err := http.NewRequestWithContext(tr.context(t.Context()), http.MethodPost, url, strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	once(r)
	res, err := to.RoundTrip(r)
	return res, tr, err
}

// The state of a spent connection says nothing about the next try: there is one, and
// an unreachable service is reported at once.
func TestServiceIsDialledOnceInPlaceOfASpentConnection(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) }))
	defer srv.Close()
	to, err := toService(Upstream{})
	if err != nil {
		t.Fatal(err)
	}
	defer to.CloseIdleConnections()
	spend(t, to, srv.URL)
	var dials atomic.Int64
	to.DialContext = func(context.Context, string, string) (net.Conn, error) {
		dials.Add(1)
		return nil, errors.New("no route to host")
	}
	if res, tr, err := sendOnce(t, to, srv.URL); err == nil || !tr.untouched() || dials.Load() != 1 {
		t.Errorf("%v, %v, untouched %v, after %d dials; want an error after 1", res, err, tr.untouched(), dials.Load())
	}
}

// The connection in place of a spent one is of another protocol, as with servers of
// different kinds behind one name. What breaks off there may have been executed.
func TestRequestIsSentOnceOverHTTP2InPlaceOfASpentConnection(t *testing.T) {
	var conns, runs atomic.Int64
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(w, r.Body)
		if r.ProtoMajor == 2 {
			runs.Add(1)
			panic(http.ErrAbortHandler)
		}
	}))
	srv.EnableHTTP2 = true
	srv.TLS = &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		c := srv.TLS.Clone()
		c.GetConfigForClient = nil
		if c.NextProtos = []string{"h2"}; conns.Add(1) == 1 {
			c.NextProtos = []string{"http/1.1"}
		}
		return c, nil
	}}
	srv.StartTLS()
	defer srv.Close()
	to, err := toService(Upstream{})
	if err != nil {
		t.Fatal(err)
	}
	to.TLSClientConfig = srv.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
	to.TLSClientConfig.NextProtos = nil
	defer to.CloseIdleConnections()
	spend(t, to, srv.URL)
	res, tr, err := sendOnce(t, to, srv.URL)
	if err == nil {
		_, err = io.Copy(io.Discard, res.Body)
	}
	if err == nil || tr.untouched() || runs.Load() != 1 {
		t.Errorf("%v, untouched %v, executed %d times; want an error, and once", err, tr.untouched(), runs.Load())
	}
}

// Another try sends the content only if nothing of it was read.
func TestContentIsOfOneTry(t *testing.T) {
	tr := &trip{}
	_, first := tr.sendable(&http.Request{Body: io.NopCloser(strings.NewReader("content"))})
	_ = first.Close()
	second := first.next()
	if n, err := first.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Errorf("the first try reads %d, %v, though it is over", n, err)
	}
	if got, err := io.ReadAll(second); string(got) != "content" || err != nil {
		t.Errorf("the second try sends %q, %v", got, err)
	}
	if second.next() != nil {
		t.Error("bytes that were read go to another try")
	}
}

func TestSmallContentIsSentWithTheHeader(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		content, _ := io.ReadAll(r.Body)
		_, _ = w.Write(content)
	}))
	defer srv.Close()
	c, err := Parse("stet.yaml", strings.NewReader("upstream: {url: "+srv.URL+"}\nscope: single-tenant\n"), os.LookupEnv)
	if err != nil {
		t.Fatal(err)
	}
	p, err := New(memorystore.New(memorystore.Options{}), c, Options{ErrorLog: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	var conn *countedConn
	to := p.current().transport
	dial := to.DialContext
	to.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := dial(ctx, network, addr)
		conn, _ = c.(*countedConn)
		return c, err
	}
	for content, once := range map[string]bool{"{}": true, strings.Repeat("x", 64<<10): false} {
		to.CloseIdleConnections()
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", strings.NewReader(content))
		r.Header.Set("Idempotency-Key", content[:1])
		w := httptest.NewRecorder()
		p.ServeHTTP(w, r)
		if n := conn.written.Load(); w.Body.String() != content || (n == 1) != once {
			t.Errorf("%d bytes: %d, with %d writes to the service", len(content), w.Code, n)
		}
	}
}
