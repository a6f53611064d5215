package proxy

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
)

// A request that has got a spent connection is sent on another, once.
func TestRequestIsNotWrittenToASpentConnection(t *testing.T) {
	var conns, runs atomic.Int64
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		runs.Add(1)
		_, _ = io.Copy(w, r.Body)
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
		once(r, len(content) < maxCopied)
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
	for _, content := range []string{"{}", ""} {
		spent()
		had, ran := conns.Load(), runs.Load()
		res, _, err := send(content)
		if err != nil || conns.Load() != had+1 || runs.Load() != ran+1 {
			t.Fatalf("%q: %v, %v, with %d connections more, executed %d times; want 1 and 1", content, res, err, conns.Load()-had, runs.Load()-ran)
		}
		if got, err := io.ReadAll(res.Body); string(got) != content || err != nil {
			t.Errorf("the service got %q, %v; want %q", got, err, content)
		}
		to.CloseIdleConnections()
	}
	spent()
	ran := runs.Load()
	if res, tr, err := send(strings.Repeat("x", maxCopied)); err == nil || !tr.untouched() || runs.Load() != ran { // its content is not at hand
		t.Errorf("%v, %v; want an error, and nothing sent", res, err)
	}
}
