// Command cmd simulates schedules, as many seeds unchanged told to, in several
// processes at a time. It exits with 1 if a promise was broken, and prints the
// schedule that breaks it, shrunk to the steps that it takes.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stet-go/stet/internal/test/proof/simulate"
)

const (
	batch      = 2000 // seeds between two lines of progress
	again      = 100  // every so many seeds one is simulated twice, to see that it replays
	keptBroken = 3    // violations after which a worker gives up
)

var (
	seeds   = flag.Uint64("seeds", 1_000_000, "how many schedules to simulate")
	from    = flag.Uint64("from", 0, "the first seed")
	workers = flag.Int("workers", runtime.NumCPU(), "processes to simulate in, one processor each")
	replay  = flag.Bool("replay", false, "tell the schedule of the seed -from, and stop")
	tx      = flag.Bool("tx", false, "have most clients use transactions")
	works   = flag.Bool("work", false, "have operations accepted, run with steps, cancelled, and messages sent")
	worker  = flag.Bool("worker", false, "be one of the workers")
)

// line is what a worker prints.
type line struct {
	Seeds  uint64         `json:",omitempty"` // simulated since the line before
	Count  simulate.Count // in them
	Differ uint64         `json:",omitempty"` // seeds that went another way the second time
	Broken string         `json:",omitempty"` // a promise
}

func main() {
	flag.Parse()
	if *worker || *replay {
		// A bubble of testing/synctest needs a test around it.
		os.Args = os.Args[:1]
		testing.Main(func(string, string) (bool, error) { return true, nil },
			[]testing.InternalTest{{Name: "simulate", F: work}}, nil, nil)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "simulate:", err)
		os.Exit(1)
	}
}

// work is a worker's part, or the replay of one seed.
func work(t *testing.T) {
	if *replay {
		synctest.Test(t, func(*testing.T) {
			r := simulate.Run(*from, simulate.Config{Transactions: *tx, Work: *works, Log: true})
			fmt.Printf("%v\n\n%s\n", r, strings.Join(r.Log, "\n"))
		})
		return
	}
	out := json.NewEncoder(os.Stdout)
	broken := 0
	for done := uint64(0); done < *seeds && broken < keptBroken; {
		l := line{Seeds: min(batch, *seeds-done)}
		synctest.Test(t, func(*testing.T) {
			c := simulate.Config{Transactions: *tx, Work: *works, Crew: new(simulate.Crew)}
			defer c.Crew.Dismiss()
			for seed := *from + done; seed < *from+done+l.Seeds; seed++ {
				r := simulate.Run(seed, c)
				l.Count.Add(r.Count)
				if seed%again == 0 && simulate.Run(seed, c).Hash != r.Hash {
					l.Differ++
				}
				if r.Violation != "" && l.Broken == "" {
					broken++
					l.Broken = simulate.Shrink(r, c).String()
				}
			}
		})
		done += l.Seeds
		if err := out.Encode(l); err != nil {
			t.Fatal(err)
		}
	}
}

// total is what all workers have done.
type total struct {
	mu     sync.Mutex
	seeds  uint64
	count  simulate.Count
	differ uint64
	broken []string
	cpu    time.Duration
}

func run(ctx context.Context) error {
	if *tx && *works {
		return errors.New("-tx and -work are two kinds; choose one")
	}
	if *workers < 1 || *seeds < 1 {
		return errors.New("-workers and -seeds must be at least 1")
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	var sum total
	began := time.Now()
	errs := make([]error, *workers)
	var wg sync.WaitGroup
	for i, n := range shares(*seeds, uint64(*workers)) {
		first := *from
		for _, before := range shares(*seeds, uint64(*workers))[:i] {
			first += before
		}
		wg.Go(func() { errs[i] = sum.start(ctx, self, first, n) })
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		wg.Wait()
	}()
	sum.follow(began, ended)
	took := time.Since(began)
	if sum.seeds == *seeds {
		fmt.Printf("seeds %d to %d, all of them\n", *from, *from+*seeds-1)
	}
	fmt.Printf("%+v\n", sum.count)
	fmt.Printf("figure: simulate_schedules = %d schedules\n", sum.seeds)
	fmt.Printf("figure: simulate_rate = %.0f schedules/min\n", float64(sum.seeds)/took.Minutes())
	fmt.Printf("figure: simulate_rate_per_processor = %.0f schedules/min of processor time\n", float64(sum.seeds)/sum.cpu.Minutes())
	fmt.Printf("figure: simulate_violations = %d violations\n", len(sum.broken))
	fmt.Printf("figure: simulate_not_replayed = %d of %d seeds tried twice\n", sum.differ, sum.seeds/again)
	if sum.differ > 0 {
		errs = append(errs, fmt.Errorf("%d seeds did not replay", sum.differ))
	}
	if len(sum.broken) > 0 {
		errs = append(errs, fmt.Errorf("%d promises broken:\n%s", len(sum.broken), strings.Join(sum.broken, "\n")))
	}
	return errors.Join(errs...)
}

// shares divides seeds among workers.
func shares(seeds, workers uint64) []uint64 {
	all := make([]uint64, workers)
	for i := range all {
		all[i] = seeds / workers
		if uint64(i) < seeds%workers {
			all[i]++
		}
	}
	return all
}

// start runs a worker over n seeds and adds up its results.
func (s *total) start(ctx context.Context, self string, first, n uint64) error {
	cmd := exec.CommandContext(ctx, self, "-worker", "-tx="+strconv.FormatBool(*tx), "-work="+strconv.FormatBool(*works), "-from", strconv.FormatUint(first, 10), "-seeds", strconv.FormatUint(n, 10))
	// One goroutine at a time, see package simulate.
	cmd.Env = append(os.Environ(), "GOMAXPROCS=1", "GOGC=800")
	cmd.Stderr = os.Stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	done := uint64(0)
	lines := bufio.NewScanner(stdout)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var l line
		if json.Unmarshal(lines.Bytes(), &l) != nil {
			continue // what package testing says
		}
		done += l.Seeds
		s.mu.Lock()
		s.seeds += l.Seeds
		s.count.Add(l.Count)
		s.differ += l.Differ
		if l.Broken != "" {
			s.broken = append(s.broken, l.Broken)
		}
		s.mu.Unlock()
	}
	err = cmd.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cpu += cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	if err != nil {
		return fmt.Errorf("the worker died between the seeds %d and %d: %w", first+done, first+min(done+batch, n)-1, err)
	}
	return nil
}

// follow prints how far the workers are until they have ended.
func (s *total) follow(began time.Time, ended <-chan struct{}) {
	every := time.NewTicker(10 * time.Second)
	defer every.Stop()
	for {
		select {
		case <-ended:
			return
		case <-every.C:
		}
		s.mu.Lock()
		fmt.Fprintf(os.Stderr, "%d of %d schedules, %.0f a minute, %d violations\n",
			s.seeds, *seeds, float64(s.seeds)/time.Since(began).Minutes(), len(s.broken))
		s.mu.Unlock()
	}
}
