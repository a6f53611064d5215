package remote_test

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stetwork"
	"github.com/stet-go/stet/stetwork/remote"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

// asks sends a take that ends with ctx, and returns where its status will be.
func (b *bench) asks(ctx context.Context, run, body string) <-chan int {
	status := make(chan int, 1)
	go func() {
		status <- b.send(ctx, http.MethodPost, "/runs/"+run+strings.Repeat(".", 16)+"/take", token, body).Code
	}()
	return status
}

// one runs f with a worker that runs one operation at a time.
func one(t *testing.T, f func(t *testing.T, b *bench)) {
	t.Helper()
	inBubbleOf(t, remote.Options{}, stetwork.Options{Concurrency: 1, MaxAttempts: 2}, f)
}

func TestRunThatHasEndedIsNotHandedOutAgain(t *testing.T) {
	for how, end := range map[string]func(b *bench){
		"settled":  func(b *bench) { b.call("a", "settle", `{"result":1}`, 200) },
		"returned": func(b *bench) { b.call("a", "return", `{}`, 200) },
		"parked":   func(b *bench) { b.call("a", "park", `{}`, 200) },
		"silent":   func(*bench) { time.Sleep(time.Minute) },
	} {
		t.Run(how, func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *bench) {
				id := b.accept("ship", `1`)
				b.take("a")
				end(b)
				if how == "returned" {
					b.take("b") // it runs there now
				}
				st, err := b.engine.Lookup(context.Background(), id)
				must(t, err)
				if got := b.call("a", "take", `{"names":["ship"],"wait":60}`, 409); got["state"] != st.Record.State.String() || got["payload"] != nil {
					t.Errorf("%v; want the state %v", got, st.Record.State)
				}
				b.call("a", "step", `{"name":"charge"}`, 409)
				if how == "returned" {
					b.call("b", "settle", `{"result":null}`, 200)
				}
			})
		})
	}
}

func TestTakeThatNobodyWaitsForTakesNothing(t *testing.T) {
	one(t, func(t *testing.T, b *bench) {
		b.accept("ship", `1`)
		b.take("a") // all that may run
		second := b.accept("ship", `2`)
		synctest.Wait()
		for range 5 {
			ctx, cancel := context.WithCancel(context.Background())
			gone := b.asks(ctx, "b", `{"names":["ship"],"wait":20}`)
			time.Sleep(time.Second)
			cancel()
			<-gone
			b.call("a", "extend", `{}`, 200)
		}
		b.call("a", "settle", `{"result":null}`, 200)
		time.Sleep(time.Second)
		if d := b.take("b"); d["id"] != second.String() || d["attempt"] != 1.0 {
			t.Errorf("%v; want the first attempt", d)
		}
		b.call("b", "settle", `{"result":null}`, 200)
	})
}

func TestTakeWaitsForASlotNoLongerThanItSays(t *testing.T) {
	one(t, func(t *testing.T, b *bench) {
		b.accept("ship", `1`)
		b.take("a")
		second := b.accept("ship", `2`)
		synctest.Wait()
		for _, wait := range []string{"0", "20"} {
			began := time.Now()
			b.call("b", "take", `{"names":["ship"],"wait":`+wait+`}`, 204)
			if took := time.Since(began); took > 20*time.Second || wait == "0" && took > time.Second {
				t.Errorf("wait %s: it waited %v", wait, took)
			}
		}
		b.call("a", "settle", `{"result":null}`, 200)
		// What was not taken waits for the next that asks.
		if d := b.call("b", "take", `{"names":["ship"],"wait":0}`, 200); d["id"] != second.String() {
			t.Errorf("got %v; want d[\"id\"] == second.String()", d)
		}
		b.call("b", "settle", `{"result":null}`, 200)
	})
}

func TestRepeatedTakeKeepsTheRunAlive(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		id := b.accept("ship", `1`)
		b.take("a")
		time.Sleep(29 * time.Second)
		b.take("a") // says that its lease is 30 s
		time.Sleep(29 * time.Second)
		b.call("a", "settle", `{"result":1}`, 200)
		b.is(id, store.Completed)
	})
}

func TestBacklogBeyondWaitingIsHandedOutAsThereIsRoom(t *testing.T) {
	inBubbleOf(t, remote.Options{Waiting: 5}, stetwork.Options{}, func(t *testing.T, b *bench) {
		for i := range 50 {
			b.accept("ship", strconv.Itoa(i))
		}
		time.Sleep(10 * time.Second)
		b.is(b.accept("local", `"x"`), store.Completed) // needs no room
		began := time.Now()
		for i := range 50 {
			run := "run" + strconv.Itoa(i)
			b.take(run)
			b.call(run, "settle", `{"result":null}`, 200)
		}
		if took := time.Since(began); took > time.Minute {
			t.Errorf("50 operations that take no time took %v", took)
		}
	})
}

// slowTaking is a store whose Take is answered when the gate is opened.
type slowTaking struct {
	*memory.Store
	gate chan struct{}
}

func (s *slowTaking) Take(ctx context.Context, req store.TakeRequest) (store.Record, error) {
	rec, err := s.Store.Take(ctx, req)
	<-s.gate
	return rec, err
}

// A take whose request ends while the store is asked tells nobody of what it took.
func TestTakeThatIsGivenUpMeanwhileUsesUpNoAttempt(t *testing.T) {
	st := &slowTaking{Store: memory.New(memory.Options{})}
	inBubbleOn(t, st, remote.Options{}, stetwork.Options{Concurrency: 1, MaxAttempts: 2}, func(t *testing.T, b *bench) {
		st.gate = make(chan struct{})
		b.call("first", "take", `{"names":["ship"]}`, 204) // so that there is one that runs it
		id := b.accept("ship", `1`)
		synctest.Wait()
		for range 5 {
			ctx, cancel := context.WithCancel(context.Background())
			gone := b.asks(ctx, "b", `{"names":["ship"],"wait":20}`)
			synctest.Wait() // it is being taken
			cancel()
			synctest.Wait()
			select {
			case st.gate <- struct{}{}:
			case <-time.After(time.Minute):
				t.Fatal("it is not taken any more")
			}
			<-gone
			time.Sleep(2 * time.Second) // it is due again at once
		}
		close(st.gate)
		if d := b.take("b"); d["id"] != id.String() {
			t.Errorf("got %v; want d[\"id\"] == id.String()", d)
		}
		b.call("b", "return", `{}`, 200) // the first that counts
		b.take("c")
		b.call("c", "return", `{"error":"no lorry"}`, 200)
		b.is(id, store.Failed)
	})
}

func TestRunThatARemoteShutdownInterruptedDoesNotCount(t *testing.T) {
	one(t, func(t *testing.T, b *bench) {
		id := b.accept("ship", `1`)
		for i := range 30 {
			run := "run" + strconv.Itoa(i)
			began := time.Now()
			b.take(run)
			if took := time.Since(began); took > 2*time.Second {
				t.Fatalf("it waited %v", took)
			}
			b.call(run, "return", `{"interrupted":true}`, 200)
		}
		b.take("last")
		b.call("last", "settle", `{"result":1}`, 200)
		b.is(id, store.Completed)
	})
}

// What no remote worker has asked for is no failure of an operation, whoever hands it
// to the worker.
func TestOperationThatNobodyAskedForUsesUpNoAttempt(t *testing.T) {
	one(t, func(t *testing.T, b *bench) {
		id := b.accept("ship", `1`)
		for range 5 {
			must(t, b.worker.Do(context.Background(), stet.Item{ID: id, Name: "ship"}))
			time.Sleep(time.Hour)
		}
		b.is(id, store.Accepted)
	})
}

// A step that is begun under a name of before, in a loop for one, was not done, or was
// done a second time.
func TestNameOfARemoteStepIsUsedOnceInARun(t *testing.T) {
	for name, call := range map[string]string{"with calls": `,"call":"%"`, "without": ""} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *bench) {
				id := b.accept("count", `1`)
				begin := func(run, n string, status int) map[string]any {
					t.Helper()
					return b.call(run, "step", `{"name":"charge","once":true`+strings.ReplaceAll(call, "%", n)+`}`, status)
				}
				b.take("a")
				begin("a", "1", 200)
				if call != "" {
					begin("a", "2", 400) // beside it
				}
				begin("a", "1", 200) // its answer was lost
				b.call("a", "step", `{"name":"charge","result":7}`, 200)
				begin("a", "3", 400)
				if call != "" {
					if got := begin("a", "1", 200); got["result"] != 7.0 {
						t.Errorf("got %v; want got[\"result\"] == 7.0", got)
					}
				}
				b.call("a", "return", `{}`, 200)
				b.is(id, store.Accepted)
				b.take("b")
				for range 2 {
					if got := begin("b", "1", 200); got["result"] != 7.0 {
						t.Errorf("got %v; want got[\"result\"] == 7.0", got)
					}
				}
				if call != "" {
					begin("b", "2", 400)
				}
				b.call("b", "settle", `{"result":1}`, 200)
			})
		})
	}
}
