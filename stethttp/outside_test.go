package stethttp_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

// byClaim settles as a service does.
func byClaim(s store.Store, claim string) error {
	c, err := store.ParseClaim(claim)
	if err != nil {
		return err
	}
	out := store.Settlement{State: store.Completed, Result: store.Result{Status: 201, Type: "text/plain", Body: []byte("settled")}}
	return s.Settle(context.Background(), c, out, store.Retention{Result: time.Hour, Tombstone: time.Hour})
}

// startOutside starts a service whose operations are settled by do.
func startOutside(t *testing.T, tries int, do func(st store.Store, w http.ResponseWriter, r *http.Request)) *service {
	t.Helper()
	st := memory.New(memory.Options{})
	return start(t, setup{store: st, engine: stet.Options{Policy: stet.Policy{Outside: true}, SweepEvery: -1}, options: stethttp.Options{Advanced: stethttp.Advanced{Tries: tries}},
		handler: func(w http.ResponseWriter, r *http.Request) { do(st, w, r) }})
}

func TestSettledOutcomeOfTheServiceIsSent(t *testing.T) {
	for name, answer := range map[string]func(http.ResponseWriter){
		"and answered the same": func(w http.ResponseWriter) { w.WriteHeader(201); _, _ = io.WriteString(w, "settled") },
		"and answered otherwise": func(w http.ResponseWriter) {
			w.Header().Set("X-Other", "1")
			w.WriteHeader(500)
			_, _ = io.WriteString(w, "other")
		},
		"and not answered": func(http.ResponseWriter) {},
	} {
		t.Run(name, func(t *testing.T) {
			s := startOutside(t, 3, func(st store.Store, w http.ResponseWriter, r *http.Request) {
				if err := byClaim(st, r.Header.Get(stethttp.HeaderClaim)); err != nil {
					t.Error(err)
				}
				answer(w)
			})
			first := s.post("k", "{}", stethttp.HeaderClaim, "forged by a client")
			wantReply(t, first, 201, "settled", false)
			if first.header.Get("X-Other") != "" || first.header.Get("Content-Type") != "text/plain" {
				t.Errorf("the header is %v; want the stored header", first.header)
			}
			wantReply(t, s.post("k", "{}"), 201, "settled", true)
			s.wantRuns(1)
		})
	}
}

func TestServiceThatHasNotSettledHasNotExecuted(t *testing.T) {
	for _, c := range []struct {
		name    string
		status  int // 0: it panics as a proxy does whose service has died
		header  [2]string
		says    int
		problem string
		hint    string
	}{
		{name: "a refusal is passed on", status: 400, says: 400},
		{name: "a conflict is passed on", status: 409, says: 409},
		{name: "a failure", status: 500, says: 503, problem: "not-executed", hint: "1"},
		{name: "a pause", status: 503, header: [2]string{"Retry-After", "7"}, says: 503, problem: "not-executed", hint: "7"},
		{name: "no answer", status: 0, says: 503, problem: "not-executed", hint: "1"},
		{name: "a success that is none", status: 201, says: 500, problem: "not-settled"},
		{name: "a redirection", status: 303, says: 500, problem: "not-settled"},
	} {
		t.Run(c.name, func(t *testing.T) {
			claims := make(chan string, 1)
			s := startOutside(t, 0, func(_ store.Store, w http.ResponseWriter, r *http.Request) {
				claims <- r.Header.Get(stethttp.HeaderClaim)
				if c.header[0] != "" {
					w.Header().Set(c.header[0], c.header[1])
				}
				if c.status == 0 {
					stet.FromContext(r.Context()).Declare(stet.MayHaveExecuted, 0)
					w.WriteHeader(502)
					return
				}
				w.WriteHeader(c.status)
				_, _ = io.WriteString(w, "unsettled")
			})
			got := s.post("k", "{}")
			if c.problem == "" {
				wantReply(t, got, c.says, "unsettled", false)
			} else {
				wantProblem(t, got, c.says, c.problem)
			}
			if hint := got.header.Get("Retry-After"); hint != c.hint {
				t.Errorf("Retry-After is %q; want %q", hint, c.hint)
			}
			if said := strings.Contains(s.log.String(), "without having settled"); said != (c.problem == "not-settled") {
				t.Errorf("the log says that nothing was settled: %v; want %v", said, !said)
			}
			if err := byClaim(s.store, <-claims); !errors.Is(err, store.ErrFenced) {
				t.Errorf("the service settles late: %v; want it fenced", err)
			}
			rec, err := s.store.Read(t.Context(), s.engine.ID("single-tenant", "k"))
			if err != nil || rec.State != store.Retryable {
				t.Errorf("the record is %v, %v; want it retryable", rec.State, err)
			}
		})
	}
}

func TestServiceIsTriedAgainWhileItHasNotSettled(t *testing.T) {
	var try atomic.Int64
	s := startOutside(t, 3, func(st store.Store, w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || string(body) != "{}" {
			t.Errorf("the body is %q, %v; want all of it at each try", body, err)
		}
		if try.Add(1) < 3 {
			w.WriteHeader(500)
			return
		}
		if got := stet.FromContext(r.Context()).Attempt(); got != 3 {
			t.Errorf("the third try is attempt %d", got)
		}
		if err := byClaim(st, r.Header.Get(stethttp.HeaderClaim)); err != nil {
			t.Error(err)
		}
	})
	wantReply(t, s.post("k", "{}"), 201, "settled", false)
	s.wantRuns(3)
}

func TestServiceIsTriedNoMoreOftenThanAllowed(t *testing.T) {
	for status, want := range map[int]int64{500: 3, 400: 1, 201: 1} {
		s := startOutside(t, 3, func(_ store.Store, w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) })
		s.post("k", "{}")
		s.wantRuns(want)
	}
	for _, tries := range []int{-1, 11} {
		e, err := stet.New(memory.New(memory.Options{}), stet.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close()
		if _, err := stethttp.New(e, stethttp.Options{Scope: stethttp.SingleTenant, Advanced: stethttp.Advanced{Tries: tries}}); err == nil {
			t.Errorf("%d tries are allowed", tries)
		}
	}
}

// settlesGone settles an operation without a result, and answers with n bytes.
func settlesGone(t *testing.T, state store.State, n int) func(store.Store, http.ResponseWriter, *http.Request) {
	return func(st store.Store, w http.ResponseWriter, r *http.Request) {
		c, err := store.ParseClaim(r.Header.Get(stethttp.HeaderClaim))
		if err == nil {
			err = st.Settle(r.Context(), c, store.Settlement{State: state, Gone: true}, store.Retention{Result: time.Hour, Tombstone: time.Hour})
		}
		if err != nil {
			t.Error(err)
		}
		_, _ = w.Write(bytes.Repeat([]byte("x"), n))
	}
}

// The response to the first request counts if the outcome was settled without one.
func TestFirstResponseIsSent_ResultTooLargeToStore(t *testing.T) {
	s := startOutside(t, 0, settlesGone(t, store.Completed, 5))
	wantReply(t, s.post("k", "{}"), 200, "xxxxx", false)
	wantProblem(t, s.post("k", "{}"), 410, "result-expired")
}

func TestResponseTooLargeToSendIsLikeItsReplay(t *testing.T) {
	for state, execution := range map[store.State]string{store.Completed: "executed", store.Failed: "may have executed"} {
		s := startOutside(t, 0, settlesGone(t, state, 17<<20))
		first := s.post("k", "{}")
		wantProblem(t, first, 410, "result-expired")
		if said := first.problem().Execution; said != execution {
			t.Errorf("%v: execution %q, want %q", state, said, execution)
		}
		if retry := s.post("k", "{}"); retry.status != first.status || retry.body != first.body {
			t.Errorf("first %d %q, then %d %q", first.status, first.body, retry.status, retry.body)
		}
	}
}
