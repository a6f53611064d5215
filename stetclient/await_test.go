package stetclient_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/stetclient"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/store/memory"
)

// asking is a RoundTripper over a handler, so that time can be made to pass. It
// notes when it was asked, and for what.
type asking struct {
	h    http.Handler
	mu   sync.Mutex
	at   []time.Time
	reqs []*http.Request
}

func (a *asking) RoundTrip(req *http.Request) (*http.Response, error) {
	a.mu.Lock()
	a.at, a.reqs = append(a.at, time.Now()), append(a.reqs, req)
	a.mu.Unlock()
	w := httptest.NewRecorder()
	a.h.ServeHTTP(w, req)
	res := w.Result()
	res.Request = req
	return res, nil
}

// accepting is a service that has an operation at /operations/1 and tells of it by
// a script; the last answer stands.
func accepting(answers ...func(http.ResponseWriter, *http.Request)) *asking {
	n := 0
	return &asking{h: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			w.Header().Set("Location", "/operations/1")
			w.WriteHeader(http.StatusAccepted)
			return
		}
		n++
		answers[min(n, len(answers))-1](w, r)
	})}
}

func says(status int, body string, header ...string) func(http.ResponseWriter, *http.Request) {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		for i := 0; i+1 < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

const (
	runs     = `{"id":"1","state":"running","attempts":1}`
	done     = `{"id":"1","state":"completed","attempts":1,"outcome":{"status":201,"result":{"n":9007199254740993}}}`
	revoked  = `{"id":"1","state":"failed","attempts":0,"outcome":{"status":409,"problem":` + cancelledDocument + `}}`
	noLonger = `{"type":"https://x/#result-expired","title":"T","status":410,"retryable":false,"execution":"executed"}`
)

// accepted posts, and returns the 202.
func accepted(t *testing.T, client *http.Client) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://service.test/orders", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer secret")
	req.Header.Set("Content-Type", "application/json")
	res, err := client.Do(req)
	if err != nil || res.StatusCode != http.StatusAccepted {
		t.Fatal(res, err)
	}
	return res
}

func throughStet(t *testing.T, base http.RoundTripper) *http.Client {
	t.Helper()
	tr, err := stetclient.New(base, stetclient.Options{Service: stetclient.Service{Header: "X-Idempotency-Key"}})
	if err != nil {
		t.Fatal(err)
	}
	return &http.Client{Transport: tr}
}

func TestAwaitAsksAtTheIntervalOfRetryAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := accepting(says(200, runs, "Retry-After", "7"), says(202, "", "Retry-After", "0"), says(503, "", "Retry-After", "11"), says(200, runs), says(200, runs), says(200, done))
		client := throughStet(t, s)
		heard := 0
		got, err := stetclient.Await(t.Context(), client, accepted(t, client), stetclient.AwaitOptions{Progress: func([]byte) { heard++ }})
		if err != nil || got.Status != 201 || string(got.Body) != `{"n":9007199254740993}` || got.Execution != stet.Executed || got.Type != "application/json" {
			t.Fatalf("%+v, %v", got, err)
		}
		if heard != 3 {
			t.Errorf("Progress was called %d times, want 3", heard)
		}
		wants := []time.Duration{time.Second, 7 * time.Second, 2 * time.Second, 11 * time.Second, 4 * time.Second, 8 * time.Second}
		for i, want := range wants {
			if pause := s.at[i+1].Sub(s.at[i]); pause < want || pause > want+want/10+time.Millisecond {
				t.Errorf("pause %d is %v, want %v and up to a tenth more", i, pause, want)
			}
		}
		if req := s.reqs[1]; req.Header.Get("Authorization") != "Bearer secret" || req.Header.Get("X-Idempotency-Key") != "" || req.Header.Get("Content-Type") != "" {
			t.Errorf("asked with the header %v", req.Header)
		}
	})
}

func TestAwaitOutcomes(t *testing.T) {
	for name, tc := range map[string]struct {
		answer func(http.ResponseWriter, *http.Request)
		status int // 0: an error
		reason stetclient.Reason
		want   stet.Execution
	}{
		"completed":                  {says(200, done), 201, "", stet.Executed},
		"cancelled before it ran":    {says(200, revoked), 409, "", stet.NotExecuted},
		"failed":                     {says(200, `{"state":"failed","outcome":{"status":500,"problem":{"title":"x"}}}`), 500, "", stet.Executed},
		"no content":                 {says(200, `{"state":"completed","outcome":{"status":204}}`), 204, "", stet.Executed},
		"another service's resource": {says(200, `{"id":7}`), 200, "", stet.Executed},
		"another's, created":         {says(201, `{"id":7}`), 201, "", stet.Executed},
		"gone":                       {says(410, noLonger, "Content-Type", "application/problem+json"), 0, stetclient.ReasonRecorded, stet.Executed},
		"gone, by another":           {says(410, ""), 0, stetclient.ReasonFinal, stet.MayHaveExecuted},
		"not found":                  {says(404, ""), 0, stetclient.ReasonFinal, stet.MayHaveExecuted},
		"not to be seen":             {says(403, ""), 0, stetclient.ReasonFinal, stet.MayHaveExecuted},
		"redirected":                 {says(303, "", "Location", "/operations/2"), 0, stetclient.ReasonFinal, stet.MayHaveExecuted},
		"larger than it may be":      {says(200, `{"x":"`+strings.Repeat("x", 5000)+`"}`), 0, stetclient.ReasonTime, stet.MayHaveExecuted},
		"never reachable":            {says(502, ""), 0, stetclient.ReasonTime, stet.MayHaveExecuted},
		"a replayed refusal":         {says(409, "", "Idempotent-Replayed", "true", "Idempotency-Execution", "not executed"), 409, "", stet.NotExecuted},
		"a failure of the resource":  {says(500, "", "Idempotent-Replayed", "false"), 0, stetclient.ReasonTime, stet.MayHaveExecuted},
		"an outcome without status":  {says(200, `{"state":"completed","outcome":{}}`), 0, stetclient.ReasonFinal, stet.MayHaveExecuted},
		"a content coding":           {says(200, "\x1f\x8b", "Content-Encoding", "gzip"), 0, stetclient.ReasonFinal, stet.MayHaveExecuted},
		"failing for 68 years":       {says(503, "", "Retry-After", "2147483647"), 0, stetclient.ReasonTime, stet.MayHaveExecuted},
		"failing for 8,000 years":    {says(503, "", "Retry-After", "Fri, 31 Dec 9999 23:59:59 GMT"), 0, stetclient.ReasonTime, stet.MayHaveExecuted},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := accepting(tc.answer)
				client, began := throughStet(t, s), time.Now()
				got, err := stetclient.Await(t.Context(), client, accepted(t, client), stetclient.AwaitOptions{MaxResult: 2000})
				if tc.status == 0 {
					wantError(t, err, tc.reason, tc.want)
				} else if err != nil || got.Status != tc.status || got.Execution != tc.want {
					t.Errorf("%+v, %v", got, err)
				}
				if took := time.Since(began); took > 10*time.Minute || len(s.at) > 20 {
					t.Errorf("took %v and %d requests", took, len(s.at))
				}
			})
		})
	}
}

func TestAwaitEndsWithItsContextAndCanBeCalledAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := accepting(says(200, runs))
		client := throughStet(t, s)
		res := accepted(t, client)
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		_, err := stetclient.Await(ctx, client, res, stetclient.AwaitOptions{})
		wantError(t, err, stetclient.ReasonContext, stet.MayHaveExecuted)
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		if n := len(s.at); n < 110 || n > 140 { // each 30 s, after some that come sooner
			t.Errorf("%d requests in an hour", n)
		}
		s.h = http.HandlerFunc(says(200, done))
		if got, err := stetclient.Await(t.Context(), client, res, stetclient.AwaitOptions{}); err != nil || got.Status != 201 {
			t.Errorf("%+v, %v", got, err)
		}
	})
}

func TestAwaitSendsNoKeyAndNoIntent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := accepting(says(200, done))
		client := throughStet(t, s)
		ctx := stetclient.WithIntent(stetclient.WithKey(t.Context(), "key-1"), "order 1")
		if _, err := stetclient.Await(ctx, client, accepted(t, client), stetclient.AwaitOptions{}); err != nil {
			t.Error(err)
		}
	})
}

func TestAwaitRefusesBadArguments(t *testing.T) {
	client := &http.Client{Transport: &asking{h: http.HandlerFunc(says(202, `{"nothing":"here"}`))}}
	_, err := stetclient.Await(t.Context(), client, accepted(t, client), stetclient.AwaitOptions{})
	wantError(t, err, stetclient.ReasonFinal, stet.MayHaveExecuted)
	for _, location := range []string{"ftp://service.test/1", "http://service.test/1", "http://[::1"} {
		client := &http.Client{Transport: &asking{h: http.HandlerFunc(says(202, "", "Location", location))}}
		_, err := stetclient.Await(t.Context(), client, accepted(t, client), stetclient.AwaitOptions{})
		wantError(t, err, stetclient.ReasonFinal, stet.MayHaveExecuted)
	}
	for _, o := range []stetclient.AwaitOptions{{Every: -1}, {MaxResult: -1}} {
		if _, err := stetclient.Await(t.Context(), client, accepted(t, client), o); stet.KindOf(err) != stet.KindInvalid {
			t.Errorf("%+v: %v", o, err)
		}
	}
	if _, err := stetclient.Await(t.Context(), client, nil, stetclient.AwaitOptions{}); stet.KindOf(err) != stet.KindInvalid {
		t.Error(err)
	}
}

// Against stet's own status resource, over a real connection: the outcome comes
// with the event, and few requests are made.
func TestAwaitWithTheServersOwnStatusResource(t *testing.T) {
	engine := stettest.Engine(t, memory.New(memory.Options{}), stet.Options{})
	mw, err := stethttp.New(engine, stethttp.Options{Scope: stethttp.SingleTenant})
	if err != nil {
		t.Fatal(err)
	}
	async, err := stethttp.NewAsync(mw, stethttp.AsyncOptions{StatusURL: "/operations/"})
	if err != nil {
		t.Fatal(err)
	}
	defer async.Close()
	mux := http.NewServeMux()
	mux.Handle("POST /orders", async.Accept("ship", nil))
	mux.Handle("/operations/", async.Status())
	srv := httptest.NewServer(mux)
	defer srv.Close()
	tr, err := stetclient.New(&http.Transport{DisableKeepAlives: true}, stetclient.Options{})
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: tr}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, srv.URL+"/orders", strings.NewReader(`{}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	var once sync.Once
	got, err := stetclient.Await(t.Context(), client, res, stetclient.AwaitOptions{Every: time.Millisecond, Progress: func(status []byte) {
		once.Do(func() { work(t, engine) })
		if !json.Valid(status) {
			t.Errorf("progress is %s", status)
		}
	}})
	if err != nil || got.Status != 200 || string(got.Body) != `{"parcel":7}` {
		t.Errorf("%+v, %v", got, err)
	}
}

// work runs due operations.
func work(t *testing.T, engine *stet.Engine) {
	t.Helper()
	items, err := engine.Due(t.Context(), 10, time.Minute)
	if err != nil || len(items) != 1 {
		t.Fatal(items, err)
	}
	run, err := engine.Take(t.Context(), items[0])
	if err == nil {
		err = run.Settle(t.Context(), stet.Outcome{Body: []byte(`{"parcel":7}`)})
	}
	if err != nil {
		t.Fatal(fmt.Errorf("take and settle: %w", err))
	}
}
