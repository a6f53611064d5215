package stetclient_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stetclient"
)

var uuid4 = regexp.MustCompile(`^"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"$`)

func TestEachOperationGetsAFreshQuotedUUID(t *testing.T) {
	tr, s := newClient(t, stetclient.Options{}, status(201))
	for range 100 {
		if _, _, err := post(t.Context(), t, tr, "x"); err != nil {
			t.Fatal(err)
		}
	}
	seen := make(map[string]bool)
	for _, sent := range s.sent {
		key := sent.header.Get("Idempotency-Key")
		if !uuid4.MatchString(key) || seen[key] {
			t.Fatalf("key %s, seen %v", key, seen[key])
		}
		seen[key] = true
	}
}

func TestKeyOfTheCaller(t *testing.T) {
	const derived = "8e03978e-40d5-43e8-bc93-6894a57f9324"
	for _, c := range []struct {
		name    string
		service stetclient.Service
		header  []string
		context string
		want    string // the header sent; "": refused
		key     string
	}{
		{"context", stetclient.Service{}, nil, derived, `"` + derived + `"`, derived},
		{"context, raw", stetclient.Service{Raw: true}, nil, derived, derived, derived},
		{"context, with a quote", stetclient.Service{}, nil, `a"b\c`, `"a\"b\\c"`, `a"b\c`},
		{"other header", stetclient.Service{Header: "X-Idempotency-Key", Raw: true}, []string{"k"}, "", "k", "k"},
		{"request, raw", stetclient.Service{}, []string{"k"}, "", "k", "k"},
		{"request, quoted", stetclient.Service{}, []string{`"a\"b";p=1`}, "", `"a\"b";p=1`, `a"b`},
		{"both, the same", stetclient.Service{}, []string{`"k"`}, "k", `"k"`, "k"},
		{"both, different", stetclient.Service{}, []string{`"k"`}, "l", "", ""},
		{"two headers", stetclient.Service{}, []string{"a", "b"}, "", "", ""},
		{"empty header", stetclient.Service{}, []string{""}, "", "", ""},
		{"empty quotes", stetclient.Service{}, []string{`""`}, "", "", ""},
		{"unterminated", stetclient.Service{}, []string{`"k`}, "", "", ""},
		{"escaped end", stetclient.Service{}, []string{`"k\"`}, "", "", ""},
		{"255 bytes", stetclient.Service{Raw: true}, nil, strings.Repeat("k", 255), strings.Repeat("k", 255), strings.Repeat("k", 255)},
		{"256 bytes", stetclient.Service{}, nil, strings.Repeat("k", 256), "", ""},
		{"space", stetclient.Service{}, nil, "a b", "", ""},
		{"CR LF", stetclient.Service{}, []string{"a\r\nb"}, "", "", ""},
		{"not ASCII", stetclient.Service{}, nil, "é", "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			tr, s := newClient(t, stetclient.Options{Service: c.service}, status(201))
			ctx := t.Context()
			if c.context != "" {
				ctx = stetclient.WithKey(ctx, c.context)
			}
			req, _ := http.NewRequestWithContext(ctx, http.MethodPut, "http://service.test/", strings.NewReader("x")) // a key makes any method an operation
			name := http.CanonicalHeaderKey(c.service.Header)
			if name == "" {
				name = "Idempotency-Key"
			}
			if c.header != nil {
				req.Header[name] = c.header
			}
			res, _, err := do(t, tr, req)
			if c.want == "" {
				if e := wantError(t, err, stetclient.ReasonRequest, stet.NotExecuted); stet.KindOf(e) != stet.KindInvalid {
					t.Errorf("%v is not stet.KindInvalid", e)
				}
				s.wantAttempts(0)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := s.sent[0].header[name]; len(got) != 1 || got[0] != c.want {
				t.Errorf("sent %q, want %q", got, c.want)
			}
			if info, _ := stetclient.InfoOf(res); info.Key != c.key {
				t.Errorf("InfoOf has the key %q, want %q", info.Key, c.key)
			}
			if got := req.Header[name]; len(got) != len(c.header) {
				t.Errorf("the caller's request was changed: %q", got)
			}
		})
	}
}

func TestOtherRequestsPassThroughOnce(t *testing.T) {
	skip := func(r *http.Request) bool { return r.URL.Path == "/upgrade" }
	tr, s := newClient(t, stetclient.Options{Skip: skip}, fails(errReset))
	for _, r := range []*http.Request{httptest.NewRequest("GET", "/", nil), httptest.NewRequest("POST", "/upgrade", nil)} {
		if _, _, err := do(t, tr, r); err != error(errReset) {
			t.Errorf("got %v, want the error of the RoundTripper below", err)
		}
	}
	s.wantAttempts(2)
	if key := s.sent[0].header.Get("Idempotency-Key"); key != "" {
		t.Errorf("a GET has the key %s", key)
	}
}

func TestBodies(t *testing.T) {
	const limit = 10
	for _, c := range []struct {
		name     string
		body     io.Reader
		getBody  bool
		length   int64
		attempts int
		reason   stetclient.Reason
	}{
		{"GetBody of any size", strings.NewReader(strings.Repeat("x", 100)), true, 100, 2, ""},
		{"read ahead", strings.NewReader("0123456789"), false, -1, 2, ""},
		{"read ahead, of known length", strings.NewReader("012345678"), false, 9, 2, ""},
		{"empty, of unknown length", strings.NewReader(""), false, -1, 2, ""},
		{"too large", strings.NewReader("0123456789a"), false, -1, 0, stetclient.ReasonRequest},
		{"known to be too large", strings.NewReader("0123456789a"), false, 11, 0, stetclient.ReasonRequest},
		{"unreadable", iotest.ErrReader(io.ErrUnexpectedEOF), false, -1, 0, stetclient.ReasonRequest},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tr, s := newClient(t, stetclient.Options{MaxBody: limit}, fails(errReset), status(201))
				req, _ := http.NewRequestWithContext(t.Context(), "POST", "http://service.test/", c.body)
				closed := &closer{Reader: req.Body}
				want := ""
				if r, ok := c.body.(*strings.Reader); ok {
					b := make([]byte, r.Len())
					_, _ = r.ReadAt(b, 0)
					want = string(b)
				}
				if req.Body == http.NoBody {
					closed.Reader = c.body
				}
				req.Body, req.ContentLength = closed, c.length
				if !c.getBody {
					req.GetBody = nil
				}
				_, _, err := do(t, tr, req)
				s.wantAttempts(c.attempts)
				for _, sent := range s.sent {
					if sent.body != want {
						t.Errorf("sent %q, want %q", sent.body, want)
					}
				}
				x := stet.MayHaveExecuted
				if c.attempts == 0 {
					x = stet.NotExecuted
				}
				if c.reason != "" {
					wantError(t, err, c.reason, x)
				} else if err != nil {
					t.Error(err)
				}
				if closed.n.Load() == 0 {
					t.Error("the body was not closed")
				}
			})
		})
	}
}

type closer struct {
	io.Reader
	n atomic.Int32
}

func (c *closer) Close() error {
	c.n.Add(1)
	return nil
}

func TestResponseThatBreaksOffIsRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := func(req *http.Request) (*http.Response, error) {
			res, err := answer(201, "charge 1")(req)
			res.Body = io.NopCloser(io.MultiReader(strings.NewReader("char"), iotest.ErrReader(io.ErrUnexpectedEOF)))
			return res, err
		}
		tr, s := newClient(t, stetclient.Options{}, broken, answer(201, "charge 1", "Idempotent-Replayed", "true"))
		res, body, err := post(t.Context(), t, tr, "x")
		if err != nil || body != "charge 1" {
			t.Fatalf("got %q, %v", body, err)
		}
		if info, _ := stetclient.InfoOf(res); !info.Replayed || info.Attempts != 2 {
			t.Errorf("info %+v", info)
		}
		s.wantAttempts(2)

		tr, _ = newClient(t, stetclient.Options{}, broken)
		_, _, err = post(t.Context(), t, tr, "x")
		wantError(t, err, stetclient.ReasonAttempts, stet.Executed)

		// A larger one is the caller's to read.
		tr, _ = newClient(t, stetclient.Options{MaxResponse: 3}, broken)
		_, _, err = post(t.Context(), t, tr, "x")
		wantError(t, err, stetclient.ReasonTruncated, stet.Executed)
	})
}

func TestLargeResponsesAreReturnedWhole(t *testing.T) {
	for _, n := range []int{0, 1, 1023, 1024, 1025, 4096, 4097, 100_000} {
		for _, known := range []bool{true, false} {
			want := strings.Repeat("0123456789", n/10+1)[:n]
			tr, _ := newClient(t, stetclient.Options{MaxResponse: 4096}, func(req *http.Request) (*http.Response, error) {
				res, err := answer(201, want)(req)
				if !known {
					res.ContentLength = -1
				}
				return res, err
			})
			if _, body, err := post(t.Context(), t, tr, "x"); err != nil || body != want {
				t.Errorf("%d bytes: got %d, %v", n, len(body), err)
			}
		}
	}
}

func TestEventStreamsAreNotBuffered(t *testing.T) {
	r, w := io.Pipe()
	defer w.Close()
	stream := func(req *http.Request) (*http.Response, error) {
		res, err := status(200, "Content-Type", "text/event-stream")(req)
		res.Body, res.ContentLength = r, -1
		return res, err
	}
	tr, _ := newClient(t, stetclient.Options{Policy: stetclient.Policy{AttemptTimeout: time.Hour}}, stream)
	req := httptest.NewRequest("POST", "/", strings.NewReader("x"))
	res, err := tr.RoundTrip(req) // returns although nothing was written
	if err != nil {
		t.Fatal(err)
	}
	go func() { _, _ = io.WriteString(w, "data: 1\n") }()
	if line, err := bufio.NewReader(res.Body).ReadString('\n'); err != nil || line != "data: 1\n" {
		t.Errorf("got %q, %v", line, err)
	}
	if err := res.Body.Close(); err != nil {
		t.Error(err)
	}
}

// TestAttemptTimeoutEndsWithTheHeaderOfAStream: the caller reads the body without a limit, and
// Close ends the context of the attempt.
func TestAttemptTimeoutEndsWithTheHeaderOfAStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var attempt context.Context
		r, w := io.Pipe()
		tr, _ := newClient(t, stetclient.Options{MaxResponse: -1, Policy: stetclient.Policy{AttemptTimeout: time.Second}}, func(req *http.Request) (*http.Response, error) {
			attempt = req.Context()
			context.AfterFunc(attempt, func() { _ = w.CloseWithError(attempt.Err()) })
			res, err := status(200)(req)
			res.Body, res.ContentLength = r, -1
			return res, err
		})
		res, err := tr.RoundTrip(httptest.NewRequest("POST", "/", strings.NewReader("x")))
		if err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(time.Minute, func() {
			_, _ = io.WriteString(w, "late")
			_ = w.Close()
		})
		if b, err := io.ReadAll(res.Body); err != nil || string(b) != "late" {
			t.Errorf("got %q, %v", b, err)
		}
		if attempt.Err() != nil {
			t.Error("the attempt's context ended before the body was closed")
		}
		if err := res.Body.Close(); err != nil || attempt.Err() == nil {
			t.Errorf("after Close (%v) the attempt's context has not ended", err)
		}
	})
}

func TestARedirectedOperationKeepsItsKey(t *testing.T) {
	var keys []string
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		keys = append(keys, r.Header.Get("Idempotency-Key"))
		if r.URL.Path == "/old" {
			http.Redirect(w, r, "/new", http.StatusTemporaryRedirect)
		}
	}))
	defer srv.Close()
	tr, err := stetclient.New(nil, stetclient.Options{})
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: tr}
	defer client.CloseIdleConnections()
	res, err := client.Post(srv.URL+"/old", "text/plain", strings.NewReader("x"))
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	if len(keys) != 2 || keys[0] == "" || keys[0] != keys[1] {
		t.Errorf("keys %q, want the same one twice", keys)
	}
}

func TestRoundTripperMayBreakItsContract(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nothing := func(*http.Request) (*http.Response, error) { return nil, nil }
		bodiless := func(*http.Request) (*http.Response, error) { return &http.Response{StatusCode: 204}, nil }
		tr, s := newClient(t, stetclient.Options{}, nothing, bodiless)
		res, body, err := post(t.Context(), t, tr, "x")
		if err != nil || res.StatusCode != 204 || body != "" {
			t.Errorf("got %v, %q, %v", res, body, err)
		}
		s.wantAttempts(2)
	})
}

// connects is an attempt that had a connection.
func connects(req *http.Request) {
	if trace := httptrace.ContextClientTrace(req.Context()); trace != nil {
		trace.GotConn(httptrace.GotConnInfo{})
	}
}

func TestCircuitBreakerBelowEndsTheCall(t *testing.T) {
	open := errors.New("open")
	type answers []func(*http.Request) (*http.Response, error)
	breaks := func(*http.Request) (*http.Response, error) { return nil, stetclient.Final(open, stet.NotExecuted) }
	late := func(req *http.Request) (*http.Response, error) { connects(req); return breaks(req) }
	wrong := func(*http.Request) (*http.Response, error) { return nil, stetclient.Final(open, stet.MayHaveExecuted) }
	for name, c := range map[string]struct {
		answers answers
		reason  stetclient.Reason
		want    stet.Execution
	}{
		"first attempt":                        {answers{breaks}, stetclient.ReasonRefused, stet.NotExecuted},
		"after a 500":                          {answers{status(500), breaks}, stetclient.ReasonRefused, stet.MayHaveExecuted},
		"within an attempt that was sent once": {answers{late}, stetclient.ReasonFinal, stet.MayHaveExecuted},
		"may have executed":                    {answers{wrong}, stetclient.ReasonFinal, stet.MayHaveExecuted},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tr, s := newClient(t, stetclient.Options{}, c.answers...)
				_, _, err := post(t.Context(), t, tr, "x")
				wantError(t, err, c.reason, c.want)
				if !errors.Is(err, open) {
					t.Errorf("%v does not wrap the breaker's error", err)
				}
				s.wantAttempts(len(c.answers))
			})
		})
	}
}

// The breaker's error is about its own attempt only.
func TestOpenBreakerAfterALostAttemptIsNotNotExecuted(t *testing.T) {
	breaks := func(*http.Request) (*http.Response, error) {
		return nil, stetclient.Final(errors.New("open"), stet.NotExecuted)
	}
	synctest.Test(t, func(t *testing.T) {
		for name, calls := range map[string]int{"one call": 1, "two calls": 2} {
			tr, s := newClient(t, stetclient.Options{}, fails(errReset), breaks)
			_, err := stetclient.Retry(t.Context(), stetclient.Policy{MaxAttempts: calls}, func(ctx context.Context) (int, error) {
				_, _, err := post(stetclient.WithKey(ctx, "k"), t, tr, "x")
				return 0, err
			})
			wantError(t, err, stetclient.ReasonAttempts, stet.MayHaveExecuted)
			s.wantAttempts(1 + calls)
			if t.Failed() {
				t.Fatal(name)
			}
		}
		inner, s := newClient(t, stetclient.Options{}, fails(errReset), breaks)
		outer, err := stetclient.New(inner, stetclient.Options{Policy: stetclient.Policy{MaxAttempts: 2}})
		if err != nil {
			t.Fatal(err)
		}
		_, _, err = post(t.Context(), t, outer, "x")
		wantError(t, err, stetclient.ReasonAttempts, stet.MayHaveExecuted)
		s.wantAttempts(3)
	})
}

func TestErrorsAndEventsHaveNoKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var events []stetclient.Event
		tr, _ := newClient(t, stetclient.Options{Observe: func(_ context.Context, e stetclient.Event) { events = append(events, e) }}, fails(errReset), status(500))
		_, _, err := post(stetclient.WithKey(t.Context(), "secret-key"), t, tr, "secret-body")
		wantError(t, err, stetclient.ReasonAttempts, stet.MayHaveExecuted)
		if s := fmt.Sprintf("%v %+v", err, events); strings.Contains(s, "secret") {
			t.Errorf("a secret is in %s", s)
		}
		if len(events) != stetclient.DefaultMaxAttempts || events[0].Err == nil || events[1].Status != 500 || !events[1].Retry || events[0].Host != "service.test" {
			t.Errorf("events %+v", events)
		}
	})
}
