package stetclient_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stetclient"
)

// sent is an attempt as the RoundTripper below saw it.
type sent struct {
	at     time.Time
	header http.Header
	body   string
	length int64
	getter bool // GetBody is set
}

// script is a RoundTripper with a response for each attempt. The last one is repeated.
type script struct {
	t       *testing.T
	answers []func(*http.Request) (*http.Response, error)
	mu      sync.Mutex
	sent    []sent
}

func (s *script) RoundTrip(req *http.Request) (*http.Response, error) {
	body := ""
	if req.Body != nil {
		b, err := io.ReadAll(req.Body)
		if err != nil {
			s.t.Error(err)
		}
		body = string(b)
		if err := req.Body.Close(); err != nil {
			s.t.Error(err)
		}
	}
	s.mu.Lock()
	s.sent = append(s.sent, sent{time.Now(), req.Header.Clone(), body, req.ContentLength, req.GetBody != nil})
	n := len(s.sent)
	s.mu.Unlock()
	return s.answers[min(n, len(s.answers))-1](req)
}

func (s *script) wantAttempts(n int) {
	s.t.Helper()
	if len(s.sent) != n {
		s.t.Errorf("%d attempts, want %d", len(s.sent), n)
	}
}

// status answers with a status and headers.
func status(code int, header ...string) func(*http.Request) (*http.Response, error) {
	return answer(code, "", header...)
}

func answer(code int, body string, header ...string) func(*http.Request) (*http.Response, error) {
	return func(req *http.Request) (*http.Response, error) {
		h := make(http.Header)
		for i := 0; i+1 < len(header); i += 2 {
			h.Add(header[i], header[i+1])
		}
		return &http.Response{StatusCode: code, Header: h, Body: io.NopCloser(strings.NewReader(body)), ContentLength: int64(len(body)), Request: req}, nil
	}
}

// fails is an attempt without a response. Like net/http, it reports that it asked for a connection.
func fails(err error) func(*http.Request) (*http.Response, error) {
	return func(req *http.Request) (*http.Response, error) {
		if trace := httptrace.ContextClientTrace(req.Context()); trace != nil {
			trace.GetConn("service.test:80")
		}
		return nil, err
	}
}

var (
	errReset = &net.OpError{Op: "read", Net: "tcp", Err: errors.New("connection reset by peer")}
	errDial  = &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("connection refused")}
)

// hangs answers nothing until the attempt's context ends.
func hangs(req *http.Request) (*http.Response, error) {
	<-req.Context().Done()
	return nil, req.Context().Err()
}

func problem(code int, retryable, execution string, header ...string) func(*http.Request) (*http.Response, error) {
	return answer(code, `{"type":"https://example.com/p#x","title":"T","status":0,"detail":"D","retryable":`+retryable+`,"execution":"`+execution+`"}`,
		append(header, "Content-Type", "application/problem+json")...)
}

// newClient returns a client whose attempts are answered by a script.
func newClient(t *testing.T, o stetclient.Options, answers ...func(*http.Request) (*http.Response, error)) (*stetclient.Transport, *script) {
	t.Helper()
	s := &script{t: t, answers: answers}
	tr, err := stetclient.New(s, o)
	if err != nil {
		t.Fatal(err)
	}
	return tr, s
}

// post sends a POST and reads the response.
func post(ctx context.Context, t *testing.T, rt http.RoundTripper, body string) (*http.Response, string, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://service.test/payments", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	return do(t, rt, req)
}

func do(t *testing.T, rt http.RoundTripper, req *http.Request) (*http.Response, string, error) {
	t.Helper()
	res, err := rt.RoundTrip(req)
	if err != nil {
		if res != nil {
			t.Error("a response and an error")
		}
		return nil, "", err
	}
	b, err := io.ReadAll(res.Body)
	if cerr := res.Body.Close(); cerr != nil {
		t.Error(cerr)
	}
	return res, string(b), err
}

// wantError checks the error of a call.
func wantError(t *testing.T, err error, reason stetclient.Reason, x stet.Execution) *stetclient.Error {
	t.Helper()
	e, ok := errors.AsType[*stetclient.Error](err)
	if !ok {
		t.Fatalf("got %v, want a *stetclient.Error", err)
	}
	if e.Reason != reason || e.Execution != x {
		t.Errorf("got %q (%v), want %q (%v)", e.Reason, e.Execution, reason, x)
	}
	if got := stet.ExecutionOf(err); got != x {
		t.Errorf("stet.ExecutionOf is %v, want %v", got, x)
	}
	kind := map[stet.Execution]stet.Kind{stet.MayHaveExecuted: stet.KindUnknown, stet.NotExecuted: stet.KindRetryable, stet.Executed: stet.KindExpired}[x]
	if cause := stet.KindOf(e.Cause); reason == stetclient.ReasonRequest && cause != 0 {
		kind = cause
	}
	if stet.KindOf(err) != kind {
		t.Errorf("%v is not %v", err, kind)
	}
	return e
}

func TestMain(m *testing.M) {
	if childMain() {
		return
	}
	goleak.VerifyTestMain(m)
}
