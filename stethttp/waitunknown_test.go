package stethttp_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

// dead makes the operation of a key one that nobody knows about, resolved by an
// operator that much later; 0 is never.
func dead(t *testing.T, engine *stet.Engine, op stet.Op, v stet.Resolution, after time.Duration) {
	t.Helper()
	run, err := engine.Begin(context.Background(), op)
	if err != nil {
		t.Fatal(err)
	}
	if err := run.MarkUnknown(context.Background()); err != nil {
		t.Fatal(err)
	}
	if after == 0 {
		return
	}
	go func() {
		time.Sleep(after)
		rec, err := engine.Store().Read(context.Background(), run.ID())
		if err == nil {
			err = engine.Resolve(context.Background(), rec, "", v)
		}
		if err != nil {
			t.Error(err)
		}
	}()
}

// middleware is that of a single tenant, with leases or with transactions.
func middleware(t *testing.T, engine *stet.Engine, store store.TxStore[*fakeTx], tx bool) *stethttp.Middleware {
	t.Helper()
	o := stethttp.Options{Scope: stethttp.SingleTenant}
	if tx {
		return stethttp.Must(stethttp.NewTx(stettest.TxEngine(engine, store), o)).Middleware
	}
	return stethttp.Must(stethttp.New(engine, o))
}

// ask sends a request with a key and a preference.
func ask(h http.Handler, key, prefer, body string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(body))
	r.Header["Idempotency-Key"] = []string{key}
	if prefer != "" {
		r.Header["Prefer"] = []string{prefer}
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func TestPreferredWaitOutlastsWhatIsUnknown(t *testing.T) {
	found, err := verifyHappened(t.Context(), stet.Status{})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		class  stet.Resolution
		after  time.Duration
		prefer string
		waited time.Duration
		status int
		body   string
	}{
		"it happened":       {found, 3 * time.Second, "wait=8", 3 * time.Second, 201, "found"},
		"it did not happen": {stet.ItDidNotHappen(), 3 * time.Second, "wait=8", 3 * time.Second, 200, "ran"},
		"nobody finds out":  {found, 0, "wait=8", 8 * time.Second, 504, "outcome-unknown"},
		"later than that":   {found, 9 * time.Second, "wait=8", 8 * time.Second, 504, "outcome-unknown"},
		"no wait preferred": {found, 3 * time.Second, "wait=0", 0, 504, "outcome-unknown"},
		"nothing preferred": {found, 3 * time.Second, "", 0, 504, "outcome-unknown"},
		"more than MaxWait": {found, 0, "wait=3600", stethttp.DefaultMaxWait, 504, "outcome-unknown"},
	} {
		for _, tx := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					store := &txStore{Store: memory.New(memory.Options{})}
					engine := stettest.Engine(t, store, stet.Options{})
					m := middleware(t, engine, store, tx)
					h := m.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ran") }))
					ask(h, "twin", "", "{}")
					twin, err := store.Read(t.Context(), engine.ID("single-tenant", "twin"))
					if err != nil {
						t.Fatal(err)
					}
					dead(t, engine, stet.Op{Scope: "single-tenant", Key: "k", Fingerprint: twin.Fingerprint}, c.class, c.after)
					begun := time.Now()
					w := ask(h, "k", c.prefer, "{}")
					if waited := time.Since(begun); waited < c.waited || waited > c.waited+time.Second || w.Code != c.status || !strings.Contains(w.Body.String(), c.body) {
						t.Errorf("%d %s after %v, want %d %s after %v", w.Code, w.Body, waited, c.status, c.body, c.waited)
					}
					if applied := w.Header().Get("Preference-Applied"); (applied == "") != (c.prefer == "" || c.status == 200) {
						t.Errorf("Preference-Applied %q", applied)
					}
					time.Sleep(10 * time.Second)
				})
			})
		}
	}
}

func TestAcceptedOperationIsWaitedForWhileUnknown(t *testing.T) {
	for _, way := range []string{"again", "status"} {
		synctest.Test(t, func(t *testing.T) {
			b := newBubble(t, setup{async: &stethttp.AsyncOptions{StatusURL: "/operations/"}})
			location := b.order().Header().Get("Location")
			run := b.take()
			if err := run.MarkUnknown(context.Background()); err != nil {
				t.Fatal(err)
			}
			go func() {
				time.Sleep(3 * time.Second)
				rec, err := b.engine.Store().Read(context.Background(), run.ID())
				if err == nil {
					err = b.engine.Resolve(context.Background(), rec, "", stet.ItHappened(stet.Outcome{Body: []byte(`{"order":7}`)}))
				}
				if err != nil {
					t.Error(err)
				}
			}()
			begun := time.Now()
			var w *httptest.ResponseRecorder
			if way == "again" {
				w = b.order("Prefer", "wait=8")
			} else {
				w = b.send("GET", location, "", "Prefer", "wait=8")
			}
			if waited := time.Since(begun); waited < 3*time.Second || waited > 4*time.Second || w.Code != 200 || !strings.Contains(w.Body.String(), `{"order":7}`) {
				t.Errorf("%s: %d %s after %v", way, w.Code, w.Body, waited)
			}
		})
	}
}

func TestWaitingRequestsDoNotKeepLargeBodies(t *testing.T) {
	const waiters, size = 64, 1 << 20
	large := strings.Repeat("x", size)
	for _, tx := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			store := &txStore{Store: memory.New(memory.Options{})}
			engine := stettest.Engine(t, store, stet.Options{})
			b := newBlocking()
			m := middleware(t, engine, store, tx)
			h := m.Handler(b)
			send := func() *httptest.ResponseRecorder { return ask(h, "k", "wait=9", large) }
			go send()
			<-b.entered
			before := heap()
			answers := make(chan *httptest.ResponseRecorder, waiters)
			for range waiters {
				go func() { answers <- send() }()
			}
			time.Sleep(time.Second)
			synctest.Wait()
			if kept := heap() - before; kept > waiters*size/4 {
				t.Errorf("%d requests that wait keep %d KiB", waiters, kept>>10)
			}
			close(b.leave)
			for range waiters {
				if w := <-answers; w.Code != 200 || w.Body.String() != "done" || w.Header().Get("Idempotent-Replayed") != "true" {
					t.Errorf("got %d %s; want w.Code == 200, w.Body.String() == \"done\", w.Header().Get(\"Idempotent-Replayed\") == \"true\"", w.Code, w.Body)
				}
			}
		})
	}
}

func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // what pools hold goes with the second one
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// A run that had no effect leaves the operation to those who waited: at once to one
// that has its body still, after asking again to one that has not.
func TestWaitingRequestRunsWhatHadNoEffectIfItHasItsBody(t *testing.T) {
	for name, c := range map[string]struct {
		size   int
		status int
		runs   int
	}{"small": {100, 200, 2}, "large": {1 << 20, 409, 1}} {
		for _, tx := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					store := &txStore{Store: memory.New(memory.Options{})}
					engine := stettest.Engine(t, store, stet.Options{})
					m := middleware(t, engine, store, tx)
					runs, entered, leave := 0, make(chan struct{}), make(chan struct{})
					h := m.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						if runs++; runs == 1 {
							close(entered)
							<-leave
							stet.FromContext(r.Context()).Declare(stet.NotExecuted, 0)
						}
						n, _ := io.Copy(io.Discard, r.Body)
						_, _ = io.WriteString(w, strconv.FormatInt(n, 10))
					}))
					send := func() *httptest.ResponseRecorder { return ask(h, "k", "wait=9", strings.Repeat("x", c.size)) }
					go send()
					<-entered
					answer := make(chan *httptest.ResponseRecorder)
					go func() { answer <- send() }()
					time.Sleep(time.Second)
					synctest.Wait()
					close(leave)
					w := <-answer
					if w.Code != c.status || runs != c.runs || (c.status == 409) != (w.Header().Get("Retry-After") != "") {
						t.Errorf("tx %v: %d %v %s after %d runs", tx, w.Code, w.Header(), w.Body, runs)
					}
					if again := send(); again.Code != 200 || again.Body.String() != strconv.Itoa(c.size) || runs != 2 {
						t.Errorf("tx %v: again %d %s after %d runs", tx, again.Code, again.Body, runs)
					}
				})
			})
		}
	}
}
