// Command async measures operations from acceptance to outcome: on PostgreSQL with
// River, beside River alone doing the same inserts. Acceptance is measured under that
// load, too.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stet-go/stet/bench/internal/rounds"
)

var (
	count   = flag.Int("operations", 4000, "operations in one measurement")
	callers = flag.Int("callers", 32, "operations accepted at a time")
	workers = flag.Int("workers", 64, "operations run at a time")
	conns   = flag.Int("connections", 48, "of the application's pool to PostgreSQL")
	n       = flag.Int("rounds", 5, "rounds")
)

// patience bounds one measurement.
const patience = 5 * time.Minute

func main() {
	flag.Parse()
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "async:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	if *count < 100 || *callers < 1 || *workers < 1 || *conns < 1 || *n < 1 {
		return errors.New("-operations must be 100 or more; -callers, -workers, -connections and -rounds must be positive")
	}
	return river(ctx)
}

// body is an order.
type body struct {
	Order int64
	Text  string
}

var orders atomic.Int64

// flood has the callers accept all operations, and returns when it has ended how
// long each of them took.
func flood(ctx context.Context, accept func(ctx context.Context, order int64) error) ([]time.Duration, error) {
	var wg sync.WaitGroup
	var left atomic.Int64
	left.Store(int64(*count))
	took := make([][]time.Duration, *callers)
	errs := make([]error, *callers)
	for i := range *callers {
		wg.Go(func() {
			for left.Add(-1) >= 0 && errs[i] == nil {
				began := time.Now()
				errs[i] = accept(ctx, orders.Add(1))
				took[i] = append(took[i], time.Since(began))
			}
		})
	}
	wg.Wait()
	return slices.Concat(took...), errors.Join(errs...)
}

// contest is what a series of measurements has shown.
type contest struct {
	rates map[string][]float64 // operations a second
	p99   map[string][]float64 // of an acceptance, in milliseconds
}

// contender measures from the first acceptance to the last outcome.
type contender struct {
	name   string
	accept func(ctx context.Context, order int64) error
	// work runs accepted operations until end is called, and calls done with
	// each outcome.
	work func(ctx context.Context, done func()) (end func() error, err error)
}

func (ct *contest) round(ctx context.Context, c contender) rounds.Contender {
	return rounds.Contender{Name: c.name, Measure: func() (float64, error) {
		ctx, cancel := context.WithTimeoutCause(ctx, patience, errors.New("the operations were not done in time"))
		defer cancel()
		all := make(chan struct{})
		var ended atomic.Int64
		end, err := c.work(ctx, func() {
			if ended.Add(1) == int64(*count) {
				close(all)
			}
		})
		if err != nil {
			return 0, err
		}
		began := time.Now()
		took, err := flood(ctx, c.accept)
		if err == nil {
			select {
			case <-all:
			case <-ctx.Done():
				err = context.Cause(ctx)
			}
		}
		rate := float64(*count) / time.Since(began).Seconds()
		if err := errors.Join(err, end()); err != nil {
			return 0, err
		}
		ct.p99[c.name] = append(ct.p99[c.name], percentile(took, 99))
		return rate, nil
	}}
}

// percentile returns a percentile in milliseconds.
func percentile(took []time.Duration, p int) float64 {
	slices.Sort(took)
	return float64(took[len(took)*p/100]) / float64(time.Millisecond)
}
