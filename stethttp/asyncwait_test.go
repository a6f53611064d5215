package stethttp_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

// bubble is a service without a server, for tests whose time is not real.
type bubble struct {
	*service
	http.Handler
	close func() // of what accepts
}

func newBubble(t *testing.T, set setup) bubble {
	t.Helper()
	store := set.store
	if store == nil {
		store = memory.New(memory.Options{})
	}
	set.engine.Observer = &stettest.Events{}
	engine := stettest.Engine(t, store, set.engine)
	set.options.Scope = stethttp.SingleTenant
	m := stethttp.Must(stethttp.New(engine, set.options))
	h := set.accepting(m)
	return bubble{&service{t: t, store: store, engine: engine}, h, set.close}
}

func (b bubble) send(method, path, body string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Add(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	b.ServeHTTP(w, r)
	return w
}

func (b bubble) order(header ...string) *httptest.ResponseRecorder {
	return b.send("POST", "/orders", "{}", append(header, "Idempotency-Key", "k")...)
}

// beginOrder begins an order at once, under the key of a later one.
func (b bubble) beginOrder(key string) *stet.Lease {
	b.t.Helper()
	b.send("POST", "/orders", "{}", "Idempotency-Key", "twin")
	run := b.take()
	settle(b.t, run, store.Completed, "{}")
	run, err := b.engine.Begin(context.Background(), stet.Op{Scope: "single-tenant", Key: key, Fingerprint: run.Op().Fingerprint})
	if err != nil {
		b.t.Fatal(err)
	}
	return run
}

// workAfter runs the next operation that is accepted, that much later.
func (b bubble) workAfter(d time.Duration, result string) {
	arrived := b.engine.Arrived()
	go func() {
		<-arrived
		time.Sleep(d)
		settle(b.t, b.take(), store.Completed, result)
	}()
}

func TestWaitingRequestGetsTheOutcome(t *testing.T) {
	for _, c := range []struct {
		name    string
		o       stethttp.AsyncOptions
		prefer  string
		applied string
	}{
		{"preferred", stethttp.AsyncOptions{}, "wait=5", "wait=5"},
		{"preferred, async after that", stethttp.AsyncOptions{}, "respond-async, wait=5", "wait=5"},
		{"by default", stethttp.AsyncOptions{Wait: 5 * time.Second}, "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBubble(t, setup{async: &c.o})
				b.workAfter(3*time.Second, `{"order":7}`)
				begun := time.Now()
				w := b.order("Prefer", c.prefer)
				if waited := time.Since(begun); waited < 3*time.Second || waited > 4*time.Second {
					t.Errorf("answered after %v", waited)
				}
				for try := range 3 {
					if w.Code != 200 || w.Body.String() != `{"order":7}` || w.Header().Get("Content-Type") != "application/json" ||
						(w.Header().Get("Idempotent-Replayed") == "true") != (try > 0) || w.Header().Get("Preference-Applied") != c.applied {
						t.Errorf("try %d: %d %v %s", try, w.Code, w.Header(), w.Body)
					}
					w = b.order("Prefer", c.prefer)
				}
			})
		})
	}
}

// A synchronous run of the same key that has had no effect is no outcome.
func TestWaitingRequestGetsNoSuccessOfAReleasedRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(t, setup{async: &stethttp.AsyncOptions{}})
		run := b.beginOrder("k")
		go func() {
			time.Sleep(2 * time.Second)
			if err := run.Release(context.Background(), stet.Again{}); err != nil {
				t.Error(err)
			}
		}()
		b.workAfter(time.Second, `{"order":7}`) // once it is accepted
		begun := time.Now()
		w := b.order("Prefer", "wait=5")
		if waited := time.Since(begun); w.Code != 200 || w.Body.String() != `{"order":7}` || waited < 3*time.Second || waited > 4*time.Second {
			t.Errorf("after %v: %d %v %s", waited, w.Code, w.Header(), w.Body)
		}
		b.wantNothingDue()
	})
}

// If it has no effect it does not run again, so nothing was accepted.
func TestSynchronousRunIsNotReportedAsAccepted(t *testing.T) {
	for _, prefer := range []string{"", "respond-async", "wait=1"} {
		synctest.Test(t, func(t *testing.T) {
			b := newBubble(t, setup{async: &stethttp.AsyncOptions{}})
			run := b.beginOrder("k")
			for range 2 {
				if w := b.order("Prefer", prefer); w.Code != 409 || w.Header().Get("Retry-After") == "" || w.Header().Get("Location") != "" {
					t.Errorf("%q: %d %v %s", prefer, w.Code, w.Header(), w.Body)
				}
			}
			if err := run.Release(context.Background(), stet.Again{}); err != nil {
				t.Fatal(err)
			}
			if w := b.order(); w.Code != 202 || w.Header().Get("Idempotent-Replayed") != "" {
				t.Errorf("once there is no run: %d %v %s", w.Code, w.Header(), w.Body)
			}
			settle(t, b.take(), store.Completed, "{}")
		})
	}
}

func TestWaitingRequestGetsRetryAfterOfAnAbandonedRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(t, setup{async: &stethttp.AsyncOptions{RetryAfter: 3 * time.Second}})
		arrived := b.engine.Arrived()
		go func() {
			<-arrived
			if err := b.take().MarkUnknown(context.Background()); err != nil {
				t.Error(err)
			}
		}()
		for range 2 {
			if w := b.order("Prefer", "wait=5"); w.Code != 504 || w.Header().Get("Retry-After") != "3" {
				t.Errorf("got %d %v %s; want w.Code == 504, w.Header().Get(\"Retry-After\") == \"3\"", w.Code, w.Header(), w.Body)
			}
		}
		rec, err := b.store.Read(t.Context(), b.engine.ID("single-tenant", "k"))
		if err != nil {
			t.Fatal(err)
		}
		if err := b.engine.Resolve(t.Context(), rec, "", stet.ItDidNotHappen()); err != nil { // as a worker's verifier does
			t.Fatal(err)
		}
		b.workAfter(time.Second, `{"order":7}`)
		b.engine.Wake()
		if w := b.order("Prefer", "wait=5"); w.Code != 200 || w.Body.String() != `{"order":7}` {
			t.Errorf("%d %v %s", w.Code, w.Header(), w.Body)
		}
	})
}

func TestWaitIsBoundedAndThenTheAnswerIs202(t *testing.T) {
	for _, c := range []struct {
		prefer, applied string
		waited          time.Duration
		o               stethttp.AsyncOptions
	}{
		{"", "", 0, stethttp.AsyncOptions{}},
		{"wait=3", "wait=3", 3 * time.Second, stethttp.AsyncOptions{}},
		{"wait=0", "wait=0", 0, stethttp.AsyncOptions{Wait: time.Minute}},
		{"wait=3600", "wait=10", 10 * time.Second, stethttp.AsyncOptions{}},
		{"respond-async", "respond-async", 0, stethttp.AsyncOptions{}},
		{"Respond-Async;x=1", "respond-async", 0, stethttp.AsyncOptions{Wait: time.Minute}},
		{"wait=2, respond-async", "respond-async, wait=2", 2 * time.Second, stethttp.AsyncOptions{}},
		{"wait=x", "", time.Minute, stethttp.AsyncOptions{Wait: time.Minute}}, // not understood, so not there
		{"return=minimal", "", 0, stethttp.AsyncOptions{}},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := newBubble(t, setup{async: &c.o})
			for range 2 {
				begun := time.Now()
				w := b.order("Prefer", c.prefer)
				if w.Code != 202 || time.Since(begun) != c.waited || w.Header().Get("Preference-Applied") != c.applied || w.Header().Get("Vary") != "Prefer" {
					t.Errorf("%q: %d after %v, %v", c.prefer, w.Code, time.Since(begun), w.Header())
				}
			}
		})
	}
}

func TestClientThatLeavesEndsItsWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(t, setup{async: &stethttp.AsyncOptions{}})
		ctx, leave := context.WithCancel(context.Background())
		time.AfterFunc(2*time.Second, leave)
		r := httptest.NewRequestWithContext(ctx, "POST", "/orders", strings.NewReader("{}"))
		r.Header = http.Header{"Idempotency-Key": {"k"}, "Content-Type": {"application/json"}, "Prefer": {"wait=9"}}
		begun := time.Now()
		b.ServeHTTP(httptest.NewRecorder(), r)
		if waited := time.Since(begun); waited != 2*time.Second {
			t.Errorf("it waited %v", waited)
		}
		b.take() // and its order is not lost
	})
}

func TestCloseEndsWaitsAndStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(t, setup{async: &stethttp.AsyncOptions{}})
		location := b.order().Header().Get("Location")
		begun := time.Now()
		time.AfterFunc(2500*time.Millisecond, b.close)
		var all sync.WaitGroup
		all.Go(func() { b.watch(t.Context(), httptest.NewRecorder(), location) })
		all.Go(func() {
			if w := b.order("Prefer", "wait=9"); w.Code != 202 || w.Header().Get("Preference-Applied") != "" {
				t.Errorf("got %d %v; want w.Code == 202, w.Header().Get(\"Preference-Applied\") == \"\"", w.Code, w.Header())
			}
		})
		all.Go(func() {
			if w := b.send("GET", location, "", "Prefer", "wait=9"); w.Code != 200 || w.Header().Get("Preference-Applied") != "" {
				t.Errorf("got %d %v; want w.Code == 200, w.Header().Get(\"Preference-Applied\") == \"\"", w.Code, w.Header())
			}
		})
		all.Wait()
		if took := time.Since(begun); took != 2500*time.Millisecond {
			t.Errorf("they took %v", took)
		}
		b.order("Prefer", "wait=9")
		if w := b.send("GET", location, "", "Accept", "text/event-stream"); !strings.Contains(w.Body.String(), "event: status") {
			t.Errorf("got %d %s; want strings.Contains(w.Body.String(), \"event: status\")", w.Code, w.Body)
		}
		if took := time.Since(begun); took != 2500*time.Millisecond {
			t.Errorf("a request has waited after that: %v", took)
		}
	})
}

func TestMoreWaitersThanAllowedAreAnsweredAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(t, setup{async: &stethttp.AsyncOptions{}, engine: stet.Options{MaxWaiters: 1}})
		waits := make(chan *httptest.ResponseRecorder)
		go func() { waits <- b.order("Prefer", "wait=9") }()
		synctest.Wait()
		begun := time.Now()
		w := b.order("Prefer", "wait=9")
		if w.Code != 202 || time.Since(begun) != 0 || w.Header().Get("Preference-Applied") != "" {
			t.Errorf("%d after %v, %v", w.Code, time.Since(begun), w.Header())
		}
		if first := <-waits; first.Code != 202 || first.Header().Get("Preference-Applied") != "wait=9" {
			t.Errorf("got %d, %v; want first.Code == 202, first.Header().Get(\"Preference-Applied\") == \"wait=9\"", first.Code, first.Header())
		}
	})
}

func TestRetryOfAnEndedOperationGetsTheOutcome(t *testing.T) {
	s := start(t, setup{async: &stethttp.AsyncOptions{}})
	wantAccepted(t, s.order("k", "{}"), false)
	run := s.take()
	wantAccepted(t, s.order("k", "{}"), true)
	settle(t, run, store.Completed, `{"order":7}`)
	first := s.order("k", "{}")
	wantReply(t, first, 200, `{"order":7}`, true)
	wantSame(t, s.order("k", "{}"), first)
}

func TestAcceptanceIsRepeatedWhereItIsAskedFor(t *testing.T) {
	s := start(t, setup{async: &stethttp.AsyncOptions{RepeatAcceptance: true}})
	accepted := s.order("k", "{}")
	wantAccepted(t, accepted, false)
	settle(t, s.take(), store.Completed, `{"order":7}`)
	wantAccepted(t, s.order("k", "{}"), true)
	wantReply(t, s.order("k", "{}", "Prefer", "wait=1"), 200, `{"order":7}`, true)
}

func TestRetryConflictsWhileItRunsWhereItIsAskedFor(t *testing.T) {
	s := start(t, setup{async: &stethttp.AsyncOptions{Conflict: true}})
	wantAccepted(t, s.order("k", "{}"), false)
	again := s.order("k", "{}")
	if location := again.header.Get("Location"); again.status != 409 || location == "" || again.header.Get("Retry-After") == "" {
		t.Errorf("a retry of what waits got %d with %v; want 409 with Location and Retry-After", again.status, again.header)
	}
	settle(t, s.take(), store.Completed, `{"order":7}`)
	wantReply(t, s.order("k", "{}"), 200, `{"order":7}`, true)
}

// TestOutcomeIsTheSameForEveryRetry: how a worker's outcome is sent, and that
// nothing but the key decides it.
func TestOutcomeIsTheSameForEveryRetry(t *testing.T) {
	made, err := stethttp.Outcome(http.StatusCreated, http.Header{"Content-Type": {"application/json"}, "Location": {"/orders/7"}}, []byte(`{"order": 7}`))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name      string
		out       stet.Outcome
		status    int
		mediaType string
		body      string // or a problem's name
	}{
		{"result", outcome(store.Completed, ` {"n":9007199254740993, "s":"<&>"} `), 200, "application/json", ` {"n":9007199254740993, "s":"<&>"} `},
		{"null", outcome(store.Completed, "null"), 200, "application/json", "null"},
		{"nothing", outcome(store.Completed, ""), 204, "", ""},
		{"not JSON", outcome(store.Completed, "<html>"), 200, "application/octet-stream", "<html>"},
		{"response", made, 201, "application/json", `{"order": 7}`},
		{"failure", outcome(store.Failed, `"dial 10.0.0.3: refused"`), 500, "application/problem+json", "operation-failed"},
		{"failure without a text", outcome(store.Failed, ""), 504, "application/problem+json", "processing-timed-out"},
		{"cancelled", outcome(store.Failed, `"stet: operation cancelled"`), 409, "application/problem+json", "operation-cancelled"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := start(t, setup{async: &stethttp.AsyncOptions{}})
			accepted := s.order("k", "{}")
			s.end(c.out)
			first := s.order("k", "{}")
			if c.mediaType == "application/problem+json" {
				wantProblem(t, first, c.status, c.body)
				if d := first.problem(); strings.Contains(d.Detail, "10.0.0.3") {
					t.Errorf("the detail is %q", d.Detail)
				}
			} else {
				wantReply(t, first, c.status, c.body, true)
			}
			if got := first.header.Get("Content-Type"); got != c.mediaType {
				t.Errorf("Content-Type %q, want %q", got, c.mediaType)
			}
			second := start(t, setup{async: &stethttp.AsyncOptions{}, store: s.store})
			wantSame(t, second.order("k", "{}"), first)
			wantReply(t, s.order("k", "{}", "Prefer", "wait=1"), c.status, first.body, true)

			wantToldOutcome(t, s.status(accepted), c.out.Failed, c.status, c.mediaType, c.body)
		})
	}
}

// wantToldOutcome checks how a status tells an outcome; body is a problem's name if
// it is one.
func wantToldOutcome(t *testing.T, r reply, failed bool, status int, mediaType, body string) {
	t.Helper()
	d := r.told(t)
	if r.status != 200 || (d.State == "failed") != failed || d.Outcome == nil || d.Outcome.Status != status {
		t.Fatalf("got %d %s; want r.status == 200, (d.State == \"failed\") == failed, d.Outcome != nil, d.Outcome.Status == status", r.status, r.body)
	}
	switch o := d.Outcome; {
	case o.Problem != nil:
		if *o.Problem.Retryable || o.Problem.Status != status || o.Problem.Type != stethttp.DefaultProblemBase+body {
			t.Errorf("the problem is %+v", o.Problem)
		}
	case mediaType == "application/json":
		if strings.ReplaceAll(string(o.Result), " ", "") != strings.ReplaceAll(body, " ", "") {
			t.Errorf("the result is %s", o.Result)
		}
	case string(o.ResultBase64) != body || o.MediaType != mediaType:
		t.Errorf("the result is %s %q", o.MediaType, o.ResultBase64)
	}
}

func TestResultThatIsNoLongerKeptIsGone(t *testing.T) {
	st := newFaulty()
	s := start(t, setup{store: st, async: &stethttp.AsyncOptions{}})
	accepted := s.order("k", "{}")
	s.run(store.Completed, "{}")
	st.skip.Add(int64(25 * time.Hour))
	wantProblem(t, s.order("k", "{}", "Prefer", "wait=1"), 410, "result-expired")
	wantProblem(t, s.status(accepted), 410, "result-expired")
	wantProblem(t, s.order("k", "{}"), 410, "result-expired")
	s.wantNothingDue()
	st.skip.Add(int64(30 * 24 * time.Hour))
	wantProblem(t, s.status(accepted), 404, "operation-not-found")
}

func TestResultThatWasTooLargeIsGone(t *testing.T) {
	s := start(t, setup{async: &stethttp.AsyncOptions{}, engine: stet.Options{Policy: stet.Policy{MaxResult: 10}}})
	accepted := s.order("k", "{}")
	s.run(store.Completed, `"0123456789"`)
	wantProblem(t, s.order("k", "{}", "Prefer", "wait=1"), 410, "result-expired")
	wantProblem(t, s.status(accepted), 410, "result-expired")
}

func TestUnknownIsReported(t *testing.T) {
	store := newFaulty()
	s := start(t, setup{store: store, async: &stethttp.AsyncOptions{}})
	accepted := s.order("k", "{}")
	s.take() // by a worker that dies
	store.skip.Add(int64(time.Hour))
	wantProblem(t, s.order("k", "{}"), 504, "outcome-unknown") // marks it unknown
	r := s.order("k", "{}", "Prefer", "wait=0")
	wantProblem(t, r, 504, "outcome-unknown")
	if r.header.Get("Retry-After") != "1" { // workers watch expired runs
		t.Errorf("Retry-After %q", r.header.Get("Retry-After"))
	}
	r = s.status(accepted, "Prefer", "wait=0")
	d := r.told(t)
	if r.status != 200 || d.State != "unknown" || d.Outcome != nil || d.Problem == nil || d.Problem.Type != stethttp.DefaultProblemBase+"outcome-unknown" {
		t.Errorf("got %d %s; want r.status == 200, d.State == \"unknown\", d.Outcome == nil, d.Problem != nil, d.Problem.Type == stethttp.DefaultProblemBase+\"outcome-unknown\"", r.status, r.body)
	}
	wantProblem(t, s.cancel(accepted), 409, "not-cancellable")
	verifies := start(t, setup{store: store, async: &stethttp.AsyncOptions{}, engine: stet.Options{Policy: stet.Policy{Verify: verifyUnknown}}})
	r = verifies.order("k", "{}", "Prefer", "wait=0")
	wantProblem(t, r, 504, "outcome-unknown")
	if r.header.Get("Retry-After") != "5" {
		t.Errorf("Retry-After %q", r.header.Get("Retry-After"))
	}
	finds := start(t, setup{store: store, async: &stethttp.AsyncOptions{}, engine: stet.Options{Policy: stet.Policy{Verify: verifyHappened}}})
	wantReply(t, finds.order("k", "{}", "Prefer", "wait=0"), 201, "found", true)
	wantReply(t, s.order("k", "{}", "Prefer", "wait=0"), 201, "found", true)
}

// TestAsManyRequestsMayWaitAsTheEngineLets: requests for running operations have the
// engine's limit.
func TestAsManyRequestsMayWaitAsTheEngineLets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const waiters = 1500
		b := newBubble(t, setup{async: &stethttp.AsyncOptions{}, engine: stet.Options{MaxWaiters: waiters}, options: stethttp.Options{MaxWait: time.Minute}})
		b.order()
		var wg sync.WaitGroup
		for range waiters {
			wg.Go(func() {
				if w := b.order("Prefer", "wait=60"); w.Code != 200 {
					t.Errorf("%d %s", w.Code, w.Body)
				}
			})
		}
		time.Sleep(10 * time.Second)
		settle(t, b.take(), store.Completed, "{}")
		wg.Wait()
	})
}
