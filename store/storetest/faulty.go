package storetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/stet-go/stet/store"
)

// ErrFault is what a call of a Faulty store fails with, wrapped.
var ErrFault = errors.New("storetest: fault")

// Fault says how a call fails.
type Fault uint8

const (
	// NoFault lets the call through.
	NoFault Fault = iota
	// FailBefore fails the call, and nothing happens: the request was lost.
	FailBefore
	// FailAfter lets the call take effect and then fails it: the reply was
	// lost.
	FailAfter
)

// Call is a call on its way to a store.
type Call struct {
	// Method is the name of the method: Claim, Extend, Settle, Release,
	// Read, Watch, Sweep, RunTx or SettleTx; Accept, Take, Return, Cancel,
	// Save, Amend, Look, Due, DueMessages, Relayed, InTx, AcceptTx or SaveTx.
	Method string
	// N counts the calls of this method, from 1.
	N int
}

// Plan says which calls fail. It is called before each call, concurrently, and
// may block to make the store slow.
type Plan func(c Call) Fault

// Faulty returns a store that does what s does, but for the calls that plan
// makes fail. It is a store.Watcher, a store.Sweeper, a store.WorkStore and a
// store.OutboxStore if s is, as store.As finds it; for a store.TxStore there is FaultyTx.
//
// It is for tests of stores, and of services that test their behaviour
// when their store fails.
func Faulty(s store.Store, plan Plan) store.Store {
	_, top := newFaulty(s, plan)
	return top
}

// FaultyTx is Faulty for a store with transactions; it is a store.WorkTxStore if s
// is. A RunTx whose reply is lost fails with an error that also wraps
// store.ErrUnknown, as the contract asks for when the fate of a commit cannot be
// found out.
func FaultyTx[Tx any](s store.TxStore[Tx], plan Plan) store.TxStore[Tx] {
	f, top := newFaulty(s, plan)
	tx := faultyTx[Tx]{layer{top}, f, s}
	if ws, ok := store.As[store.WorkTxStore[Tx]](s); ok {
		return faultyWorkTx[Tx]{tx, faultyWork{f, ws}, ws}
	}
	return tx
}

// Seeded returns a plan that makes calls fail at random, each with the
// probability p, half of them before and half after they took effect. The same
// seed and the same order of calls give the same faults.
func Seeded(seed uint64, p float64) Plan {
	var mu sync.Mutex
	rng := rand.New(rand.NewPCG(seed, 0))
	return func(Call) Fault {
		mu.Lock()
		defer mu.Unlock()
		switch x := rng.Float64(); {
		case x < p/2:
			return FailBefore
		case x < p:
			return FailAfter
		}
		return NoFault
	}
}

// faulty is a store.Store whose calls may fail.
type faulty struct {
	store store.Store
	plan  Plan

	mu    sync.Mutex
	calls map[string]int
}

// MaxResult implements store.Limiter.
func (f *faulty) MaxResult() int { return mostResult(f.store) }

// layer is in front of a faulty, and adds to it what one more interface asks for.
type layer struct{ store.Store }

// Unwrap implements store.Wrapper.
func (l layer) Unwrap() store.Store { return l.Store }

// newFaulty returns a store whose calls may fail, and the store in front of it, which has the
// other abilities of s.
func newFaulty(s store.Store, plan Plan) (f *faulty, top store.Store) {
	f = &faulty{store: s, plan: plan, calls: make(map[string]int)}
	top = f
	can := abilitiesOf(s)
	if can.watcher != nil {
		top = faultyWatcher{layer{top}, f, can.watcher}
	}
	if can.sweeper != nil {
		top = faultySweeper{layer{top}, f, can.sweeper}
	}
	if can.outbox != nil {
		top = faultyOutbox{layer{top}, f, can.outbox}
	}
	if can.works != nil {
		top = faultyWorker{layer{top}, faultyWork{f, can.works}}
	}
	return f, top
}

// do makes the call, and fails it as planned.
func (f *faulty) do(method string, call func() error) error {
	f.mu.Lock()
	f.calls[method]++
	c := Call{Method: method, N: f.calls[method]}
	f.mu.Unlock()
	switch f.plan(c) {
	case FailBefore:
		return fmt.Errorf("%w: %s %d, before it took effect", ErrFault, method, c.N)
	case FailAfter:
		_ = call() // the reply is lost
		return fmt.Errorf("%w: %s %d, its reply", ErrFault, method, c.N)
	}
	return call()
}

// Claim implements store.Store.
func (f *faulty) Claim(ctx context.Context, req store.ClaimRequest) (rec store.Record, err error) {
	var got store.Record
	err = f.do("Claim", func() (err error) {
		got, err = f.store.Claim(ctx, req)
		return err
	})
	if errors.Is(err, ErrFault) {
		return rec, err
	}
	return got, err
}

// Extend implements store.Store.
func (f *faulty) Extend(ctx context.Context, claims []store.Claim, lease time.Duration) (lost []store.Claim, err error) {
	var got []store.Claim
	err = f.do("Extend", func() (err error) {
		got, err = f.store.Extend(ctx, claims, lease)
		return err
	})
	if errors.Is(err, ErrFault) {
		return nil, err
	}
	return got, err
}

// Settle implements store.Store.
func (f *faulty) Settle(ctx context.Context, c store.Claim, out store.Settlement, keep store.Retention) error {
	return f.do("Settle", func() error { return f.store.Settle(ctx, c, out, keep) })
}

// Release implements store.Store.
func (f *faulty) Release(ctx context.Context, c store.Claim, keep store.Retention) error {
	return f.do("Release", func() error { return f.store.Release(ctx, c, keep) })
}

// Read implements store.Store.
func (f *faulty) Read(ctx context.Context, id store.ID) (rec store.Record, err error) {
	var got store.Record
	err = f.do("Read", func() (err error) {
		got, err = f.store.Read(ctx, id)
		return err
	})
	if errors.Is(err, ErrFault) {
		return rec, err
	}
	return got, err
}

type faultyWatcher struct {
	layer
	f       *faulty
	watcher store.Watcher
}

// Watch implements store.Watcher.
func (w faultyWatcher) Watch(ctx context.Context, id store.ID, fence int64) error {
	return w.f.do("Watch", func() error { return w.watcher.Watch(ctx, id, fence) })
}

type faultySweeper struct {
	layer
	f       *faulty
	sweeper store.Sweeper
}

// Sweep implements store.Sweeper.
func (s faultySweeper) Sweep(ctx context.Context, limit int) (swept store.Swept, err error) {
	var got store.Swept
	err = s.f.do("Sweep", func() (err error) {
		got, err = s.sweeper.Sweep(ctx, limit)
		return err
	})
	if errors.Is(err, ErrFault) {
		return swept, err
	}
	return got, err
}

type faultyTx[Tx any] struct {
	layer
	f  *faulty
	tx store.TxStore[Tx]
}

// RunTx implements store.TxStore.
func (t faultyTx[Tx]) RunTx(ctx context.Context, req store.ClaimRequest, keep store.Retention,
	fn func(context.Context, Tx, store.Record) (store.Settlement, error)) (rec store.Record, err error) {
	var got store.Record
	ran, inner := false, error(nil)
	err = t.f.do("RunTx", func() error {
		ran = true
		got, inner = t.tx.RunTx(ctx, req, keep, fn)
		return inner
	})
	switch {
	case !errors.Is(err, ErrFault):
		return got, err
	case !ran:
		return rec, err
	case inner != nil: // it was rolled back before there was a reply to lose
		return got, inner
	}
	return rec, fmt.Errorf("%w: %w", store.ErrUnknown, err)
}

// SettleTx implements store.TxStore.
func (t faultyTx[Tx]) SettleTx(ctx context.Context, tx Tx, c store.Claim, out store.Settlement, keep store.Retention) error {
	return t.f.do("SettleTx", func() error { return t.tx.SettleTx(ctx, tx, c, out, keep) })
}
