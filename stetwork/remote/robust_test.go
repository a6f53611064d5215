package remote_test

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stetwork"
	"github.com/stet-go/stet/stetwork/remote"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

func TestLocalOperationsRunAsThereIsRoom(t *testing.T) {
	inBubbleOf(t, remote.Options{}, stetwork.Options{Concurrency: 4}, func(t *testing.T, b *bench) {
		began := time.Now()
		var ids []store.ID
		for i := range 100 {
			ids = append(ids, b.accept("slow", `"`+strconv.Itoa(i)+`"`)) // a minute each
		}
		for _, id := range ids {
			b.is(id, store.Completed)
		}
		if took := time.Since(began); took > 30*time.Minute {
			t.Errorf("100 operations of a minute, 4 at a time, took %v", took)
		}
	})
}

func TestLocalOperationsHoldUpNoRemoteOnes(t *testing.T) {
	inBubbleOf(t, remote.Options{}, stetwork.Options{Concurrency: 4}, func(t *testing.T, b *bench) {
		var ids []store.ID
		for i := range 20 {
			ids = append(ids, b.accept("slow", `"`+strconv.Itoa(i)+`"`), b.accept("ship", strconv.Itoa(i)))
		}
		began := time.Now()
		for i := range 20 {
			run := "/runs/" + strings.Repeat("a", 16) + strconv.Itoa(i)
			for b.send(context.Background(), http.MethodPost, run+"/take", token, `{"names":["ship"],"wait":60}`).Code != 200 {
				synctest.Wait()
			}
			b.send(context.Background(), http.MethodPost, run+"/settle", token, `{"result":1}`)
		}
		if took := time.Since(began); took > 6*time.Minute {
			t.Errorf("they were told after %v, beside five minutes of others", took)
		}
		for _, id := range ids {
			b.is(id, store.Completed)
		}
	})
}

// failing is a store that lets nothing be taken for a while.
type failing struct {
	*memory.Store
	fails atomic.Bool
}

func (s *failing) Take(ctx context.Context, req store.TakeRequest) (store.Record, error) {
	if s.fails.Load() {
		return store.Record{}, errors.New("the store is down")
	}
	return s.Store.Take(ctx, req)
}

func TestLocalOperationsRunOnceTheStoreIsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := &failing{Store: memory.New(memory.Options{})}
		engine, err := stet.New(st, stet.Options{SweepEvery: -1})
		must(t, err)
		server, err := remote.New(remote.Options{Token: token})
		must(t, err)
		w, err := stetwork.New(engine, stetwork.Options{Queue: server, ErrorLog: slog.New(slog.DiscardHandler)})
		must(t, err)
		must(t, server.Handle(w, "ship"))
		must(t, stetwork.Handle(w, "local", func(context.Context, []byte) (string, error) { return "here", nil }))
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error)
		go func() { done <- w.Run(ctx) }()
		b := &bench{t: t, engine: engine, server: server}
		st.fails.Store(true)
		id := b.accept("local", `1`)
		time.Sleep(10 * time.Second)
		st.fails.Store(false)
		back := time.Now()
		b.is(id, store.Completed)
		if took := time.Since(back); took > 10*time.Second {
			t.Errorf("it ran %v after the store was back", took)
		}
		cancel()
		must(t, <-done)
		_ = engine.Close()
	})
}

func TestRunsThatHaveEndedKeepNoPayload(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		const runs, size = 50, 200_000
		before := inUse()
		for i := range runs {
			_, err := b.engine.Accept(context.Background(), stet.Op{Scope: "shop", Key: strconv.Itoa(i)},
				stet.Work{Name: "ship", Payload: []byte(`"` + strings.Repeat("x", size) + `"`)})
			must(t, err)
			run := "run" + strconv.Itoa(i)
			b.take(run)
			b.call(run, "step", `{"name":"charge","result":"`+strings.Repeat("y", size)+`"}`, 200)
			b.call(run, "settle", `{"error":"declined"}`, 200)
		}
		if grown := inUse() - before; grown > runs*size/4 {
			t.Errorf("%d bytes are kept of each run that has ended", grown/runs)
		}
		for range 2 { // the answer was lost
			if got := b.call("run0", "settle", `{"error":"declined"}`, 200); got["state"] != "failed" {
				t.Errorf("got %v; want got[\"state\"] == \"failed\"", got)
			}
		}
	})
}

func inUse() int {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc) //nolint:gosec // small
}

func TestMisspeltEndingIsNoSuccess(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		id := b.accept("ship", `1`)
		b.take("a")
		for _, body := range []string{``, `{}`, `null`, `{"err":"declined"}`, `{"error":""}`, `{"result":1}{"error":"declined"}`} {
			b.call("a", "settle", body, 400)
		}
		b.call("a", "step", `{"name":"charge","onse":true}`, 400)
		b.is(id, store.Running)
		b.call("a", "settle", `{"result":null}`, 200)
		b.is(id, store.Completed)
	})
}

func TestKeyThatIsNoTextArrivesAsItIs(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		_, err := b.engine.Accept(context.Background(), stet.Op{Scope: "\xff", Key: "\xfe"}, stet.Work{Name: "ship"})
		must(t, err)
		if d := b.take("a"); d["scope_base64"] != "/w==" || d["key_base64"] != "/g==" || d["scope"] != nil || d["key"] != nil {
			t.Errorf("got %v; want d[\"scope_base64\"] == \"/w==\", d[\"key_base64\"] == \"/g==\", d[\"scope\"] == nil, d[\"key\"] == nil", d)
		}
		b.call("a", "settle", `{"result":1}`, 200)
	})
}

func TestStepsOfARunAreBounded(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.accept("ship", `1`)
		b.take("a")
		for i := range 10_000 {
			b.call("a", "step", `{"name":"`+strconv.Itoa(i)+`"}`, 200)
		}
		b.call("a", "step", `{"name":"one more"}`, 400)
		b.call("a", "step", `{"name":"0","result":1}`, 200)
		b.call("a", "settle", `{"result":1}`, 200)
	})
}

func TestNameThatNoWorkerAsksForHoldsUpNoOther(t *testing.T) {
	inBubbleOf(t, remote.Options{Waiting: 5}, stetwork.Options{}, func(t *testing.T, b *bench) {
		for i := range 1000 {
			b.accept("ship", strconv.Itoa(i)) // whose workers are away
		}
		time.Sleep(time.Hour)
		for i := range 20 {
			began, run := time.Now(), "run"+strconv.Itoa(i)
			id := b.accept("count", strconv.Itoa(i))
			for b.send(context.Background(), http.MethodPost, "/runs/"+run+strings.Repeat(".", 16)+"/take", token, `{"names":["count"],"wait":60}`).Code != 200 {
				if time.Since(began) > 10*time.Minute {
					t.Fatalf("an operation of another name was not told in %v", time.Since(began))
				}
			}
			b.call(run, "settle", `{"result":1}`, 200)
			b.is(id, store.Completed)
			if took := time.Since(began); took > 10*time.Second {
				t.Errorf("it took %v", took)
			}
		}
	})
}
