package storetest_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
	"github.com/stet-go/stet/store/storetest"
)

// A clock that the test moves.
type fakeClock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *fakeClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *fakeClock) Advance(_ testing.TB, d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// How to test a store of your own; memory stands in for it.
func ExampleRun() {
	_ = func(t *testing.T) { // func TestStore(t *testing.T)
		clock := &fakeClock{now: time.Now()}
		storetest.Run(t, storetest.Harness{
			New: func(testing.TB) store.Store {
				return memory.New(memory.Options{Clock: clock.Now})
			},
			Advance: clock.Advance,
		})
	}
}

// What a service does when the reply to its first settle is lost: nothing that
// anybody notices.
func ExampleFaulty() {
	s := storetest.Faulty(memory.New(memory.Options{}), func(c storetest.Call) storetest.Fault {
		if c.Method == "Settle" && c.N == 1 {
			fmt.Println("the reply to the first settle is lost")
			return storetest.FailAfter
		}
		return storetest.NoFault
	})
	engine, err := stet.New(s, stet.Options{})
	if err != nil {
		panic(err)
	}
	defer engine.Close()

	op := stet.Op{Scope: "acct_1", Key: "order-1001"}
	for range 2 {
		res, err := stet.Do(context.Background(), engine, op, func(context.Context) (string, error) {
			return "ch_1", nil
		})
		fmt.Println(res.Value, res.Replayed, err)
	}
	// Output:
	// the reply to the first settle is lost
	// ch_1 false <nil>
	// ch_1 true <nil>
}

// A store that fails at random, the same way each time, and the bound on what
// that may do: the operation runs once.
func ExampleSeeded() {
	s := storetest.Faulty(memory.New(memory.Options{}), storetest.Seeded(42, 0.2))
	engine, err := stet.New(s, stet.Options{})
	if err != nil {
		panic(err)
	}
	defer engine.Close()

	runs := 0
	for range 5 {
		_, err = stet.Do(context.Background(), engine, stet.Op{Scope: "acct_1", Key: "order-1001"},
			func(context.Context) (int, error) { runs++; return runs, nil })
		if stet.KindOf(err) == stet.KindStore {
			continue // not executed
		}
	}
	fmt.Println(runs)
	// Output: 1
}
