package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/observe"
	"github.com/stet-go/stet/store"
)

// site is an empty store for days.
type site struct {
	name    string
	dead    string // what it keeps of what is no more; "" for nothing
	st      sweeping
	look    func(context.Context) (health, error)
	records func(context.Context) (int, error)
	close   func() error

	patience time.Duration // how much longer than a day it may take until nothing is left; 0: a minute
}

// health is what a store looks like.
type health struct {
	size, indexes float64 // bytes: of tables and indexes, of the file, of memory
	disk          float64 // bytes of files, where size is not that
	dead          float64 // how many
	written       float64 // bytes of the log so far: WAL, what SQLite sent to disk, Redis's append-only file
	vacuums       int
}

// days is a load of so many requests a second, as over days: each of them sees every record
// expire and be forgotten. A day is as long as a record is kept.
type days struct {
	*site
	engine *stet.Engine
	rate   int
	day    time.Duration
	n      int
	keep   store.Retention
	began  time.Time
	next   atomic.Int64
	asked  atomic.Int64 // retries that were judged
	failed atomic.Pointer[error]
	told   []atomic.Int64 // when the outcome of each was known, in microseconds
	sent   []atomic.Int64 // when it was begun
	swept  atomic.Int64
}

// dayOf is what one day has been like.
type dayOf struct {
	health
	records int
	peak    float64 // most dead of any moment
	wal     float64 // bytes for each request
}

// live has a store live through n days of so many requests a second.
func live(ctx context.Context, s *site, rate, n int, day time.Duration) (all []dayOf, err error) {
	d := &days{site: s, rate: rate, day: day, n: n, keep: store.Retention{Result: day / 2, Tombstone: day}}
	total := int(float64(rate*n) * day.Seconds())
	d.told, d.sent = make([]atomic.Int64, total), make([]atomic.Int64, total)
	d.engine, err = stet.New(s.st, stet.Options{SweepEvery: day / 100, Observer: observe.Func(d.observe),
		Policy: stet.Policy{Lease: min(d.keep.Result, 30*time.Second), Retention: d.keep}})
	if err != nil {
		return nil, err
	}
	d.began = time.Now()
	ctx, cancel := context.WithCancelCause(ctx)
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			if err := d.call(ctx); err != nil {
				cancel(err)
			}
		})
	}
	all, err = d.watch(ctx)
	cancel(errors.New("the days are over"))
	wg.Wait()
	err = errors.Join(err, d.engine.Close())
	if e := d.failed.Load(); e != nil {
		err = errors.Join(err, *e)
	}
	if err != nil {
		return nil, err
	}
	progress("%s: %d requests, %d retries as they should be, %d records swept in the background", s.name, total, d.asked.Load(), d.swept.Load())
	return all, d.emptied(context.WithoutCancel(ctx))
}

func (d *days) observe(_ context.Context, ev observe.Event) {
	if ev.Kind != observe.Swept {
		return
	}
	if d.swept.Add(int64(ev.Swept.Expired + ev.Swept.Purged)); ev.Err != nil && !errors.Is(ev.Err, context.Canceled) {
		d.failed.Store(&ev.Err)
	}
}

// call makes requests when they are due, and now and then a retry of an earlier one.
func (d *days) call(ctx context.Context) error {
	due := time.NewTimer(0)
	defer due.Stop()
	back := func(share float64) int { return int(share * d.day.Seconds() * float64(d.rate)) }
	for {
		i := int(d.next.Add(1)) - 1
		if i >= len(d.told) {
			return nil
		}
		due.Reset(time.Until(d.began.Add(time.Duration(i) * time.Second / time.Duration(d.rate))))
		select {
		case <-due.C:
		case <-ctx.Done():
			return nil
		}
		err := d.run(ctx, i)
		switch i % 10 {
		case 3:
			err = errors.Join(err, d.retry(ctx, i-back(0.2))) // which is replayed
		case 7:
			err = errors.Join(err, d.retry(ctx, i-back(0.8))) // whose result has expired
		}
		if err != nil && ctx.Err() == nil {
			return err
		}
	}
}

// run makes the first request of an operation.
func (d *days) run(ctx context.Context, i int) error {
	op := fresh(i)
	d.sent[i].Store(time.Now().UnixMicro())
	lease, err := d.engine.Begin(ctx, op)
	if err != nil {
		return err
	}
	if lease.Replayed() {
		return fmt.Errorf("broken: request %d, which is new, was answered with the outcome of another", i)
	}
	if err := lease.Settle(ctx, receipt(op.Key)); err != nil {
		return err
	}
	d.told[i].Store(time.Now().UnixMicro())
	return nil
}

// retry asks for an operation again, and judges the answer by the time: the store's clock is
// that of this machine.
func (d *days) retry(ctx context.Context, i int) error {
	if i < 0 || d.told[i].Load() == 0 {
		return nil
	}
	op := fresh(i)
	sent := time.Now().UnixMicro()
	lease, err := d.engine.Begin(ctx, op)
	// It was settled between these two, and so expired and was forgotten that much later.
	least, most := d.sent[i].Load(), d.told[i].Load()
	since := time.Duration(time.Now().UnixMicro()-least) * time.Microsecond // at most
	kept := time.Duration(sent-most) * time.Microsecond                     // at least
	switch {
	case err == nil && !lease.Replayed():
		if err := lease.Release(ctx, stet.Again{}); err != nil {
			return err
		}
		if since < d.keep.Tombstone {
			return fmt.Errorf("broken: request %d would have run again after %v, its record is lost", i, since)
		}
	case err == nil && kept > d.keep.Result:
		return fmt.Errorf("broken: request %d was replayed after %v, its result had expired", i, kept)
	case err == nil && !same(lease.Outcome(), receipt(op.Key)):
		return fmt.Errorf("broken: request %d was replayed with another outcome: %s", i, lease.Outcome().Body)
	case err == nil:
	case stet.KindOf(err) != stet.KindExpired:
		return err
	case since < d.keep.Result:
		return fmt.Errorf("broken: request %d was told after %v that its result had expired", i, since)
	}
	d.asked.Add(1)
	return nil
}

// watch looks at the store all the while, and tells of each day when it is over.
func (d *days) watch(ctx context.Context) (all []dayOf, err error) {
	tick := time.NewTicker(max(d.day/50, 100*time.Millisecond))
	defer tick.Stop()
	before, err := d.look(ctx)
	if err != nil {
		return nil, err
	}
	asked, peak := int64(0), 0.0
	for len(all) < d.n {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		now, err := d.look(ctx)
		if err != nil {
			return nil, err
		}
		peak = max(peak, now.dead)
		if time.Since(d.began) < time.Duration(len(all)+1)*d.day {
			continue
		}
		done := min(d.next.Load(), int64(len(d.told)))
		o := dayOf{health: now, peak: peak, wal: (now.written - before.written) / float64(max(1, done-asked))}
		if o.records, err = d.records(ctx); err != nil {
			return nil, err
		}
		all = append(all, o)
		progress("%s, day %d: %s", d.name, len(all), d.words(o))
		before, asked, peak = now, done, 0
	}
	if late := len(d.told) - int(d.next.Load()); late > len(d.told)/50 {
		progress("%s: this machine is too slow for %d requests a second, %d of %d were not made in time", d.name, d.rate, late, len(d.told))
	}
	return all, nil
}

func (d *days) words(o dayOf) string {
	words := fmt.Sprintf("%d records, %.1f MB", o.records, o.size/1e6)
	if d.dead != "" {
		words += fmt.Sprintf(", at most %.0f %s", o.peak, d.dead)
	}
	if o.written > 0 {
		words += fmt.Sprintf(", %.0f B written for each request", o.wal)
	}
	if o.vacuums > 0 {
		words += fmt.Sprintf(", autovacuum came %d times so far", o.vacuums)
	}
	if o.disk > 0 {
		words += fmt.Sprintf(", %.1f MB of files", o.disk/1e6)
	}
	return words
}

// emptied waits until the last record counts as none, and sweeps: nothing may be left.
func (d *days) emptied(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, d.day+cmp.Or(d.patience, time.Minute), errors.New("timed out"))
	defer cancel()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	left := -1
	for {
		n, err := d.clean(ctx)
		switch {
		case err == nil && n == 0:
			return nil
		case err == nil:
			left = n
		case ctx.Err() == nil:
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("broken: %d records are left of those that are to be forgotten: %w", left, context.Cause(ctx))
		}
	}
}

// clean sweeps all that can be swept now, and returns how many records are left.
func (d *days) clean(ctx context.Context) (int, error) {
	for {
		swept, err := d.st.Sweep(ctx, 1000)
		if err != nil {
			return 0, err
		}
		if !swept.More {
			return d.records(ctx)
		}
	}
}
