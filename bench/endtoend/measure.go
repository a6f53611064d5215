package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/stet-go/stet/bench/internal/post"
	"github.com/stet-go/stet/bench/internal/rounds"
)

// kinds of requests.
const (
	first  = "first"
	replay = "replay"
)

// cell is one contender at one setting, over all rounds that count.
type cell struct {
	contender
	what    string
	trip    time.Duration
	callers int

	begun bool      // its first round, which does not count, is over
	rates []float64 // requests/s, of each round
	took  []time.Duration
	cpu   used
}

// name is that of its figures.
func (c *cell) name() string { return figureName(c.contender.name, c.what, c.trip, c.callers) }

func figureName(of, what string, trip time.Duration, callers int) string {
	return fmt.Sprintf("endtoend_%s_%s_%s_%d", of, what, tripName(trip), callers)
}

// tripName is 0ms, 0.5ms, 2ms.
func tripName(trip time.Duration) string {
	return strconv.FormatFloat(float64(trip)/float64(time.Millisecond), 'f', -1, 64) + "ms"
}

func (c *cell) rate() float64 { return rounds.Median(c.rates) }

// quantile is what so many of a thousand callers waited at most.
func (c *cell) quantile(thousandth int) time.Duration {
	return c.took[min(len(c.took)-1, len(c.took)*thousandth/1000)]
}

// each is the processor time of a process by request.
func (c *cell) each(process int) time.Duration { return c.cpu[process] / time.Duration(len(c.took)) }

func (c *cell) total() time.Duration { return c.each(0) + c.each(1) + c.each(2) }

// measureAll measures all contenders behind one network.
func measureAll(ctx context.Context, n *neighbourhood, r *report) error {
	var targets []*target
	for _, c := range n.compare {
		t, err := n.service(ctx, c)
		if err != nil {
			return err
		}
		targets = append(targets, t)
		if err := n.warmUp(t); err != nil {
			return err
		}
	}
	for _, callers := range n.callers {
		for _, what := range []string{first, replay} {
			progress("round trip %s, %d callers, %s requests", tripName(n.trip), callers, what)
			var cells []*cell
			var all []rounds.Contender
			for _, t := range targets {
				if what == replay && !t.keeps {
					continue
				}
				c := &cell{contender: t.contender, what: what, trip: n.trip, callers: callers}
				cells = append(cells, c)
				all = append(all, rounds.Contender{Name: t.name, Measure: func() (float64, error) { return n.measure(t, c) }})
			}
			rates, err := rounds.Compare(r.affordable(len(all)), all...)
			if err != nil {
				return err
			}
			for _, c := range cells {
				c.rates = rates[c.contender.name]
				r.measured += len(c.rates) + 1
				slices.Sort(c.took)
				r.add(c)
			}
		}
	}
	return nil
}

// affordable is how many rounds the budget leaves for a setting, by what measurements have
// taken so far: at least 1.
func (r *report) affordable(contenders int) int {
	all := 2 * len(r.trips) * len(r.callers)
	left := all - r.begun
	r.begun++
	if r.budget == 0 || r.begun == 1 {
		r.measuring = time.Now()
		return r.rounds
	}
	took := time.Since(r.measuring)
	round := took / time.Duration(r.measured) * time.Duration(contenders)
	n := int((r.budget-took)/time.Duration(left)/max(round, 1)) - 1 // one does not count
	return min(r.rounds, max(1, n))
}

// measure measures a cell once. What the first round shows is left out, as rounds.Compare does.
func (n *neighbourhood) measure(t *target, c *cell) (float64, error) {
	conns := make([]*post.Conn, c.callers)
	for i := range conns {
		var err error
		if conns[i], err = post.Dial(t.addr); err != nil {
			return 0, err
		}
		defer conns[i].Close()
	}
	var turn atomic.Int64
	key := func() string { return old(t, turn.Add(1)%int64(n.kept)) }
	if c.what == first {
		key = func() string { return fmt.Sprint(t.name, "-new-", n.next.Add(1)) }
	}
	before, err := n.used(t)
	if err != nil {
		return 0, err
	}
	rate, took, err := rounds.Load(c.callers, n.each, func(caller int) error { return n.pay(conns[caller], key()) })
	if err != nil {
		return 0, err
	}
	after, err := n.used(t)
	if err != nil {
		return 0, err
	}
	if c.what == first {
		n.firsts[t.name].Add(int64(len(took)))
	}
	if !c.begun {
		c.begun = true
		return rate, nil
	}
	c.took = append(c.took, took...)
	for i := range c.cpu {
		c.cpu[i] += after[i] - before[i]
	}
	return rate, nil
}
