package stethttp_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/fault"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

func TestSameKeyGetsTheSame202WhileItRunsAndAfterwards(t *testing.T) {
	s := start(t, setup{async: &stethttp.AsyncOptions{RetryAfter: 2500 * time.Millisecond, RepeatAcceptance: true}})
	first := s.order("k", `{"item": 1}`)
	wantAccepted(t, first, false)
	if first.header.Get("Retry-After") != "3" {
		t.Errorf("Retry-After %q", first.header.Get("Retry-After"))
	}
	retry := func() {
		t.Helper()
		r := s.order("k", `{"item": 1}`)
		wantAccepted(t, r, true)
		wantSame(t, r, first)
	}
	retry()
	run := s.take()
	if w := run.Work; w.Name != "orders.create" || string(w.Payload) != `{"item": 1}` {
		t.Errorf("the work is %+v", w)
	}
	retry()
	settle(t, run, store.Completed, `{"order":7}`)
	retry()
	s.wantNothingDue()
	s.wantRuns(1)
}

func TestOtherPayloadUnderTheKeyIsRefused(t *testing.T) {
	s := start(t, setup{async: &stethttp.AsyncOptions{}})
	wantAccepted(t, s.order("k", `{"item":1}`), false)
	other := func(when string) {
		t.Helper()
		for _, body := range []string{`{"item":2}`, "not JSON"} { // said before anything else about the key
			if r := s.order("k", body); r.name() != "mismatch" || r.status != 422 {
				t.Errorf("%s, %s: %d %s", when, body, r.status, r.body)
			}
		}
	}
	other("accepted")
	run := s.take()
	other("running")
	settle(t, run, store.Completed, "{}")
	other("completed")
}

func TestAsyncRefusesTheSameRequestsAsTheMiddleware(t *testing.T) {
	s := start(t, setup{async: &stethttp.AsyncOptions{}, options: stethttp.Options{MaxBody: 100, Scope: byAccount}})
	as := []string{"Account", "a"}
	wantProblem(t, s.order("", "{}", as...), 400, "key-missing")
	wantProblem(t, s.order("k e y", "{}", as...), 400, "key-invalid")
	wantProblem(t, s.order("k", "{}", "Account", "a", "Idempotency-Key", "l"), 400, "key-repeated")
	wantProblem(t, s.order("k", "{}"), 403, "scope-missing")
	wantProblem(t, s.order("k", `"`+strings.Repeat("x", 100)+`"`, as...), 413, "body-too-large")
	wantProblem(t, s.order("k", "<order/>", "Account", "a", "Content-Type", "application/xml"), 415, "media-type-unsupported")
	wantProblem(t, s.order("k", "{}", "Account", "a", "Content-Encoding", "gzip"), 415, "media-type-unsupported")
	wantProblem(t, s.order("k", "", as...), 400, "body-invalid")
	wantProblem(t, s.order("k", "{}{}", as...), 400, "body-invalid")
	put := s.do(s.request("PUT", "/orders", "k", "{}", as...))
	wantProblem(t, put, 405, "method-not-allowed")
	if put.header.Get("Allow") != "POST, PATCH" {
		t.Errorf("Allow %q", put.header.Get("Allow"))
	}
	s.wantNothingDue()
	wantAccepted(t, s.order("k", "{}", as...), false) // and none of it has used up the key
}

func TestPayloadIsBoundedByMaxWork(t *testing.T) {
	s := start(t, setup{async: &stethttp.AsyncOptions{}, options: stethttp.Options{MaxBody: 4 << 20}})
	body := `"` + strings.Repeat("x", store.MaxWork-2) + `"`
	wantProblem(t, s.order("k", body+" "), 413, "body-too-large")
	wantAccepted(t, s.order("k", body), false)
	if got := s.take().Work.Payload; string(got) != body {
		t.Errorf("the payload has %d bytes", len(got))
	}
}

func TestTwentyFirstRequestsOverTwoProcessesAreAcceptedOnce(t *testing.T) {
	set := setup{async: &stethttp.AsyncOptions{}}
	one := start(t, set)
	set.store = one.store
	two := start(t, set)
	wantOneAcceptance(t, one, two)
}

// orders refuses invalid orders.
func orders(w http.ResponseWriter, r *http.Request) (stet.Work, bool) {
	var order struct{ Item int }
	body, err := io.ReadAll(r.Body)
	if err != nil || json.Unmarshal(body, &order) != nil || order.Item == 0 {
		w.Header().Set("Orders", "none")
		http.Error(w, "no such item", http.StatusUnprocessableEntity)
		return stet.Work{}, false
	}
	return stet.Work{Payload: fmt.Append(nil, "item ", order.Item)}, true
}

func TestRefusedOrderIsNotStored(t *testing.T) {
	s := start(t, setup{async: &stethttp.AsyncOptions{}, prepare: orders})
	for range 2 {
		r := s.order("k", `{"item":0}`)
		wantReply(t, r, 422, "no such item\n", false)
		if r.header.Get("Orders") != "none" {
			t.Errorf("the header that prepare has set is %q", r.header.Get("Orders"))
		}
	}
	s.wantNothingDue()
	first := s.order("k", `{"item":3}`)
	wantAccepted(t, first, false)
	wantProblem(t, s.order("k", `{"item":0}`), 422, "mismatch") // the key stands for another by now
	if got := s.take().Work; string(got.Payload) != "item 3" || got.Name != "orders.create" {
		t.Errorf("the work is %+v", got)
	}
}

// TestRetryOfAnAcceptedOrderIsNotValidatedAnew: an order that was valid an hour ago
// need not be now.
func TestRetryOfAnAcceptedOrderIsNotValidatedAnew(t *testing.T) {
	var soldOut atomic.Bool
	s := start(t, setup{async: &stethttp.AsyncOptions{}, prepare: func(w http.ResponseWriter, r *http.Request) (stet.Work, bool) {
		if soldOut.Load() {
			w.Header().Set("Content-Language", "en")
			http.Error(w, "sold out", http.StatusConflict)
		}
		return stet.Work{Payload: []byte("{}")}, !soldOut.Load()
	}})
	first := s.order("k", "{}")
	soldOut.Store(true)
	retry := s.order("k", "{}")
	wantAccepted(t, retry, true)
	wantSame(t, retry, first)
	wantReply(t, s.order("l", "{}"), 409, "sold out\n", false)
}

func TestPrepareWithoutAResponseIsAnError(t *testing.T) {
	s := start(t, setup{async: &stethttp.AsyncOptions{}, prepare: func(http.ResponseWriter, *http.Request) (stet.Work, bool) {
		return stet.Work{}, false
	}})
	wantProblem(t, s.order("k", "{}"), 500, "misconfigured")
	if !strings.Contains(s.log.String(), "orders.create") {
		t.Errorf("the log does not say which: %s", s.log.String())
	}
}

func TestPrepareMayDelayAndName(t *testing.T) {
	store := newFaulty()
	s := start(t, setup{store: store, async: &stethttp.AsyncOptions{}, prepare: func(http.ResponseWriter, *http.Request) (stet.Work, bool) {
		return stet.Work{Name: "orders.later", After: time.Hour}, true
	}})
	wantAccepted(t, s.order("k", "{}"), false)
	s.wantNothingDue()
	store.skip.Add(int64(time.Hour))
	items, err := s.engine.Due(context.Background(), 10, time.Hour)
	if err != nil || len(items) != 1 || items[0].Name != "orders.later" {
		t.Errorf("due: %+v, %v", items, err)
	}
}

func TestPanicOfPrepareAcceptsNothing(t *testing.T) {
	var fail atomic.Bool
	fail.Store(true)
	s := start(t, setup{async: &stethttp.AsyncOptions{}, prepare: func(http.ResponseWriter, *http.Request) (stet.Work, bool) {
		if fail.Load() {
			panic(http.ErrAbortHandler)
		}
		return stet.Work{}, true
	}})
	if r := s.order("k", "{}"); r.err == nil {
		t.Errorf("got %d %s", r.status, r.body)
	}
	s.wantNothingDue()
	fail.Store(false)
	wantAccepted(t, s.order("k", "{}"), false)
}

func TestOptionalKeyAcceptsUnderANewOne(t *testing.T) {
	s := start(t, setup{async: &stethttp.AsyncOptions{}, options: stethttp.Options{Optional: true, KeyPolicy: stethttp.KeyPolicy{Strict: true}}})
	a, b := s.order("", "{}"), s.order("", "{}")
	wantAccepted(t, a, false)
	wantAccepted(t, b, false)
	if a.body == b.body {
		t.Error("two requests without a key are one operation")
	}
}

func TestStoreThatFailsLeavesAcceptanceUnknown(t *testing.T) {
	st := newFaulty()
	s := start(t, setup{store: st, async: &stethttp.AsyncOptions{}})
	st.accept.Store(true)
	down := s.order("k", "{}")
	wantProblem(t, down, 504, "acceptance-unknown")
	if down.header.Get("Retry-After") == "" || down.problem().Execution != "may have executed" {
		t.Errorf("got %v %s; want down.header.Get(\"Retry-After\") != \"\", down.problem().Execution == \"may have executed\"", down.header, down.body)
	}
	st.accept.Store(false)
	st.acceptAfter.Store(true) // every reply is lost
	wantProblem(t, s.order("l", "{}"), 504, "acceptance-unknown")
	st.acceptAfter.Store(false)
	r := s.order("l", "{}")
	wantAccepted(t, r, true)
	s.run(store.Completed, "{}")
	wantAccepted(t, s.order("k", "{}"), false)
}

// TestDeathOfTheServiceLosesNoOrder stops a process forever at each point that an
// acceptance passes, and lets it continue when all is over: as if it had died there,
// or had been paused.
func TestDeathOfTheServiceLosesNoOrder(t *testing.T) {
	for _, point := range []fault.Point{fault.AcceptBefore, fault.AcceptAfter, fault.ResponseBefore, fault.ResponseAfter} {
		t.Run(string(point), func(t *testing.T) {
			st := memory.New(memory.Options{})
			set := setup{store: st, async: &stethttp.AsyncOptions{RepeatAcceptance: true}}
			dies, lives := start(t, set), start(t, set)
			stopped, revive := make(chan struct{}), make(chan struct{})
			var reached atomic.Bool
			fault.Set(func(p fault.Point) {
				if p == point && reached.CompareAndSwap(false, true) {
					close(stopped)
					<-revive
				}
			})
			defer fault.Set(nil)
			late := make(chan reply)
			go func() { late <- dies.order("k", `{"item":1}`) }()
			<-stopped
			retry := lives.order("k", `{"item":1}`)
			wantAccepted(t, retry, point != fault.AcceptBefore)
			lives.run(store.Completed, `{"order":7}`)
			close(revive)
			if zombie := <-late; zombie.err == nil {
				wantSame(t, zombie, retry)
			}
			again := lives.order("k", `{"item":1}`)
			wantSame(t, again, retry)
			wantReply(t, lives.order("k", `{"item":1}`, "Prefer", "wait=1"), 200, `{"order":7}`, true)
			lives.wantNothingDue()
		})
	}
}

// TestLostReplyIsNoSecondOrder cuts the connection before the client has read the
// reply, again and again.
func TestLostReplyIsNoSecondOrder(t *testing.T) {
	s := start(t, setup{async: &stethttp.AsyncOptions{}, around: func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Lose") == "" {
				next.ServeHTTP(w, r)
				return
			}
			next.ServeHTTP(httptest.NewRecorder(), r)
			panic(http.ErrAbortHandler)
		})
	}})
	for range 5 {
		if r := s.order("k", "{}", "Lose", "it"); r.err == nil {
			t.Fatalf("got %d", r.status)
		}
	}
	wantAccepted(t, s.order("k", "{}"), true)
	s.run(store.Completed, "{}")
	s.wantNothingDue()
}

func TestWrongAsyncWiringIsAnErrorAtOnce(t *testing.T) {
	engine := stettest.Engine(t, memory.New(memory.Options{}), stet.Options{})
	m := stethttp.Must(stethttp.New(engine, stethttp.Options{Scope: stethttp.SingleTenant}))
	stettest.Options(t, "testdata/asyncoptions.txt", func(o stethttp.AsyncOptions) error { _, err := stethttp.NewAsync(m, o); return err })
	if _, err := stethttp.NewAsync(nil, stethttp.AsyncOptions{StatusURL: "/"}); err == nil {
		t.Error("no middleware is no error")
	}
	plain := stettest.Engine(t, struct{ store.Store }{memory.New(memory.Options{})}, stet.Options{})
	if _, err := stethttp.NewAsync(stethttp.Must(stethttp.New(plain, stethttp.Options{Scope: stethttp.SingleTenant})), stethttp.AsyncOptions{StatusURL: "/"}); err == nil {
		t.Error("a store that keeps no work is no error")
	}
	defer func() {
		if recover() == nil {
			t.Error("a handler without a name does not panic")
		}
	}()
	stethttp.Must(stethttp.NewAsync(m, stethttp.AsyncOptions{StatusURL: "/"})).Accept("", nil)
}

func TestNeitherPayloadsNorResultsOfOperationsAreLogged(t *testing.T) {
	const canary = "canary"
	st := newFaulty()
	s := start(t, setup{store: st, async: &stethttp.AsyncOptions{}, options: stethttp.Options{
		Scope: func(*http.Request) (string, error) { return canary + "-scope", nil },
	}})
	st.accept.Store(true)
	s.order(canary+"-key", `"`+canary+`"`)
	st.accept.Store(false)
	accepted := s.order(canary+"-key", `"`+canary+`"`)
	s.order(canary+"-key", `"`+canary+`2"`)
	s.run(store.Failed, `"`+canary+`-error"`)
	s.status(accepted)
	text := s.log.String()
	for _, ev := range s.events.List() {
		text += fmt.Sprintf("%+v %v\n", ev, ev.Err)
	}
	if strings.Contains(text, canary) || !strings.Contains(text, "level=") {
		t.Errorf("logged: %s", text)
	}
	if strings.Contains(accepted.body+fmt.Sprint(accepted.header), canary) || bytes.Contains([]byte(s.status(accepted).body), []byte(canary)) {
		t.Error("the status tells the key, the scope, or what the worker said")
	}
}
