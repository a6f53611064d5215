package stethttp_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/store/memory"
)

// blocking is a handler that closes entered and waits for leave.
type blocking struct {
	entered, leave chan struct{}
	once           sync.Once
}

func newBlocking() *blocking {
	return &blocking{entered: make(chan struct{}), leave: make(chan struct{})}
}

func (b *blocking) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	b.once.Do(func() { close(b.entered) })
	<-b.leave
	_, _ = io.WriteString(w, "done")
}

func TestDuplicateInFlightIsRefused(t *testing.T) {
	b := newBlocking()
	s := start(t, setup{handler: b.ServeHTTP})
	first := make(chan reply)
	go func() { first <- s.post("k", "{}") }()
	<-b.entered
	dup := s.post("k", "{}")
	wantProblem(t, dup, 409, "in-flight")
	if dup.header.Get("Retry-After") != "1" {
		t.Errorf("Retry-After %q", dup.header.Get("Retry-After"))
	}
	wantProblem(t, s.post("k", "{other}"), 422, "mismatch") // said before anything else about the key
	other := start(t, setup{store: s.store})                // another process
	wantProblem(t, other.post("k", "{}"), 409, "in-flight")
	wantProblem(t, other.post("k", "{other}"), 422, "mismatch")
	close(b.leave)
	wantReply(t, <-first, 200, "done", false)
	wantReply(t, s.post("k", "{}"), 200, "done", true)
	wantReply(t, other.post("k", "{}"), 200, "done", true)
	s.wantRuns(1)
	other.wantRuns(0)
}

func TestDuplicateMayPreferToWait(t *testing.T) {
	b := newBlocking()
	s := start(t, setup{handler: b.ServeHTTP, options: stethttp.Options{MaxWait: time.Minute}})
	first, dup := make(chan reply), make(chan reply)
	go func() { first <- s.post("k", "{}") }()
	<-b.entered
	zero := s.post("k", "{}", "Prefer", "wait=0")
	wantProblem(t, zero, 409, "in-flight")
	if got := zero.header.Get("Preference-Applied"); got != "wait=0" {
		t.Errorf("Preference-Applied %q", got)
	}
	go func() { dup <- s.post("k", "{}", "Prefer", `respond-async; x="wait=0,", WAIT="300"`) }()
	close(b.leave)
	wantReply(t, <-first, 200, "done", false)
	r := <-dup
	wantReply(t, r, 200, "done", true)
	if got := r.header.Get("Preference-Applied"); got != "wait=60" {
		t.Errorf("Preference-Applied %q", got)
	}
	s.wantRuns(1)
}

func TestWaitingEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := stettest.Engine(t, memory.New(memory.Options{}), stet.Options{Policy: stet.Policy{Wait: 20 * time.Second}})
		b := newBlocking()
		h := stethttp.Must(stethttp.New(engine, stethttp.Options{Scope: stethttp.SingleTenant})).Handler(b)
		send := func(prefer ...string) *httptest.ResponseRecorder {
			r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader("{}"))
			r.Header["Idempotency-Key"] = []string{"k"}
			r.Header["Prefer"] = prefer
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			return w
		}
		done := make(chan struct{})
		go func() { defer close(done); send() }()
		<-b.entered
		for _, c := range []struct {
			prefer string
			waited time.Duration
		}{{"wait=3", 3 * time.Second}, {"wait=3600", stethttp.DefaultMaxWait}, {"wait=0", 0},
			{"wait=x", 20 * time.Second}, {"wait=-1", 20 * time.Second}, {"waiting=5", 20 * time.Second}} { // as the policy has it
			begun := time.Now()
			w := send(c.prefer)
			if waited := time.Since(begun).Round(time.Millisecond); w.Code != 409 || waited != c.waited {
				t.Errorf("%s: %d after %v, want 409 after %v", c.prefer, w.Code, waited, c.waited)
			}
		}
		close(b.leave)
		<-done
	})
}

func TestWaitingRequestRuns_FirstRunHadNoEffect(t *testing.T) {
	const size = 64 << 10
	for name, tx := range map[string]bool{"lease": false, "transaction": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := &txStore{Store: memory.New(memory.Options{})}
				engine := stettest.Engine(t, store, stet.Options{})
				runs, entered, leave := 0, make(chan struct{}), make(chan struct{})
				h := middleware(t, engine, store, tx).Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if runs++; runs == 1 {
						close(entered)
						<-leave
						stet.FromContext(r.Context()).Declare(stet.NotExecuted, 0)
					}
					n, _ := io.Copy(io.Discard, r.Body)
					_, _ = io.WriteString(w, strconv.FormatInt(n, 10))
				}))
				send := func() *httptest.ResponseRecorder { return ask(h, "k", "wait=9", strings.Repeat("x", size)) }
				go send()
				<-entered
				answer := make(chan *httptest.ResponseRecorder)
				go func() { answer <- send() }()
				synctest.Wait()
				close(leave)
				if w := <-answer; w.Code != 200 || w.Body.String() != strconv.Itoa(size) || runs != 2 {
					t.Errorf("%d %s after %d runs, want 200 %d after 2", w.Code, w.Body, runs, size)
				}
			})
		})
	}
}

func TestLargeDuplicateDoesNotWait(t *testing.T) {
	large := strings.Repeat("x", 64<<10+1)
	for name, tx := range map[string]bool{"lease": false, "transaction": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := &txStore{Store: memory.New(memory.Options{})}
				engine := stettest.Engine(t, store, stet.Options{Policy: stet.Policy{Wait: 20 * time.Second}})
				b := newBlocking()
				h := middleware(t, engine, store, tx).Handler(b)
				done := make(chan struct{})
				go func() { defer close(done); ask(h, "k", "", large) }()
				<-b.entered
				for _, prefer := range []string{"", "wait=9"} {
					begun := time.Now()
					w := ask(h, "k", prefer, large)
					if waited := time.Since(begun); w.Code != 409 || w.Header().Get("Retry-After") == "" || waited > time.Second {
						t.Errorf("Prefer %q: %d after %v, want 409 at once", prefer, w.Code, waited)
					}
				}
				close(b.leave)
				<-done
				if w := ask(h, "k", "", large); w.Code != 200 || w.Header().Get("Idempotent-Replayed") != "true" {
					t.Errorf("after the run: %d, want the replay", w.Code)
				}
			})
		})
	}
}
