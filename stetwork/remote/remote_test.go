package remote_test

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stetwork"
	"github.com/stet-go/stet/stetwork/remote"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const token = "a token of some length"

// bench is a server in a bubble of its own time. "ship" may be repeated only when
// it is returned, "count" always, and "local" is a handler of this process.
type bench struct {
	t      *testing.T
	engine *stet.Engine
	server *remote.Server
	worker *stetwork.Worker
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func inBubble(t *testing.T, f func(t *testing.T, b *bench)) {
	t.Helper()
	inBubbleOf(t, remote.Options{}, stetwork.Options{Dispatch: stetwork.DispatcherOptions{Again: time.Minute}}, f)
}

func inBubbleOf(t *testing.T, ro remote.Options, wo stetwork.Options, f func(t *testing.T, b *bench)) {
	t.Helper()
	inBubbleOn(t, memory.New(memory.Options{}), ro, wo, f)
}

func inBubbleOn(t *testing.T, store store.Store, ro remote.Options, wo stetwork.Options, f func(t *testing.T, b *bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := &bench{t: t}
		var err error
		b.engine, err = stet.New(store, stet.Options{SweepEvery: -1, Policy: stet.Policy{Lease: 30 * time.Second}})
		must(t, err)
		ro.Token = token
		b.server, err = remote.New(ro)
		must(t, err)
		wo.Queue, wo.ErrorLog = b.server, slog.New(slog.DiscardHandler)
		w, err := stetwork.New(b.engine, wo)
		must(t, err)
		b.worker = w
		must(t, b.server.Handle(w, "ship"))
		must(t, b.server.HandleIdempotent(w, "count"))
		must(t, stetwork.Handle(w, "local", func(context.Context, string) (string, error) { return "here", nil }))
		must(t, stetwork.Handle(w, "slow", func(context.Context, string) (string, error) { time.Sleep(time.Minute); return "here", nil }))
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error)
		go func() { done <- w.Run(ctx) }()
		f(t, b)
		cancel()
		must(t, <-done)
		_ = b.engine.Close()
	})
}

func (b *bench) accept(name, payload string) store.ID {
	b.t.Helper()
	st, err := b.engine.Accept(context.Background(), stet.Op{Scope: "shop", Key: name + payload}, stet.Work{Name: name, Payload: []byte(payload)})
	must(b.t, err)
	return st.Record.ID
}

func (b *bench) send(ctx context.Context, method, path, token, body string) *httptest.ResponseRecorder {
	r := httptest.NewRequestWithContext(ctx, method, path, strings.NewReader(body))
	r.Header.Set("Authorization", "Bearer "+token)
	w := httptest.NewRecorder()
	b.server.ServeHTTP(w, r)
	return w
}

// call sends a request about a run, and checks the status of its answer.
func (b *bench) call(run, what, body string, status int) map[string]any {
	b.t.Helper()
	w := b.send(context.Background(), http.MethodPost, "/runs/"+run+strings.Repeat(".", 16)+"/"+what, token, body)
	if w.Code != status {
		b.t.Fatalf("%s %s: %d %s; want %d", run, what, w.Code, w.Body, status)
	}
	m := map[string]any{}
	if w.Body.Len() > 0 {
		must(b.t, json.Unmarshal(w.Body.Bytes(), &m))
	}
	return m
}

func (b *bench) take(run string) map[string]any {
	b.t.Helper()
	return b.call(run, "take", `{"names":["ship","count"],"wait":60}`, 200)
}

// is waits until the operation is in a state.
func (b *bench) is(id store.ID, want store.State) stet.Status {
	b.t.Helper()
	for end := time.Now().Add(time.Hour); ; time.Sleep(100 * time.Millisecond) {
		st, err := b.engine.Lookup(context.Background(), id)
		must(b.t, err)
		if st.Record.State == want {
			return st
		}
		if time.Now().After(end) {
			b.t.Fatalf("%v for an hour; want %v", st.Record.State, want)
		}
	}
}

func TestRemoteWorkerSettlesWhatItTook(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		id := b.accept("ship", `{"book":"Emma"}`)
		d := b.take("a")
		if d["id"] != id.String() || d["name"] != "ship" || d["scope"] != "shop" || d["attempt"] != 1.0 || d["lease"] != 30.0 || d["payload"].(map[string]any)["book"] != "Emma" {
			t.Fatalf("%v", d)
		}
		for range 2 { // the answer to the first time was lost
			if got := b.call("a", "settle", `{"result":{"parcel":7}}`, 200); got["state"] != "completed" {
				t.Fatalf("%v", got)
			}
		}
		if st := b.is(id, store.Completed); string(st.Outcome.Body) != `{"parcel":7}` {
			t.Errorf("%s", st.Outcome.Body)
		}
		if got := b.call("a", "extend", ``, 409); got["state"] != "completed" {
			t.Errorf("%v", got)
		}
	})
}

func TestErrorOfARemoteWorkerIsTheOutcome(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		for _, name := range []string{"ship", "count"} {
			id := b.accept(name, `1`)
			b.take(name)
			b.call(name, "settle", `{"error":"the card was declined"}`, 200)
			if st := b.is(id, store.Failed); string(st.Outcome.Body) != "the card was declined" {
				t.Errorf("%s", st.Outcome.Body)
			}
		}
	})
}

func TestTakeWhoseAnswerWasLostIsRepeated(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.accept("ship", `1`)
		b.accept("ship", `2`)
		first, second := b.take("a"), b.take("a")
		if first["id"] != second["id"] || first["fence"] != second["fence"] {
			t.Errorf("%v, then %v", first, second)
		}
		if other := b.take("b"); other["id"] == first["id"] {
			t.Errorf("both got %v", other["id"])
		}
		b.call("a", "settle", `{"result":null}`, 200)
		b.call("b", "settle", `{"result":null}`, 200)
	})
}

func TestWorkerThatLeavesBeforeItIsToldHasTakenNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		id := b.accept("ship", `1`)
		synctest.Wait()
		b.send(ctx, http.MethodPost, "/runs/"+strings.Repeat("a", 16)+"/take", token, `{"names":["ship"],"wait":60}`)
		b.is(id, store.Accepted)
		b.take("b")
		b.call("b", "settle", `{"result":null}`, 200)
	})
}

func TestTakeWaitsAndGivesUp(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		began := time.Now()
		b.call("a", "take", `{"names":["ship"],"wait":20}`, 204)
		if took := time.Since(began); took != 20*time.Second {
			t.Errorf("it waited %v", took)
		}
		b.call("a", "take", `{"names":["ship"],"wait":1e300}`, 204)
		if took := time.Since(began); took != 80*time.Second {
			t.Errorf("it waited %v", took)
		}
		b.accept("count", `1`)
		b.call("a", "take", `{"names":["ship"],"wait":1}`, 204) // not its name
		go func() {
			time.Sleep(10 * time.Second)
			b.accept("ship", `1`)
		}()
		began = time.Now()
		b.call("a", "take", `{"names":["ship"],"wait":20}`, 200)
		if took := time.Since(began); took != 10*time.Second {
			t.Errorf("it was told after %v", took)
		}
		b.call("a", "settle", `{"result":null}`, 200)
	})
}

func TestSilentWorkerIsDead(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		plain := b.accept("ship", `1`)
		b.take("a")
		repeatable := b.accept("count", `1`)
		b.take("b")
		began := time.Now()
		b.is(plain, store.Unknown)
		if took := time.Since(began); took < 29*time.Second || took > 32*time.Second {
			t.Errorf("after %v", took)
		}
		if got := b.call("a", "settle", `{"result":null}`, 200); got["state"] != "unknown" {
			t.Errorf("%v", got)
		}
		if d := b.take("c"); d["id"] != repeatable.String() || d["attempt"] != 2.0 {
			t.Errorf("%v", d)
		}
		b.call("c", "settle", `{"result":null}`, 200)
		b.is(repeatable, store.Completed)
	})
}

func TestWorkerThatIsHeardOfKeepsItsRun(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		id := b.accept("ship", `1`)
		b.take("a")
		for range 12 {
			time.Sleep(20 * time.Second)
			if got := b.call("a", "extend", `{"progress":{"fraction":0.5,"message":"half way"}}`, 200); got["cancelling"] != false {
				t.Fatalf("%v", got)
			}
		}
		if st := b.is(id, store.Running); st.Record.Attempt != 1 || st.Progress.Message != "half way" {
			t.Errorf("%+v", st)
		}
		b.call("a", "settle", `{"result":null}`, 200)
	})
}

func TestCancellationReachesTheWorker(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		id := b.accept("ship", `1`)
		b.take("a")
		_, err := b.engine.Cancel(context.Background(), "shop", id)
		must(t, err)
		time.Sleep(5 * time.Second)
		if got := b.call("a", "extend", ``, 200); got["cancelling"] != true {
			t.Fatalf("%v", got)
		}
		if got := b.call("a", "settle", `{"error":"stopped"}`, 200); got["state"] != "failed" {
			t.Errorf("%v", got)
		}
	})
}

func TestReturnedIsRunAgainAndParkedIsNot(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		back, doubt := b.accept("ship", `1`), b.accept("ship", `2`)
		runs := map[any]string{b.take("a")["id"]: "a", b.take("b")["id"]: "b"}
		if got := b.call(runs[back.String()], "return", `{"error":"sold out"}`, 200); got["state"] != "accepted" {
			t.Errorf("%v", got)
		}
		if got := b.call(runs[doubt.String()], "park", `{}`, 200); got["state"] != "unknown" {
			t.Errorf("%v", got)
		}
		if d := b.take("c"); d["id"] != back.String() || d["attempt"] != 2.0 {
			t.Errorf("%v", d)
		}
		b.call("c", "settle", `{"result":null}`, 200)
	})
}

func TestStepsOutliveTheirAttempt(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		id := b.accept("count", `1`)
		b.take("a")
		begin, undone, end := `{"name":"charge","once":true}`, `{"name":"charge","undone":true}`, `{"name":"charge","result":{"charge":7}}`
		for range 2 {
			if got := b.call("a", "step", begin, 200); got["done"] != false {
				t.Fatalf("%v", got)
			}
		}
		b.call("a", "return", `{}`, 409) // it has begun something
		if got := b.call("a", "step", undone, 200); got["done"] != false {
			t.Fatalf("%v", got)
		}
		b.call("a", "step", begin, 200)
		for range 2 {
			if got := b.call("a", "step", end, 200); got["done"] != true {
				t.Fatalf("%v", got)
			}
		}
		b.call("a", "return", `{}`, 200)
		b.take("b")
		if got := b.call("b", "step", begin, 200); got["done"] != true || got["result"].(map[string]any)["charge"] != 7.0 {
			t.Fatalf("%v", got)
		}
		b.call("b", "settle", `{"result":null}`, 200)
		b.is(id, store.Completed)
	})
}

func TestStepInDoubtIsParkedAndRefused(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		id := b.accept("count", `1`)
		b.take("a")
		b.call("a", "step", `{"name":"charge","once":true}`, 200)
		st := b.is(id, store.Unknown) // it fell silent
		if st.Doubt != "charge" {
			t.Errorf("in doubt: %q", st.Doubt)
		}
		// Given back without a verdict, as an older process would.
		must(t, b.engine.Store().(store.WorkStore).Return(context.Background(), st.Record.Claim(), 0))
		b.call("b", "take", `{"names":["ship","count"],"wait":20}`, 204)
		if st = b.is(id, store.Unknown); st.Doubt != "charge" || st.Record.Attempt != 2 {
			t.Errorf("attempt %d, in doubt: %q; want it parked when it was taken, and no worker told", st.Record.Attempt, st.Doubt)
		}
	})
}

func TestStepThatDidNotHappenIsDoneByTheNextAttempt(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		id := b.accept("count", `1`)
		b.take("a")
		b.call("a", "step", `{"name":"charge","once":true}`, 200)
		st := b.is(id, store.Unknown) // it fell silent
		must(t, b.engine.Resolve(context.Background(), st.Record, "", stet.ItDidNotHappen()))
		b.take("b")
		for range 2 { // the first answer may have been lost
			if got := b.call("b", "step", `{"name":"charge","once":true}`, 200); got["done"] != false {
				t.Errorf("what did not happen is %v", got)
			}
		}
		b.call("b", "step", `{"name":"charge","result":1}`, 200)
		if got := b.call("b", "settle", `{"result":1}`, 200); got["state"] != "completed" {
			t.Errorf("%v", got)
		}
	})
}

func TestHandlersOfThisProcessRunBesideRemoteOnes(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.is(b.accept("local", `"x"`), store.Completed)
	})
}

func TestBytesThatAreNotJSONArrive(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		for payload, want := range map[string]string{"\x00{": "AHs=", "\"\xff\"": "Iv8i"} { // JSON is UTF-8
			_, err := b.engine.Accept(context.Background(), stet.Op{Scope: "shop", Key: want}, stet.Work{Name: "ship", Payload: []byte(payload)})
			must(t, err)
			if d := b.take(want); d["payload_base64"] != want || d["payload"] != nil {
				t.Errorf("%v", d)
			}
			b.call(want, "settle", `{"result":null}`, 200)
		}
	})
}

func TestStrangersAndNonsenseAreRefused(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		run := strings.Repeat("a", 16)
		for name, c := range map[string]struct {
			method, path, token, body string
			status                    int
		}{
			"no token":    {"POST", "/runs/" + run + "/take", "", `{}`, 401},
			"other token": {"POST", "/runs/" + run + "/take", token + "x", `{}`, 401},
			"short name":  {"POST", "/runs/a/take", token, `{}`, 400},
			"long name":   {"POST", "/runs/" + strings.Repeat("a", 129) + "/take", token, `{}`, 400},
			"not JSON":    {"POST", "/runs/" + run + "/take", token, `{`, 400},
			"too large":   {"POST", "/runs/" + run + "/settle", token, `{"error":"` + strings.Repeat("x", 3<<20) + `"}`, 413},
			"no such run": {"POST", "/runs/" + run + "/settle", token, `{}`, 404},
			"method":      {"GET", "/runs/" + run + "/settle", token, ``, 405},
			"nowhere":     {"POST", "/runs/" + run + "/steal", token, ``, 404},
			"health":      {"GET", "/healthz", "", ``, 200},
		} {
			w := b.send(context.Background(), c.method, c.path, c.token, c.body)
			if w.Code != c.status {
				t.Errorf("%s: %d; want %d", name, w.Code, c.status)
			}
			if bytes.Contains(w.Body.Bytes(), []byte(token)) {
				t.Errorf("%s: the token is in the answer", name)
			}
		}
	})
}

func TestWrongWiringIsRefused(t *testing.T) {
	_, short := remote.New(remote.Options{Token: "short"})
	_, negative := remote.New(remote.Options{Token: token, Waiting: -1})
	server, err := remote.New(remote.Options{Token: token})
	must(t, err)
	for name, err := range map[string]error{"short": short, "negative": negative, "no worker": server.Handle(nil, "ship")} {
		if stet.KindOf(err) != stet.KindInvalid {
			t.Errorf("%s: %v", name, err)
		}
	}
}
