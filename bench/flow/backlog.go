package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stet-go/stet/bench/internal/rounds"
)

// worked is what was seen of a sidecar that works off a backlog.
type worked struct {
	accepting      state // of the sidecar that accepted it
	start, end     state
	accepted, rate float64 // operations/s
}

// backlogs measures a backlog, and a tenth of it.
func backlogs(ctx context.Context, p *place, kind string) error {
	var seen [2]worked
	for i, n := range []int{*backlog / 10, *backlog} {
		ctx, cancel := context.WithTimeoutCause(ctx, 2*patience, errors.New("the backlog was not worked off in time"))
		defer cancel()
		w, err := workOff(ctx, p, kind, n)
		if err != nil {
			return fmt.Errorf("a backlog of %d: %w", n, err)
		}
		figure := fmt.Sprintf("flow_%s_backlog_%d", kind, n)
		rounds.Figure(figure+"_accepting_peak", w.accepting.peak, "MiB of the sidecar that accepts it")
		rounds.Figure(figure+"_accepted", w.accepted, "acceptances/s")
		rounds.Figure(figure+"_rss_start", w.start.rss, "MiB")
		rounds.Figure(figure+"_rss_peak", w.end.peak, "MiB while it is worked off")
		rounds.Figure(figure+"_rss_end", w.end.rss, "MiB")
		rounds.Figure(figure+"_heap_end", w.end.heap, "MiB of Go's heap, garbage included; the rest is pages of the program and of the store")
		rounds.Figure(figure+"_rate", w.rate, "operations/s worked off, 16 at a time")
		seen[i] = w
	}
	small, large := seen[0], seen[1]
	rounds.Figure("flow_"+kind+"_backlog_peak_ratio", large.end.peak/small.end.peak, "peak memory, of that with a tenth of the backlog")
	slack := 24.0 // MiB: garbage of another moment
	if kind == "sqlite" {
		slack += 64 // the pages of the file that its connections keep, at most 32 MiB by the writer and 8 by each reader
	}
	const heap = 8 // MiB
	if large.end.heap > small.end.heap+heap || large.accepting.heap > small.accepting.heap+heap {
		return fmt.Errorf("Go's heap grows with the backlog: %.0f MiB with a tenth of it, %.0f MiB with all (accepting: %.0f, %.0f)",
			small.end.heap, large.end.heap, small.accepting.heap, large.accepting.heap)
	}
	if large.end.peak > small.end.peak+slack || large.accepting.peak > small.accepting.peak+slack {
		return fmt.Errorf("memory grows with the backlog: %.0f MiB with a tenth of it, %.0f MiB with all (accepting: %.0f, %.0f)",
			small.end.peak, large.end.peak, small.accepting.peak, large.accepting.peak)
	}
	return nil
}

// workOff has one sidecar accept n operations, and another one hand them to the service.
func workOff(ctx context.Context, p *place, kind string, n int) (w worked, err error) {
	url, err := p.store(ctx, kind)
	if err != nil {
		return w, err
	}
	t := newTally()
	t.told = make(chan struct{}, n)
	upstream, stop, err := serve(ctx, t)
	if err != nil {
		return w, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	with := config{store: url, upstream: upstream, worker: "elsewhere", at: offWork}
	first, err := start(ctx, p.program, p.dir, with)
	if err != nil {
		return w, err
	}
	began := time.Now()
	keys, err := fill(ctx, first.url, n)
	w.accepted = float64(n) / time.Since(began).Seconds()
	if err == nil {
		w.accepting, err = first.look()
	}
	if err := errors.Join(err, first.stop()); err != nil {
		return w, err
	}
	if t.total() > 0 {
		return w, errors.New("operations ran before there was a worker")
	}
	with.worker = "inside"
	began = time.Now()
	second, err := start(ctx, p.program, p.dir, with)
	if err != nil {
		return w, err
	}
	defer func() { err = errors.Join(err, second.stop()) }()
	if w.start, err = second.look(); err != nil {
		return w, err
	}
	for range n {
		select {
		case <-t.told:
		case <-second.gone:
			return w, fmt.Errorf("the sidecar has ended: %s", second.log())
		case <-ctx.Done():
			return w, fmt.Errorf("%w: %d of %d have run: %s", context.Cause(ctx), t.total(), n, second.log())
		}
	}
	w.rate = float64(n) / time.Since(began).Seconds()
	if w.end, err = second.look(); err != nil {
		return w, err
	}
	return w, t.check("backlog", keys)
}

// fill has n operations accepted.
func fill(ctx context.Context, url string, n int) (map[string]bool, error) {
	const callers = 256
	c := newClient(url, callers)
	defer c.close()
	keys := make(map[string]bool, n)
	first := next.Add(int64(n)) - int64(n)
	for i := range int64(n) {
		keys[strconv.FormatInt(first+i, 10)] = true
	}
	var wg sync.WaitGroup
	var taken atomic.Int64
	errs := make([]error, callers)
	for i := range callers {
		wg.Go(func() {
			for errs[i] == nil {
				k := taken.Add(1) - 1
				if k >= int64(n) {
					return
				}
				_, errs[i] = c.accept(ctx, strconv.FormatInt(first+k, 10))
			}
		})
	}
	wg.Wait()
	return keys, errors.Join(errs...)
}
