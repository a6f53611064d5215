// Command endtoend measures what a user of a service sees: payments over HTTP to a service of
// its own process, which inserts a row, with stet and without, over a network that delays what
// the service and its stores say to each other. Beside stet are the bare handler, a table of
// keys by hand with the same guarantees, and Fiber's own middleware.
//
// All take turns in short rounds of one run. Printed are rates, the median and the 99th
// percentile of what callers wait, and the processor time of each process by request. Then each
// key is sent to two processes at once, and executions are counted: the command fails if
// stet executes one twice, or gives two answers to one key. A goal of speed that is missed
// fails nothing.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"time"

	"github.com/stet-go/stet/internal/child"
)

// settings are what a run measures.
type settings struct {
	each    time.Duration // of one measurement
	rounds  int
	budget  time.Duration   // for all measurements: on a busy machine there are fewer rounds; 0: no limit
	trips   []time.Duration // round trips of the network
	callers []int
	keys    int     // that are sent to two processes at once
	kept    int     // keys that replays go round
	docs    string  // folder of the documentation, whose charts and tables are written; "": none
	load    float64 // of the machine as the run began
	compare []contender
}

func main() {
	child.Main(childEnv, work)
	child.Main(behindEnv, serveBehind)
	child.Main(forwardEnv, serveForward)
	if len(os.Args) > 1 && os.Args[1] == "sidecar" {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
		err := mainSidecar(ctx, os.Args[2:])
		stop()
		exit(err)
	}
	s := settings{compare: contenders, load: loadAverage()}
	flag.DurationVar(&s.each, "each", 400*time.Millisecond, "how long one measurement takes")
	flag.IntVar(&s.rounds, "rounds", 5, "rounds that count")
	flag.DurationVar(&s.budget, "budget", 7*time.Minute, "how long all measurements may take about; there are fewer rounds if they would take longer")
	flag.IntVar(&s.keys, "keys", 200, "keys that are sent to two processes at once")
	flag.IntVar(&s.kept, "kept", 200, "keys that replays go round")
	flag.StringVar(&s.docs, "docs", "", "folder of the documentation, whose charts and tables are written (default none)")
	trips := flag.String("trips", "0s,500us,2ms", "round trips to the stores")
	callers := flag.String("callers", "1,16,64", "callers, each on a connection of its own")
	compare := flag.String("contenders", "", "contenders to compare (default all)")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := s.parse(*trips, *callers, *compare)
	if err == nil {
		var r *report
		if r, err = run(ctx, s); err == nil {
			err = r.print()
		}
	}
	stop()
	exit(err)
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "endtoend:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func (s *settings) parse(trips, callers, compare string) error {
	for _, text := range strings.Split(trips, ",") {
		trip, err := time.ParseDuration(text)
		if err != nil || trip < 0 {
			return fmt.Errorf("-trips: %q is not a duration", text)
		}
		s.trips = append(s.trips, trip)
	}
	for _, text := range strings.Split(callers, ",") {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > connections {
			return fmt.Errorf("-callers: %q is not a number from 1 to %d", text, connections)
		}
		s.callers = append(s.callers, n)
	}
	if compare == "" {
		return nil
	}
	s.compare = nil
	for _, name := range strings.Split(compare, ",") {
		c, ok := named(name)
		if !ok {
			return fmt.Errorf("-contenders: %q is none", name)
		}
		s.compare = append(s.compare, c)
	}
	return nil
}

// run measures everything.
func run(ctx context.Context, s settings) (r *report, err error) {
	p, err := newPlace(ctx, s)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	r = &report{settings: s}
	for _, trip := range s.trips {
		if err := p.at(ctx, trip, func(n *neighbourhood) error { return measureAll(ctx, n, r) }); err != nil {
			return nil, err
		}
	}
	if err := p.twoProcesses(ctx, s.trips[len(s.trips)-1], r); err != nil {
		return nil, err
	}
	return r, p.onceEach(ctx, r)
}
