package matrix

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

// fault is what becomes of the calls that end a run.
type fault uint8

const (
	sound      fault = iota
	down             // nothing is done
	unanswered       // it is done, and no answer comes
	undone           // a COMMIT fails without a reply
)

var errDown = errors.New("the store does not answer")

// lab is the memory store with faults, and with transactions: a write
// through one takes effect at its commit.
type lab struct {
	*memory.Store
	hurt func(store.Record) store.Record // the record that a reader gets; nil: the stored one

	mu    sync.Mutex
	fault fault
	until time.Time // when the fault is over
}

// tx holds what a transaction writes.
type tx struct{ writes []func() error }

func (t *tx) commit() error {
	for _, write := range t.writes {
		if err := write(); err != nil {
			return err
		}
	}
	return nil
}

// arm makes the store fail for longer than the engine tries.
func (l *lab) arm(f fault) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fault, l.until = f, time.Now().Add(10*time.Second)
}

func (l *lab) now() fault {
	l.mu.Lock()
	defer l.mu.Unlock()
	if time.Now().Before(l.until) {
		return l.fault
	}
	return sound
}

// through carries a call out, or not.
func (l *lab) through(call func() error) error {
	switch l.now() {
	case down:
		return errDown
	case unanswered:
		return errors.Join(call(), errDown)
	default:
		return call()
	}
}

func (l *lab) Settle(ctx context.Context, c store.Claim, out store.Settlement, keep store.Retention) error {
	return l.through(func() error { return l.Store.Settle(ctx, c, out, keep) })
}

func (l *lab) Release(ctx context.Context, c store.Claim, keep store.Retention) error {
	return l.through(func() error { return l.Store.Release(ctx, c, keep) })
}

func (l *lab) Return(ctx context.Context, c store.Claim, after time.Duration) error {
	return l.through(func() error { return l.Store.Return(ctx, c, after) })
}

func (l *lab) Save(ctx context.Context, c store.Claim, notes store.Notes, repeatable bool) error {
	return l.through(func() error { return l.Store.Save(ctx, c, notes, repeatable) })
}

// Extend, Claim and Read fail while the store is down.
func (l *lab) Extend(ctx context.Context, claims []store.Claim, lease time.Duration) ([]store.Claim, error) {
	if l.now() == down {
		return nil, errDown
	}
	return l.Store.Extend(ctx, claims, lease)
}

func (l *lab) Claim(ctx context.Context, req store.ClaimRequest) (store.Record, error) {
	if l.now() == down {
		return store.Record{}, errDown
	}
	rec, err := l.Store.Claim(ctx, req)
	return l.shown(rec), err
}

func (l *lab) Read(ctx context.Context, id store.ID) (store.Record, error) {
	if l.now() == down {
		return store.Record{}, errDown
	}
	rec, err := l.Store.Read(ctx, id)
	return l.shown(rec), err
}

func (l *lab) Look(ctx context.Context, id store.ID) (store.Record, error) {
	rec, err := l.Store.Look(ctx, id)
	return l.shown(rec), err
}

func (l *lab) Take(ctx context.Context, req store.TakeRequest) (store.Record, error) {
	rec, err := l.Store.Take(ctx, req)
	return l.shown(rec), err
}

func (l *lab) Accept(ctx context.Context, req store.ClaimRequest, work []byte, after time.Duration) (store.Record, error) {
	rec, err := l.Store.Accept(ctx, req, work, after)
	return l.shown(rec), err
}

func (l *lab) shown(rec store.Record) store.Record {
	if l.hurt != nil {
		return l.hurt(rec)
	}
	return rec
}

// RunTx implements store.TxStore.
func (l *lab) RunTx(ctx context.Context, req store.ClaimRequest, keep store.Retention,
	fn func(context.Context, *tx, store.Record) (store.Settlement, error)) (store.Record, error) {
	rec, err := l.Read(ctx, req.ID)
	if err != nil {
		return rec, err
	}
	if rec.State != store.None && rec.State != store.Retryable || rec.State == store.Retryable && rec.Fingerprint != req.Fingerprint {
		return l.Claim(ctx, req) // which marks unknown, or refuses, or does nothing
	}
	t := &tx{}
	rec = store.Record{ID: req.ID, Scope: req.Scope, Fingerprint: req.Fingerprint, Owner: req.Owner, State: store.Running, Fence: rec.Fence + 1, Attempt: rec.Attempt + 1}
	out, err := fn(ctx, t, rec)
	if err != nil {
		return store.Record{}, err
	}
	t.writes = append(t.writes, func() error {
		req.Lease = time.Minute // for the moment that this takes
		if rec, err = l.Store.Claim(ctx, req); err == nil {
			err = l.Store.Settle(ctx, rec.Claim(), out, keep)
		}
		return err
	})
	switch l.now() {
	case down:
		return store.Record{}, errDown
	case undone:
		return store.Record{}, fmt.Errorf("%w: COMMIT was not answered", store.ErrUnknown)
	case unanswered:
		return store.Record{}, errors.Join(fmt.Errorf("%w: COMMIT was not answered", store.ErrUnknown), t.commit())
	}
	if err := t.commit(); err != nil {
		return store.Record{}, err
	}
	return l.Store.Read(ctx, req.ID)
}

// InTx implements store.WorkTxStore.
func (l *lab) InTx(ctx context.Context, fn func(context.Context, *tx) error) error {
	t := &tx{}
	if err := fn(ctx, t); err != nil {
		return err
	}
	if l.now() == undone {
		return errDown
	}
	return l.through(t.commit)
}

// SettleTx implements store.TxStore.
func (l *lab) SettleTx(ctx context.Context, t *tx, c store.Claim, out store.Settlement, keep store.Retention) error {
	rec, err := l.Read(ctx, c.ID)
	if err == nil && (rec.Fence != c.Fence || rec.State != store.Running && rec.State != store.Unknown) {
		err = store.ErrFenced
	}
	t.writes = append(t.writes, func() error { return l.Store.Settle(ctx, c, out, keep) })
	return err
}

// SaveTx implements store.WorkTxStore.
func (l *lab) SaveTx(ctx context.Context, t *tx, c store.Claim, notes store.Notes, repeatable bool) error {
	t.writes = append(t.writes, func() error { return l.Store.Save(ctx, c, notes, repeatable) })
	return nil
}

// AcceptTx implements store.WorkTxStore.
func (*lab) AcceptTx(context.Context, *tx, store.ClaimRequest, []byte, time.Duration) (store.Record, error) {
	return store.Record{}, errors.ErrUnsupported
}
