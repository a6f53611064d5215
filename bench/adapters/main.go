// Command adapters measures stet's cost in each framework, for first requests and for
// replays, beside the framework alone.
//
// Requests use loopback connections that stay open. Lambda and Watermill are called in the
// process, without their runtime and broker.
package main

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/bench/internal/rounds"
	"github.com/stet-go/stet/store/memory"
)

var (
	connections = flag.Int("connections", 16, "connections, each with one request at a time")
	each        = flag.Duration("each", 700*time.Millisecond, "how long one measurement takes")
	n           = flag.Int("rounds", 7, "rounds")
)

func main() {
	flag.Parse()
	if err := overhead(); err != nil {
		fmt.Fprintln(os.Stderr, "adapters:", err)
		os.Exit(1)
	}
}

// executed counts what the handlers of all frameworks did.
var executed atomic.Int64

const kept = 500 // replays go round these

var (
	next, turn atomic.Int64
	fresh      = func() string { return "new-" + strconv.FormatInt(next.Add(1), 10) }
	old        = func() string { return "old-" + strconv.FormatInt(turn.Add(1)%kept, 10) }
)

// target is a server that requests are sent to.
type target struct {
	name string
	addr string
	// dial makes a caller, which sends one request after another.
	dial  func() (caller, error)
	close func()
}

// caller sends a request with a key, and waits for its response.
type caller interface {
	call(key string) error
	close()
}

// measure is how many requests a second a target serves with keys; runs says whether
// they are executed, each once, or none is.
func (t target) measure(key func() string, runs bool) (float64, error) {
	runtime.GC()
	callers := make([]caller, *connections)
	for i := range callers {
		c, err := t.dial()
		if err != nil {
			return 0, err
		}
		defer c.close()
		callers[i] = c
	}
	before := executed.Load()
	rate, took, err := rounds.Load(*connections, *each, func(i int) error { return callers[i].call(key()) })
	if err != nil {
		return 0, err
	}
	want := int64(0)
	if runs {
		want = int64(len(took))
	}
	if ran := executed.Load() - before; ran != want {
		return 0, fmt.Errorf("%d executions of %d requests", ran, len(took))
	}
	return rate, nil
}

// warm makes the operations that replays go round.
func (t target) warm() error {
	c, err := t.dial()
	if err != nil {
		return err
	}
	defer c.close()
	for range kept {
		if err := c.call(old()); err != nil {
			return fmt.Errorf("%s: %w", t.name, err)
		}
	}
	return nil
}

// contenders are the target alone, and protected.
func contenders(name string, bare, protected target) []rounds.Contender {
	return []rounds.Contender{
		{Name: name + " bare", Measure: func() (float64, error) { return bare.measure(fresh, true) }},
		{Name: name + " first", Measure: func() (float64, error) { return protected.measure(fresh, true) }},
		{Name: name + " replay", Measure: func() (float64, error) { return protected.measure(old, false) }},
	}
}

// overhead measures all frameworks on the memory store.
func overhead() error {
	var all []rounds.Contender
	for _, f := range frameworks {
		engine, err := stet.New(memory.New(memory.Options{MaxRecords: 50_000_000}), stet.Options{})
		if err != nil {
			return err
		}
		defer engine.Close()
		bare, err := f.serve(nil)
		if err != nil {
			return err
		}
		defer bare.close()
		protected, err := f.serve(engine)
		if err != nil {
			return err
		}
		defer protected.close()
		if err := protected.warm(); err != nil {
			return err
		}
		all = append(all, contenders(f.name, bare, protected)...)
	}
	rates, err := rounds.Compare(*n, all...)
	if err != nil {
		return err
	}
	fmt.Printf("%d connections over loopback, JSON of 1 KB, memory store, %d processors\n", *connections, runtime.GOMAXPROCS(0))
	for _, f := range frameworks {
		bare, first, replay := rates[f.name+" bare"], rates[f.name+" first"], rates[f.name+" replay"]
		fmt.Printf("%-9s bare %7.0f, first %7.0f, replay %7.0f requests/s\n", f.name, rounds.Median(bare), rounds.Median(first), rounds.Median(replay))
	}
	for _, f := range frameworks {
		bare, first, replay := rates[f.name+" bare"], rates[f.name+" first"], rates[f.name+" replay"]
		name := "adapter_" + strings.ReplaceAll(f.name, "/", "")
		rounds.Figure(name+"_first_ratio", rounds.Ratio(first, bare), "x bare")
		rounds.Figure(name+"_replay_ratio", rounds.Ratio(replay, bare), "x bare")
	}
	return nil
}
