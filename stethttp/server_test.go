package stethttp_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"strings"
	"testing"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/observe"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

func TestRetryGetsTheFirstResponse(t *testing.T) {
	for _, status := range []int{200, 201, 202, 204, 301, 303, 304, 400, 402, 404, 405, 409, 410, 422, 500, 501, 502, 503, 504, 599, 999} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			s := start(t, setup{handler: func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Location", "/payments/1")
				w.Header()["X-List"] = []string{"a, b", "c"}
				w.WriteHeader(status)
				_, _ = fmt.Fprintf(w, "run %d", stet.FromContext(r.Context()).Attempt())
			}})
			first, retry := s.post("k", "{}"), s.post("k", "{}")
			body := "run 1"
			if status == 204 || status == 304 {
				body = ""
			}
			wantReply(t, first, status, body, false)
			wantReply(t, retry, status, body, true)
			if retry.header.Get("Cache-Control") != "no-store" {
				t.Errorf("Cache-Control of the replay: %q", retry.header["Cache-Control"])
			}
			retry.header.Del("Cache-Control")
			retry.header.Del("Idempotent-Replayed")
			for _, name := range []string{"Date", "Idempotency-Expires"} { // of a replay, it may be later
				first.header.Del(name)
				retry.header.Del(name)
			}
			if fmt.Sprint(first.header) != fmt.Sprint(retry.header) {
				t.Errorf("headers differ:\nfirst %v\nretry %v", first.header, retry.header)
			}
			s.wantRuns(1)
		})
	}
}

func TestNotExecutedIsConfigurable(t *testing.T) {
	s := start(t, setup{
		options: stethttp.Options{NotExecuted: func(status int, h http.Header) bool { return status == 418 && h.Get("X-Early") != "" }},
		handler: func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X-Early", "1")
			w.WriteHeader(http.StatusTeapot)
		},
	})
	s.post("k", "{}")
	s.post("k", "{}")
	s.wantRuns(2)
}

func TestOtherMethodsPassThroughEvenWithAKey(t *testing.T) {
	s := start(t, setup{})
	for _, method := range []string{"GET", "HEAD", "OPTIONS", "PUT", "DELETE"} {
		for range 2 {
			if r := s.do(s.request(method, "/payments", "k", "")); r.status != 201 || r.replayed() {
				t.Errorf("%s: %d, replayed %v", method, r.status, r.replayed())
			}
		}
	}
	s.wantRuns(10)
	for _, method := range []string{"POST", "PATCH"} {
		wantReply(t, s.do(s.request(method, "/payments", method, "x")), 201, "x", false)
		wantReply(t, s.do(s.request(method, "/payments", method, "x")), 201, "x", true)
	}
}

func TestHeadCanBeProtected(t *testing.T) {
	s := start(t, setup{options: stethttp.Options{Methods: []string{"HEAD"}}, handler: func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "100")
		w.WriteHeader(http.StatusOK)
	}})
	for i := range 2 {
		r := s.do(s.request("HEAD", "/", "k", ""))
		wantReply(t, r, 200, "", i > 0)
		if r.header.Get("Content-Length") != "100" {
			t.Errorf("Content-Length %q", r.header.Get("Content-Length"))
		}
	}
}

func TestSkippedRequestsPassThrough(t *testing.T) {
	s := start(t, setup{options: stethttp.Options{Skip: func(r *http.Request) bool { return r.Header.Get("Upgrade") != "" }}})
	wantReply(t, s.post("", "x", "Upgrade", "websocket"), 201, "x", false)
	wantProblem(t, s.post("", "x"), 400, "key-missing")
}

func TestAnotherRequestUnderTheSameKeyIsRefused(t *testing.T) {
	type edit = func(*http.Request)
	header := func(name, value string) edit { return func(r *http.Request) { r.Header.Set(name, value) } }
	uri := func(opaque string) edit { return func(r *http.Request) { r.URL.Opaque, r.URL.RawQuery = opaque, "" } }
	for name, edit := range map[string]edit{
		"method":            func(r *http.Request) { r.Method = "PATCH" },
		"path":              uri("/payments2"),
		"trailing slash":    uri("/payments/?a=1&b=2"),
		"escaped":           uri("/p%61yments?a=1&b=2"),
		"query order":       uri("/payments?b=2&a=1"),
		"no query":          uri("/payments"),
		"content type":      header("Content-Type", "text/plain"),
		"content coding":    header("Content-Encoding", "gzip"),
		"method override":   header("X-HTTP-Method-Override", "DELETE"),
		"empty body":        func(r *http.Request) { r.Body, r.ContentLength = http.NoBody, 0 },
		"body":              func(r *http.Request) { r.Body = io.NopCloser(strings.NewReader("{ }")); r.ContentLength = 3 },
		"empty JSON object": func(r *http.Request) { r.Body = io.NopCloser(strings.NewReader("[]")); r.ContentLength = 2 },
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t, setup{})
			make := func() *http.Request {
				return s.request("POST", "/payments?a=1&b=2", "k", "{}", "Content-Type", "application/json")
			}
			wantReply(t, s.do(make()), 201, "{}", false)
			req := make()
			edit(req)
			wantProblem(t, s.do(req), 422, "mismatch")
			again := make()
			again.Header.Set("User-Agent", "another")
			again.Header.Set("Accept-Encoding", "br")
			wantReply(t, s.do(again), 201, "{}", true)
			s.wantRuns(1)
		})
	}
}

func TestEscapedSlashIsNotASlash(t *testing.T) {
	s := start(t, setup{})
	wantReply(t, s.do(s.request("POST", "/a%2Fb", "k", "{}")), 201, "{}", false)
	wantProblem(t, s.do(s.request("POST", "/a/b", "k", "{}")), 422, "mismatch")
}

func TestRewrittenPathIsStillTheOneSent(t *testing.T) {
	s := start(t, setup{around: func(h http.Handler) http.Handler {
		mux := http.NewServeMux()
		mux.Handle("/v1/", http.StripPrefix("/v1", h))
		mux.Handle("/v2/", http.StripPrefix("/v2", h))
		return mux
	}})
	wantReply(t, s.do(s.request("POST", "/v1/pay", "k", "{}")), 201, "{}", false)
	wantProblem(t, s.do(s.request("POST", "/v2/pay", "k", "{}")), 422, "mismatch")
}

func TestMultipartBoundaryDoesNotMatter(t *testing.T) {
	form := func(boundary, value string) (string, string) {
		var b bytes.Buffer
		w := multipart.NewWriter(&b)
		_ = w.SetBoundary(boundary)
		_ = w.WriteField("amount", value)
		part, _ := w.CreateFormFile("file", "a.txt")
		_, _ = part.Write([]byte("content"))
		_ = w.Close()
		return b.String(), w.FormDataContentType()
	}
	s := start(t, setup{handler: func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.FormValue("amount"))
	}})
	send := func(boundary, value string, edit func(string) string) reply {
		body, contentType := form(boundary, value)
		return s.post("k", edit(body), "Content-Type", contentType)
	}
	same := func(s string) string { return s }
	wantReply(t, send("aaaa", "10", same), 200, "10", false)
	wantReply(t, send("bbbb", "10", same), 200, "10", true)
	wantProblem(t, send("bbbb", "11", same), 422, "mismatch")
	wantProblem(t, send("bbbb", "10", func(s string) string { return strings.Replace(s, "a.txt", "b.txt", 1) }), 422, "mismatch")
	wantProblem(t, send("bbbb", "10", func(s string) string { return strings.TrimSuffix(s, "--bbbb--\r\n") }), 422, "mismatch")
	wantProblem(t, send("bbbb", "10", func(s string) string { return "not multipart" }), 422, "mismatch")
	s.wantRuns(1)
}

func TestCanonicalBodyIsOptIn(t *testing.T) {
	fold := func(mediaType string, body []byte) ([]byte, error) {
		if mediaType != "application/json" || bytes.Contains(body, []byte("raw")) {
			return nil, errors.New("not canonical")
		}
		return bytes.ReplaceAll(body, []byte(" "), nil), nil
	}
	s := start(t, setup{options: stethttp.Options{Canonicalize: fold}})
	js := []string{"Content-Type", "application/json; charset=utf-8"}
	wantReply(t, s.post("k", `{"a": 1}`, js...), 201, `{"a": 1}`, false)
	wantReply(t, s.post("k", `{"a":1}`, js...), 201, `{"a": 1}`, true)
	wantProblem(t, s.post("k", `{"a":2}`, js...), 422, "mismatch")
	wantReply(t, s.post("r", `raw 1`, js...), 201, `raw 1`, false)
	wantProblem(t, s.post("r", `raw  1`, js...), 422, "mismatch")
	wantProblem(t, start(t, setup{store: s.store}).post("k", `{"a":1}`, js...), 422, "mismatch") // made another way
}

func TestScopeIsRequired(t *testing.T) {
	engine := stettest.Engine(t, memory.New(memory.Options{}), stet.Options{})
	st := newTxStore()
	over := stettest.Engine(t, st, stet.Options{})
	scope := stethttp.SingleTenant
	inTx := func(s *txStore, o stethttp.Options) func() (*stethttp.Middleware, error) {
		return func() (*stethttp.Middleware, error) {
			te, err := stet.WithTx(over, store.TxStore[*fakeTx](s))
			if err != nil {
				return nil, err
			}
			_, err = stethttp.NewTx(te, o)
			return nil, err
		}
	}
	for name, try := range map[string]func() (*stethttp.Middleware, error){
		"no engine": func() (*stethttp.Middleware, error) { return stethttp.New(nil, stethttp.Options{Scope: scope}) },
		"no scope":  func() (*stethttp.Middleware, error) { return stethttp.New(engine, stethttp.Options{}) },
		"no engine in tx": func() (*stethttp.Middleware, error) {
			_, err := stethttp.NewTx[*fakeTx](nil, stethttp.Options{Scope: scope})
			return nil, err
		},
		"no scope in tx":  inTx(st, stethttp.Options{}),
		"another store":   inTx(newTxStore(), stethttp.Options{Scope: scope}),
		"fail open in tx": inTx(st, stethttp.Options{Scope: scope, FailOpen: true}),
	} {
		if m, err := try(); m != nil || stet.KindOf(err) != stet.KindInvalid {
			t.Errorf("%s: %v, %v", name, m, err)
		}
	}
	stettest.Options(t, "testdata/options.txt", func(o stethttp.Options) error {
		o.Scope = scope
		_, err := stethttp.New(engine, o)
		return err
	})
	contradiction := stethttp.Options{Scope: scope, Responses: stethttp.StoreAll, NotExecuted: stethttp.NotExecuted}
	if _, err := stethttp.New(engine, contradiction); stet.KindOf(err) != stet.KindInvalid || !strings.Contains(err.Error(), "Responses") {
		t.Errorf("StoreAll with NotExecuted: %v", err)
	}
}

func TestRequestWithoutAScopeIsNotExecuted(t *testing.T) {
	s := start(t, setup{options: stethttp.Options{Scope: func(r *http.Request) (string, error) {
		switch v := r.Header.Get("X-Account"); v {
		case "broken":
			return "", errors.New("directory down")
		case "long":
			return strings.Repeat("s", store.MaxScope+1), nil
		default:
			return v, nil
		}
	}}})
	wantProblem(t, s.post("k", "{}"), 403, "scope-missing")
	wantProblem(t, s.post("k", "{}", "X-Account", "broken"), 500, "scope-failed")
	wantProblem(t, s.post("k", "{}", "X-Account", "long"), 403, "scope-too-long")
	s.wantRuns(0)
}

func TestOutcomeIsNotVisibleInAnotherScope(t *testing.T) {
	s := start(t, setup{
		options: stethttp.Options{Scope: func(r *http.Request) (string, error) { return r.Header.Get("X-Account"), nil }},
		handler: func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.Header.Get("X-Account")) },
	})
	pairs := [][2]string{{"a", "k"}, {"b", "k"}, {"a:b", "c"}, {"a", "b:c"}, {"a", s.engine.ID("b", "k").String()}}
	for _, replayed := range []bool{false, true} {
		for _, p := range pairs {
			wantReply(t, s.post(p[1], "{}", "X-Account", p[0]), 200, p[0], replayed)
		}
	}
	wantProblem(t, s.post("k", "other", "X-Account", "a"), 422, "mismatch")
	wantReply(t, s.post("k", "other", "X-Account", "c"), 200, "c", false)
}

func TestClassSelectsThePolicy(t *testing.T) {
	s := start(t, setup{
		engine:  stet.Options{Classes: map[string]stet.Policy{"tiny": {MaxResult: 60}}},
		options: stethttp.Options{Class: func(r *http.Request) string { return r.Header.Get("X-Class") }},
	})
	body := strings.Repeat("x", 100)
	wantReply(t, s.post("a", body), 201, body, false)
	wantReply(t, s.post("a", body), 201, body, true)
	wantReply(t, s.post("b", body, "X-Class", "tiny"), 201, body, false)
	wantProblem(t, s.post("b", body, "X-Class", "tiny"), 410, "result-expired")
	wantProblem(t, s.post("c", body, "X-Class", "none"), 500, "misconfigured")
	s.wantRuns(2)
}

func TestNamesOfHeadersAndProblemsAreConfigurable(t *testing.T) {
	s := start(t, setup{options: stethttp.Options{Header: "x-request-key", Advanced: stethttp.Advanced{ReplayedHeader: "x-replay", ProblemBase: "https://example.com/p/"}}})
	r := s.post("", "{}")
	if r.status != 400 || r.problem().Type != "https://example.com/p/key-missing" || !strings.Contains(r.problem().Detail, "X-Request-Key") {
		t.Errorf("%d %s", r.status, r.body)
	}
	s.post("", "{}", "X-Request-Key", "k")
	if r := s.post("", "{}", "X-Request-Key", "k"); r.header.Get("X-Replay") != "true" || r.header.Get("Idempotent-Replayed") != "" {
		t.Errorf("%v", r.header)
	}
}

func TestStoreDownMeansNotExecuted(t *testing.T) {
	store := newFaulty()
	s := start(t, setup{store: store})
	store.claim.Store(true)
	r := s.post("k", "{}")
	wantProblem(t, r, 503, "store-unavailable")
	if r.header.Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
	s.wantRuns(0)
	store.claim.Store(false)
	wantReply(t, s.post("k", "{}"), 201, "{}", false)
	_ = s.engine.Close()
	wantProblem(t, s.post("k", "{}"), 503, "store-unavailable")
}

func TestFailingOpenIsLoud(t *testing.T) {
	store := newFaulty()
	s := start(t, setup{store: store, options: stethttp.Options{FailOpen: true}})
	store.claim.Store(true)
	wantReply(t, s.post("secret-key", "secret-body"), 201, "secret-body", false)
	s.wantRuns(1)
	if n := s.events.Count(observe.FailedOpen); n != 1 {
		t.Errorf("%d events", n)
	}
	if log := s.log.String(); !strings.Contains(log, "unprotected") || strings.Contains(log, "secret") {
		t.Errorf("log: %s", log)
	}
}

func TestFailingOpenStopsWhereAnEffectMayHaveHappened(t *testing.T) {
	b := newBlocking()
	s := start(t, setup{store: newFaulty(), handler: b.ServeHTTP})
	s.abandon("k", "{}", b)
	s.store.(*faulty).release.Store(true)
	other := start(t, setup{store: s.store, options: stethttp.Options{FailOpen: true},
		engine: stet.Options{Policy: stet.Policy{Stale: stet.MayRunAgain()}}})
	wantProblem(t, other.post("k", "{}"), 504, "outcome-unknown")
	other.wantRuns(0)
}

func TestNoResponseWithoutADurableOutcome(t *testing.T) {
	store := newFaulty()
	s := start(t, setup{store: store, handler: func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Location", "/payments/1")
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, "charged")
	}, around: func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X-Request-Id", "r1")
			h.ServeHTTP(w, r)
		})
	}})
	store.settle.Store(true)
	r := s.post("secret-key", "{}")
	wantProblem(t, r, 504, "outcome-unknown")
	if id := s.engine.ID("single-tenant", "secret-key").String(); r.problem().Operation != id || r.header.Get("Stet-Operation") != id {
		t.Errorf("the problem names the operation %q, and its header %q; want %q", r.problem().Operation, r.header.Get("Stet-Operation"), id)
	}
	if r.header.Get("Location") != "" || r.header.Get("X-Request-Id") != "r1" || strings.Contains(r.body, "charged") {
		t.Errorf("%v %s", r.header, r.body)
	}
	if log := s.log.String(); !strings.Contains(log, "not stored") || strings.Contains(log, "secret") {
		t.Errorf("log: %s", log)
	}
	// The reply to a settle that took effect is lost: the retry finds out.
	store.settle.Store(false)
	store.settleAfter.Store(true)
	wantProblem(t, s.post("k2", "{}"), 504, "outcome-unknown")
	wantReply(t, s.post("k2", "{}"), 201, "charged", true)
	s.wantRuns(2)
}

func TestFailedReleasePassesTheResponseOn(t *testing.T) {
	store := newFaulty()
	store.release.Store(true)
	s := start(t, setup{store: store, handler: func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusTooManyRequests) }})
	wantReply(t, s.post("k", "{}"), 429, "", false)
	if !strings.Contains(s.log.String(), "not released yet") {
		t.Errorf("log: %s", s.log.String())
	}
}
