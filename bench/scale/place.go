package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/bench/internal/rounds"
	"github.com/stet-go/stet/store"
)

// sweeping is a store that is swept.
type sweeping interface {
	store.Store
	store.Sweeper
}

// place is a store with so many records.
type place struct {
	size    int
	expired int // how many of them are past the time of their result, the first ones
	steps   int // how many calls a turn of the sweep is, where it finds nothing
	st      sweeping
	written func(context.Context) (int64, error)    // bytes of WAL, so far; nil if unknown
	weigh   func(context.Context) ([]weight, error) // its size on disk or in memory
	held    func(context.Context) (float64, error)  // bytes of disk in all
	flush   func(context.Context) error             // a checkpoint; nil where there is none
	last    func(context.Context) error             // makes the last of the records; nil where all are there
	close   func() error

	result  store.Result   // that of each record
	claims  []store.Record // granted, and not settled yet
	settled []stet.Op      // by turns
	begun   atomic.Int64
	swept   int
	random  *rand.Rand
	wal     map[string]int64 // by operation
	ops     map[string]int
}

// weight is a part of what a store keeps.
type weight struct {
	what  string // "": all of it
	bytes float64
}

// turn is one measurement of each place, in turns.
type turn struct {
	name string
	do   func(p *place, ctx context.Context, n int) (done int, err error)
}

var turns = []turn{{"claim", (*place).claim}, {"settle", (*place).settle}, {"replay", (*place).replay}, {"retry", (*place).retry}, {"sweep", (*place).sweep}}

// contender measures a turn.
func (p *place) contender(ctx context.Context, t turn, n int) rounds.Contender {
	return rounds.Contender{Name: fmt.Sprint(t.name, " ", p.size), Measure: func() (float64, error) {
		before, err := p.wrote(ctx)
		if err != nil {
			return 0, err
		}
		began := time.Now()
		done, err := t.do(p, ctx, n)
		took := time.Since(began)
		if err != nil {
			return 0, err
		}
		after, err := p.wrote(ctx)
		p.wal[t.name] += after - before
		p.ops[t.name] += done
		return float64(done) / took.Seconds(), err
	}}
}

// first prints how much WAL is written where a page is changed for the first time after a
// checkpoint: all of it, then.
func (p *place) first(ctx context.Context, name string) error {
	if p.flush == nil {
		return nil
	}
	for _, t := range turns[:2] {
		if err := p.flush(ctx); err != nil {
			return err
		}
		clear(p.wal)
		clear(p.ops)
		if _, err := p.contender(ctx, t, samples).Measure(); err != nil {
			return err
		}
		rounds.Figure(fmt.Sprintf("scale_%s_%s_wal_first_%d", name, t.name, p.size), float64(p.wal[t.name])/float64(p.ops[t.name]), "B right after a checkpoint")
	}
	return nil
}

func (p *place) wrote(ctx context.Context) (int64, error) {
	if p.written == nil {
		return 0, nil
	}
	return p.written(ctx)
}

// claim claims new operations.
func (p *place) claim(ctx context.Context, n int) (int, error) {
	var mu sync.Mutex
	return n, spread(callers, n, func(int) error {
		op := fresh(int(p.begun.Add(1)))
		req := request(op)
		rec, err := p.st.Claim(ctx, req)
		if err != nil {
			return err
		}
		if rec.State != store.Running || rec.Owner != req.Owner {
			return fmt.Errorf("broken: a new operation was not granted, its record is %v", rec.State)
		}
		mu.Lock()
		defer mu.Unlock()
		p.claims, p.settled = append(p.claims, rec), append(p.settled, op)
		return nil
	})
}

// settle settles claimed operations.
func (p *place) settle(ctx context.Context, _ int) (int, error) {
	claims := p.claims
	p.claims = nil
	return len(claims), spread(callers, len(claims), func(i int) error {
		return p.st.Settle(ctx, claims[i].Claim(), store.Settlement{State: store.Completed, Result: p.result}, keep)
	})
}

// replay claims operations that have an outcome, any of the filled ones.
func (p *place) replay(ctx context.Context, n int) (int, error) {
	which := make([]int, n)
	for i := range which {
		which[i] = p.expired + 1 + p.random.IntN(p.size-p.expired-1)
	}
	return n, spread(callers, n, func(i int) error { return p.again(ctx, filled(which[i])) })
}

// retry claims operations that have had an outcome for a short time, as most retries do:
// those of the last turns.
func (p *place) retry(ctx context.Context, n int) (int, error) {
	late := p.settled[max(0, len(p.settled)-recent*n):]
	which := make([]stet.Op, n)
	for i := range which {
		which[i] = late[p.random.IntN(len(late))]
	}
	return n, spread(callers, n, func(i int) error { return p.again(ctx, which[i]) })
}

// again claims an operation that has an outcome.
func (p *place) again(ctx context.Context, op stet.Op) error {
	rec, err := p.st.Claim(ctx, request(op))
	if err == nil && (rec.State != store.Completed || !rec.Result.Equal(p.result)) {
		err = fmt.Errorf("broken: the record of %s, among %d, has been lost: it is %v, with a body of %d bytes", op.Key, p.size, rec.State, len(rec.Result.Body))
	}
	return err
}

// sweep sweeps: of records that have expired, so many in one step; where Redis removes
// those, it goes once through all that can be stuck.
func (p *place) sweep(ctx context.Context, _ int) (int, error) {
	if p.expired == 0 {
		for range p.steps {
			if _, err := p.st.Sweep(ctx, sweepStep); err != nil {
				return 0, err
			}
		}
		return p.steps, nil
	}
	swept, err := p.st.Sweep(ctx, sweepStep)
	p.swept += swept.Expired
	if err == nil && swept.Expired != sweepStep {
		err = fmt.Errorf("broken: a sweep found %d of %d expired results, with %d left among %d records", swept.Expired, sweepStep, p.expired-p.swept, p.size)
	}
	return sweepStep, err
}

// check lets an engine ask for some of each kind of record: none may have been lost, and
// no expired one may be replayed. It changes nothing.
func (p *place) check(ctx context.Context) error {
	engine, err := stet.New(p.st, stet.Options{SweepEvery: -1, Policy: stet.Policy{Retention: keep}})
	if err != nil {
		return err
	}
	defer func() { _ = engine.Close() }() // never fails
	want := receipt(filled(0).Key)
	var ops []stet.Op
	for range samples {
		ops = append(ops, filled(p.expired+1+p.random.IntN(p.size-p.expired-1)))
	}
	for range min(samples, len(p.settled)) {
		ops = append(ops, p.settled[p.random.IntN(len(p.settled))])
	}
	ops = append(ops, filled(0), filled(p.size-1))
	for _, op := range ops {
		lease, err := engine.Begin(ctx, op)
		switch {
		case err != nil:
			return fmt.Errorf("broken: among %d records, the outcome of %s is lost: %w", p.size, op.Key, err)
		case !lease.Replayed():
			return fmt.Errorf("broken: among %d records, %s would have run again", p.size, op.Key)
		case !same(lease.Outcome(), want):
			return fmt.Errorf("broken: among %d records, the outcome of %s is another one: %+v", p.size, op.Key, lease.Outcome())
		}
	}
	for i := 1; i <= p.expired; i += max(1, p.expired/samples) { // swept and not
		switch lease, err := engine.Begin(ctx, filled(i)); {
		case err == nil:
			return fmt.Errorf("broken: among %d records, expired record %d was replayed (%v), or run again", p.size, i, lease.Replayed())
		case stet.KindOf(err) != stet.KindExpired:
			return fmt.Errorf("broken: among %d records, expired record %d is not told to be so: %w", p.size, i, err)
		}
	}
	return nil
}

func same(a, b stet.Outcome) bool {
	return a.Status == b.Status && a.Type == b.Type && string(a.Body) == string(b.Body) && a.Failed == b.Failed && a.Adapter == b.Adapter &&
		slices.EqualFunc(a.Header, b.Header, func(x, y store.Field) bool { return x.Name == y.Name && slices.Equal(x.Values, y.Values) })
}
