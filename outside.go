package stet

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/stet-go/stet/observe"
	"github.com/stet-go/stet/store"
)

// fencePatience is how long the end of a claim waits for the service's transaction.
const fencePatience = time.Second

// outside refuses policies that have runs settled outside of this process where that
// cannot be, or where what is settled could not be read.
func (ps policies) outside(s store.Store, enc Encryption) error {
	for class, p := range ps {
		if !p.Outside {
			continue
		}
		if _, ok := store.As[store.OutsideStore](s); !ok {
			return invalid("class %q has Policy.Outside, and services cannot settle in transactions of their own in a %T; postgres is a store where they can", class, s)
		}
		if len(enc.Keys) > 0 && !enc.AcceptPlain {
			return invalid("class %q has Policy.Outside, and the engine encrypts: what a service settles is not encrypted, and would not be replayed; do not encrypt, or set Encryption.AcceptPlain", class)
		}
	}
	return nil
}

// outside ends a run that a service settles: by the outcome that stands or, if there is
// none, by ending the claim. Then out, if it is one and there is no error, is what the
// service has refused the operation with.
func (l *Lease) outside(ctx context.Context, out Outcome, cause error, again func(error) Again) (Outcome, error) {
	rec, err := l.e.read(ctx, l.rec.ID)
	if err == nil && l.stands(rec) {
		if err := l.conclude(ctx); err != nil {
			return Outcome{}, err
		}
		l.finish(entry{rec: rec, shared: true})
		return l.settledOutside(ctx, rec)
	}
	refused := cause == nil && out.Face != store.FaceEngine && out.Reason == store.ReasonNone // and not panicked
	var a Again
	if again != nil && !refused {
		a = again(cause)
	}
	if a.Failed != nil && !out.Failed || a.Failed == ErrCancelled { //nolint:errorlint // what wraps it has words of its own
		out = l.p.failure(a.Failed)
	}
	if refused || a.Failed != nil {
		if err = l.Settle(ctx, out); err == nil {
			return out, nil
		}
	} else if err = l.Release(ctx, a); err == nil {
		return Outcome{}, retryable(cause)
	}
	switch KindOf(err) {
	case KindInvalid, KindDamaged:
		return Outcome{}, err
	case KindFenced: // settled since, or another run has come
		if rec, err = l.e.read(ctx, l.rec.ID); err == nil && l.stands(rec) {
			return l.settledOutside(ctx, rec)
		}
	}
	return Outcome{}, &Error{Kind: KindInFlight, Execution: MayHaveExecuted, RetryAfter: retryAfter, Cause: errors.Join(cause, err)}
}

// fence ends the claim of a run that a service settles. While the service's transaction has
// settled and not ended it cannot be done: the caller is told so soon. See insist.
func (r *Run) fence(ctx context.Context) error {
	return r.e.retry(ctx, 1, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, fencePatience)
		defer cancel()
		return r.e.store.Release(ctx, r.rec.Claim(), r.p.Retention)
	})
}

// stands reports whether a record has the outcome of the operation. It may be that of a
// run after this one.
func (l *Lease) stands(rec store.Record) bool {
	return rec.State.Settled() && rec.Fingerprint == l.rec.Fingerprint
}

// settledOutside returns the outcome that a service has settled.
func (l *Lease) settledOutside(ctx context.Context, rec store.Record) (Outcome, error) {
	out, err := l.e.sealer.open(rec)
	if rec.Gone {
		out, err = Outcome{Gone: true, Failed: rec.State == store.Failed}, nil
	}
	if err != nil {
		err = damaged(fmt.Errorf("what the service has settled cannot be read: %w", err))
	}
	l.e.observe(ctx, observe.Event{Kind: observe.Settled, ID: rec.ID, Class: l.op.Class, State: rec.State, Fence: rec.Fence, Attempt: rec.Attempt, Err: err})
	return out.readBy(l.p), err
}
