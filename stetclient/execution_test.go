package stetclient_test

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/stetclient"
	"github.com/stet-go/stet/stetclient/journal"
)

// breakingOff answers with the beginning of a body.
func breakingOff(code int, body string, header ...string) func(*http.Request) (*http.Response, error) {
	return func(req *http.Request) (*http.Response, error) {
		res, err := answer(code, body, header...)(req)
		res.ContentLength = int64(len(body)) + 1000
		res.Body = io.NopCloser(io.MultiReader(strings.NewReader(body), broken{}))
		return res, err
	}
}

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

func TestProblemThatCannotBeReadMayHaveExecuted(t *testing.T) {
	document := []string{"Content-Type", "application/problem+json", "Retry-After", "0"}
	for name, tc := range map[string]struct {
		answer answerer
		want   stet.Execution
	}{
		"it breaks off":          {breakingOff(503, `{"type":"https://x/#acceptance-unknown","exec`, document...), stet.MayHaveExecuted},
		"it is no JSON":          {answer(503, `{"type":`, document...), stet.MayHaveExecuted},
		"it is too large":        {answer(429, `{"execution":"may have executed","retryable":true,"detail":"`+strings.Repeat("x", 2<<20)+`"}`, document...), stet.MayHaveExecuted},
		"other text breaks off":  {breakingOff(503, "try again", "Retry-After", "0"), stet.NotExecuted},
		"it has no word of it":   {answer(503, `{"title":"busy"}`, document...), stet.NotExecuted},
		"executed":               {answer(503, `{"execution":"executed","retryable":true}`, document...), stet.Executed},
		"not executed":           {answer(500, `{"execution":"not executed","retryable":true}`, document...), stet.NotExecuted},
		"another word":           {answer(503, `{"execution":"perhaps","retryable":true}`, document...), stet.MayHaveExecuted},
		"only one member":        {answer(503, `{"execution":"may have executed"}`, document...), stet.MayHaveExecuted},
		"its type is malformed":  {answer(503, `{"execution":"may have executed","retryable":true}`, "Content-Type", "application/problem+json; charset", "Retry-After", "0"), stet.MayHaveExecuted},
		"its members have types": {answer(503, `{"execution":7,"retryable":true}`, document...), stet.MayHaveExecuted},
	} {
		t.Run(name, func(t *testing.T) {
			tr, _ := newClient(t, stetclient.Options{Policy: stetclient.Policy{MaxAttempts: 2, Base: time.Microsecond}}, tc.answer)
			_, _, err := post(t.Context(), t, tr, "x")
			wantError(t, err, stetclient.ReasonAttempts, tc.want)
		})
	}
}

// stubborn is a RoundTripper that retries by itself, as some libraries do: the
// first attempt reaches the service, the second finds no server.
type stubborn struct {
	base *http.Transport
	dead string
}

func (s *stubborn) RoundTrip(req *http.Request) (*http.Response, error) {
	var body []byte
	if req.Body != nil {
		body, _ = io.ReadAll(req.Body)
	}
	var err error
	for _, host := range []string{req.URL.Host, s.dead} {
		again := req.Clone(req.Context())
		again.URL.Host, again.Body, again.GetBody = host, io.NopCloser(bytes.NewReader(body)), nil
		var res *http.Response
		if res, err = s.base.RoundTrip(again); err == nil {
			return res, nil
		}
	}
	return nil, err
}

func TestFailedDialAfterALostAttemptMayHaveExecuted(t *testing.T) {
	var executed atomic.Int64
	srv := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		executed.Add(1)
		panic(http.ErrAbortHandler) // the answer is lost
	}))
	defer srv.Close()
	closed, err := rig.FreeAddr() // which no connection takes in the meantime
	if err != nil {
		t.Fatal(err)
	}
	base := &http.Transport{DisableKeepAlives: true}
	for name, tc := range map[string]struct {
		rt   http.RoundTripper
		url  string
		want stet.Execution
	}{
		"a base that retries by itself":          {&stubborn{base, closed}, srv.URL, stet.MayHaveExecuted},
		"a base that reports no connections":     {mute{}, srv.URL, stet.MayHaveExecuted},
		"net/http, and no server at the address": {base, "http://" + closed, stet.NotExecuted},
	} {
		for _, body := range []string{"", "x"} {
			t.Run(name+", body "+body, func(t *testing.T) {
				tr, err := stetclient.New(tc.rt, stetclient.Options{Policy: stetclient.Policy{MaxAttempts: 1}})
				if err != nil {
					t.Fatal(err)
				}
				req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, tc.url, strings.NewReader(body))
				if err != nil {
					t.Fatal(err)
				}
				_, _, err = do(t, tr, req)
				wantError(t, err, stetclient.ReasonAttempts, tc.want)
			})
		}
	}
	if executed.Load() == 0 {
		t.Error("no attempt reached the service")
	}
}

// mute is a RoundTripper that reports no connections.
type mute struct{}

func (mute) RoundTrip(*http.Request) (*http.Response, error) { return nil, errDial }

const cancelledDocument = `{"type":"https://x/#operation-cancelled","title":"Operation cancelled","status":409,"detail":"D","retryable":false,"execution":"not executed"}`

func TestIntentOfUnknownAgeIsNotSent(t *testing.T) {
	for name, tc := range map[string]struct {
		created time.Duration // from now
		sent    bool
	}{
		"made in the future: the clock was set back":   {30 * 24 * time.Hour, false},
		"made a minute from now":                       {time.Minute, false},
		"made a moment from now: the clock is trimmed": {500 * time.Millisecond, true},
		"made now":             {0, true},
		"older than it may be": {-25 * time.Hour, false},
	} {
		t.Run(name, func(t *testing.T) {
			j := open(t, journal.Options{})
			in := stetclient.Intent{Name: "order 1", Key: "k", Method: http.MethodPost, URL: "http://service.test/payments", Created: time.Now().Add(tc.created)}
			if _, _, err := j.Add(t.Context(), in); err != nil {
				t.Fatal(err)
			}
			tr, s := newClient(t, stetclient.Options{Journal: j}, status(201))
			got, err := tr.Resume(t.Context(), stetclient.ResumeOptions{})
			want := stetclient.Resumed{Settled: 1}
			if !tc.sent {
				want = stetclient.Resumed{Pending: 1, Stale: 1}
			}
			if err != nil || got != want || (len(s.sent) > 0) != tc.sent {
				t.Errorf("%+v, %v, %d requests; want %+v", got, err, len(s.sent), want)
			}
		})
	}
}
