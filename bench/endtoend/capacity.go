package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stet-go/stet/bench/internal/post"
	"github.com/stet-go/stet/bench/internal/rounds"
)

// capacity is a long run at a fixed rate.
type capacity struct {
	run  bool
	kind string
	rate int           // requests/s
	long time.Duration // how long
}

// middleTrip is the network of docs/capacity.md.
const middleTrip = 500 * time.Microsecond

// runCapacity measures a contender in short rounds, derives from that what it needs for a
// rate, and runs it at that rate.
func runCapacity(ctx context.Context, s settings, c capacity) (err error) {
	kind, ok := named(c.kind)
	if !ok || c.rate < 1 || c.long < time.Second {
		return fmt.Errorf("-contender %q is none, -rate %d is below 1, or -for %v is below a second", c.kind, c.rate, c.long)
	}
	s.compare = []contender{kind}
	p, err := newPlace(ctx, s)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	return p.at(ctx, middleTrip, func(n *neighbourhood) error {
		t, err := n.service(ctx, kind)
		if err != nil {
			return err
		}
		short, err := n.sample(t)
		if err != nil {
			return err
		}
		progress("%s at %d requests/s for %v", kind.name, c.rate, c.long)
		long, err := n.steady(ctx, t, c)
		if err != nil {
			return err
		}
		r := &report{settings: s}
		if err := p.onceEach(ctx, r); err != nil {
			return err
		}
		if err := errors.Join(long.compare(short, c), r.promises()); err != nil || s.docs == "" {
			return err
		}
		return rewrite(filepath.Join(s.docs, "capacity.md"), "check", long.check(short, s.load))
	})
}

// sample measures first requests of as many callers as keep the machine busy, and no busier.
func (n *neighbourhood) sample(t *target) (*cell, error) {
	c := &cell{contender: t.contender, what: first, trip: n.trip, callers: 2 * runtime.NumCPU()}
	progress("%s: %d callers, to know what a request costs", t.name, c.callers)
	rates, err := rounds.Compare(n.rounds, rounds.Contender{Name: t.name, Measure: func() (float64, error) { return n.measure(t, c) }})
	if err != nil {
		return nil, err
	}
	c.rates = rates[t.name]
	slices.Sort(c.took)
	return c, nil
}

// steady is what a long run shows.
type steady struct {
	took  []time.Duration // sorted
	lasts time.Duration
	cpu   used
	inUse float64 // connections of the service's pool, on average
	most  int
}

// steady sends requests at a rate, and looks at the pool in the meantime. Each caller has times at
// which it sends, so that a slow answer delays what comes behind it by no more than it must.
func (n *neighbourhood) steady(ctx context.Context, t *target, c capacity) (*steady, error) {
	ctx, cancel := context.WithTimeout(ctx, c.long)
	defer cancel()
	before, err := n.used(t)
	if err != nil {
		return nil, err
	}
	r := new(steady)
	took, errs := make([][]time.Duration, connections), make([]error, connections+1)
	var turn atomic.Int64
	var wg sync.WaitGroup
	began := time.Now()
	for i := range connections {
		wg.Go(func() {
			if took[i], errs[i] = n.paced(ctx, t, began, c.rate, &turn); errs[i] != nil {
				cancel()
			}
		})
	}
	wg.Go(func() {
		if errs[connections] = r.watch(ctx, t); errs[connections] != nil {
			cancel()
		}
	})
	wg.Wait()
	r.lasts = time.Since(began)
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	after, err := n.used(t)
	if err != nil {
		return nil, err
	}
	for i := range r.cpu {
		r.cpu[i] = after[i] - before[i]
	}
	r.took = slices.Concat(took...)
	slices.Sort(r.took)
	n.firsts[t.name].Add(int64(len(r.took)))
	if len(r.took) == 0 {
		return nil, errors.New("no request was answered")
	}
	return r, nil
}

// paced sends, one request at a time, what is due next.
func (n *neighbourhood) paced(ctx context.Context, t *target, began time.Time, rate int, turn *atomic.Int64) (took []time.Duration, err error) {
	conn, err := post.Dial(t.addr)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		i := turn.Add(1)
		timer.Reset(time.Until(began.Add(time.Duration(i) * time.Second / time.Duration(rate))))
		select {
		case <-ctx.Done():
			return took, nil
		case <-timer.C:
		}
		sent := time.Now()
		if err := n.pay(conn, fmt.Sprint(t.name, "-steady-", i)); err != nil {
			return took, err
		}
		took = append(took, time.Since(sent))
	}
}

// watch asks the service how many connections of its pool are in use, until ctx ends.
func (r *steady) watch(ctx context.Context, t *target) error {
	every := time.NewTicker(50 * time.Millisecond)
	defer every.Stop()
	var sum, looks int
	for {
		select {
		case <-ctx.Done():
			if looks > 0 {
				r.inUse = float64(sum) / float64(looks)
			}
			return nil
		case <-every.C:
		}
		inUse, err := t.inUse(ctx)
		if ctx.Err() != nil {
			continue
		}
		if err != nil {
			return err
		}
		sum += inUse
		looks++
		r.most = max(r.most, inUse)
	}
}

// inUse is how many connections of its pool a service uses at the moment.
func (t *target) inUse(ctx context.Context) (int, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+t.stats, nil)
	if err != nil {
		return 0, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 100))
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(b)))
}

// errNotHeld is no defect: the machine may be busy with something else.
var errNotHeld = errors.New("this machine cannot hold that rate")

// compare tells what was derived from the short measurement beside what the long run used. It
// is an error if the rate was not held, as nothing is known then.
func (r *steady) compare(short *cell, c capacity) error {
	held := float64(len(r.took)) / r.lasts.Seconds()
	name := "capacity_" + c.kind
	rounds.Figure(name+"_rate", held, "requests/s")
	rounds.Figure(name+"_p50", milliseconds(r.took[len(r.took)/2]), "ms")
	rounds.Figure(name+"_p99", milliseconds(r.took[len(r.took)*99/100]), "ms")
	fmt.Printf("derived from %d callers for %d requests/s, and used over %v:\n", short.callers, c.rate, r.lasts.Round(time.Second))
	for i, process := range []string{"service", "postgres", "redis"} {
		if process == "redis" && !short.redis {
			continue
		}
		derived, used := short.each(i).Seconds()*held, r.cpu[i].Seconds()/r.lasts.Seconds()
		rounds.Figure(name+"_cores_"+process+"_derived", derived, "cores")
		rounds.Figure(name+"_cores_"+process, used, "cores")
		rounds.Figure(name+"_cores_"+process+"_ratio", used/derived, "x derived")
	}
	derived := held * short.quantile(500).Seconds()
	rounds.Figure(name+"_connections_derived", derived, "connections")
	rounds.Figure(name+"_connections", r.inUse, "connections")
	rounds.Figure(name+"_connections_most", float64(r.most), "connections")
	if due := float64(c.rate) * c.long.Seconds(); float64(len(r.took)) < 0.98*due-2 { // the first and the last may not be due
		return fmt.Errorf("%w: %d requests/s were to be sent, and %.0f were answered, so nothing is compared", errNotHeld, c.rate, held)
	}
	return nil
}
