// Command flow measures operations through the sidecar, from a request that is accepted
// to its outcome, beside a service in Go that does the same by itself; and the memory of
// the sidecar, while 10,000 clients wait at once, with the limits that this needs and
// with the default ones, and while it works off a backlog of 100,000 operations.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"
)

var (
	each    = flag.Duration("each", 1500*time.Millisecond, "how long one measurement of a rate takes")
	n       = flag.Int("rounds", 5, "rounds; odd, so that one is in the middle")
	workers = flag.Int("workers", 64, "operations run at a time, where rates are measured")
	clients = flag.Int("clients", 10_000, "clients that wait at once")
	hold    = flag.Duration("hold", 10*time.Second, "how long they are looked at")
	backlog = flag.Int("backlog", 100_000, "operations that have been accepted and wait; it is compared with a tenth of them")
	only    = flag.String("only", "", "rates, waiters, limits or backlog: measure that alone")
	on      = flag.String("store", "", "sqlite or postgres: measure on that alone; the default is both, and SQLite for limits and backlog")
)

const (
	longest  = time.Minute     // that a client asks to wait
	patience = 5 * time.Minute // bounds one measurement
	offWork  = 16              // operations at the service at a time, where memory is measured
)

var callersOf = []int{1, 16, 64}

func main() {
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "flow:", err)
		os.Exit(1)
	}
}

// part is something that is measured.
type part struct {
	name string
	on   []string // unless another store is asked for
	do   func(ctx context.Context, p *place, kind string) error
}

func run(ctx context.Context) (err error) {
	both := []string{"sqlite", "postgres"}
	parts := []part{{"rates", both, rates}, {"waiters", both, waiters}, {"limits", both[:1], limits}, {"backlog", both[:1], backlogs}}
	if *n < 1 || *workers < 1 || *clients < 100 || *backlog < 1000 || *each <= 0 || *hold <= 0 {
		return errors.New("-rounds, -workers, -each and -hold must be positive, -clients 100 or more, -backlog 1000 or more")
	}
	if *only != "" {
		if parts = slices.DeleteFunc(parts, func(p part) bool { return p.name != *only }); len(parts) == 0 {
			return fmt.Errorf("-only: %q is none of rates, waiters, limits and backlog", *only)
		}
	}
	if *on != "" && !slices.Contains(both, *on) {
		return fmt.Errorf("-store: %q is neither sqlite nor postgres", *on)
	}
	if err := files(uint64(*clients) + 1000); err != nil {
		return err
	}
	p, err := newPlace(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	for _, part := range parts {
		if *on != "" {
			part.on = []string{*on}
		}
		for _, kind := range part.on {
			began := time.Now()
			if err := part.do(ctx, p, kind); err != nil {
				return fmt.Errorf("%s, %s: %w", part.name, kind, err)
			}
			fmt.Fprintf(os.Stderr, "%s, %s: %v\n", part.name, kind, time.Since(began).Round(time.Second))
		}
	}
	return nil
}

// files lets this process, and those that it starts, have so many files open.
func files(most uint64) error {
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		return err
	}
	if l.Cur >= most && l.Max >= most {
		return nil
	}
	l.Cur, l.Max = max(l.Cur, most), max(l.Max, most)
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		return fmt.Errorf("%d clients need as many open files, and this process may not have them (%w): run 'ulimit -n %d' as root, or give -clients", *clients, err, most)
	}
	return nil
}
