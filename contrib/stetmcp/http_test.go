package stetmcp_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/contrib/stetmcp"
)

// overHTTP serves a server by streamable HTTP, and returns its URL.
func overHTTP(t testing.TB, s *mcp.Server, o *mcp.StreamableHTTPOptions, around func(http.Handler) http.Handler) string {
	var h http.Handler = mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return s }, o)
	if around != nil {
		h = around(h)
	}
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	return srv.URL
}

// bearer adds a token to requests.
type bearer string

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+string(b))
	return http.DefaultTransport.RoundTrip(r)
}

// dial returns a session with the server at a URL.
func dial(t testing.TB, url, token string) *mcp.ClientSession {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	transport := &mcp.StreamableClientTransport{Endpoint: url, HTTPClient: &http.Client{Transport: bearer(token)}, MaxRetries: -1}
	c, err := mcp.NewClient(&mcp.Implementation{Name: "agent"}, nil).Connect(ctx, transport, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestOverHTTPAKeyOutlivesItsSession(t *testing.T) {
	for name, o := range map[string]*mcp.StreamableHTTPOptions{"sessions": nil, "JSON": {JSONResponse: true}, "stateless": {Stateless: true}} {
		t.Run(name, func(t *testing.T) {
			srv := newPayments(t, newEngine(t, stet.Options{}), single())
			url := overHTTP(t, srv.Server, o, nil)
			first := callTool(t, dial(t, url, ""), pay("k1", `{"cents":42}`))
			again := callTool(t, dial(t, url, ""), pay("k1", `{"cents":42}`))
			if said(t, first) != said(t, again) || again.Meta[replayedName] != true || srv.ran.Load() != 1 {
				t.Errorf("first %s, again %s", said(t, first), said(t, again))
			}
		})
	}
}

func TestOverHTTPACallFromAnotherSessionJoins(t *testing.T) {
	srv, runs, let := held(t, newEngine(t, stet.Options{}), single())
	url := overHTTP(t, srv.Server, nil, nil)
	a, b := dial(t, url, ""), dial(t, url, "")
	got := make(chan *mcp.CallToolResult, 2)
	go func() { got <- callTool(t, a, pay("k1", `{"cents":42}`)) }()
	<-runs
	go func() { got <- callTool(t, b, pay("k1", `{"cents":42}`)) }()
	close(let)
	if x, y := <-got, <-got; said(t, x) != said(t, y) || srv.ran.Load() != 1 {
		t.Errorf("got %s and %s", said(t, x), said(t, y))
	}
}

// TestAClientThatLeavesFindsItsResult: its connection breaks while the tool runs.
func TestAClientThatLeavesFindsItsResult(t *testing.T) {
	srv, runs, let := held(t, newEngine(t, stet.Options{}), single())
	url := overHTTP(t, srv.Server, nil, nil)
	c := dial(t, url, "")
	ctx, cancel := context.WithCancel(context.Background())
	left := make(chan struct{})
	go func() { _, _ = c.CallTool(ctx, pay("k1", `{"cents":42}`)); close(left) }()
	run := <-runs
	cancel()
	<-left
	_ = c.Close() // the session ends, too
	if run.Err() != nil {
		t.Errorf("the run was ended: %v", context.Cause(run))
	}
	got := make(chan *mcp.CallToolResult, 1)
	again := dial(t, url, "")
	go func() { got <- callTool(t, again, pay("k1", `{"cents":42}`)) }()
	close(let)
	if res := <-got; res.IsError || srv.ran.Load() != 1 {
		t.Errorf("got %s after %d runs", said(t, res), srv.ran.Load())
	}
}

func TestTheWindowIsOfASession(t *testing.T) {
	for name, tc := range map[string]struct {
		o    *mcp.StreamableHTTPOptions
		runs int64
	}{"sessions": {nil, 2}, "stateless": {&mcp.StreamableHTTPOptions{Stateless: true}, 1}} {
		t.Run(name, func(t *testing.T) {
			eo, o := windowed()
			srv := newPayments(t, newEngine(t, eo), o)
			url := overHTTP(t, srv.Server, tc.o, nil)
			for range 2 {
				c := dial(t, url, "")
				for range 2 {
					callTool(t, c, pay("", `{"cents":42}`))
				}
			}
			if n := srv.ran.Load(); n != tc.runs {
				t.Errorf("the tool ran %d times in two sessions; want %d", n, tc.runs)
			}
		})
	}
}

func TestUsersDoNotShareKeys(t *testing.T) {
	verify := func(_ context.Context, token string, _ *http.Request) (*auth.TokenInfo, error) {
		user, _, _ := strings.Cut(token, "-")
		return &auth.TokenInfo{UserID: user, Expiration: time.Now().Add(time.Hour)}, nil
	}
	o := stetmcp.Options{Scope: stetmcp.TokenUser}
	srv := newPayments(t, newEngine(t, stet.Options{}), o)
	url := overHTTP(t, srv.Server, nil, auth.RequireBearerToken(verify, nil))
	for i, tc := range []struct {
		token    string
		replayed any
	}{{"ann-1", nil}, {"ann-2", true}, {"bob-1", nil}} {
		if res := callTool(t, dial(t, url, tc.token), pay("k1", `{"cents":42}`)); res.Meta[replayedName] != tc.replayed || res.IsError {
			t.Errorf("%d, %s: %s", i, tc.token, said(t, res))
		}
	}
	refusedAs(t, callTool(t, dial(t, url, "-1"), pay("k1", `{"cents":42}`)), "scope-missing", "not executed")
	bare := overHTTP(t, srv.Server, nil, nil) // without the middleware that finds the user
	refusedAs(t, callTool(t, dial(t, bare, "ann-1"), pay("k1", `{"cents":42}`)), "scope-failed", "not executed")
	if n := srv.ran.Load(); n != 2 {
		t.Errorf("the tool ran %d times", n)
	}
}
