// Package lapse ends runs whose lease has run out, for package stet and reconcile.
package lapse

import (
	"context"
	"errors"

	"github.com/stet-go/stet/store"
)

// End has the store end a run whose lease has run out: its record becomes Unknown,
// Retryable if the run can have had no effect, or Accepted if a worker may repeat it. It
// grants no run, so label and attempt stay. It returns the changed record. If the record was
// released or deleted in the meantime, the store may grant End a run. End then releases it,
// with keep, and returns store.ErrFenced.
func End(ctx context.Context, s store.Store, rec store.Record, keep store.Retention) (now store.Record, err error) {
	works, ok := store.As[store.WorkStore](s)
	if !ok {
		return endByClaim(ctx, s, rec, keep)
	}
	now, err = works.Look(ctx, rec.ID)
	if err != nil || now.State != store.Running || now.Fence != rec.Fence {
		return now, err
	}
	if len(now.Work) > 0 { // Take could grant it, and Claim cannot
		return endByClaim(ctx, s, rec, keep)
	}
	req := store.TakeRequest{ID: rec.ID, Owner: store.NewOwner(), Lease: store.MinLease}
	now, err = works.Take(ctx, req)
	if err == nil && now.State == store.Running && now.Owner == req.Owner {
		return now, errors.Join(store.ErrFenced, works.Return(context.WithoutCancel(ctx), now.Claim(), 0))
	}
	return now, err
}

func endByClaim(ctx context.Context, s store.Store, rec store.Record, keep store.Retention) (store.Record, error) {
	req := store.ClaimRequest{ID: rec.ID, Scope: rec.Scope, Fingerprint: rec.Fingerprint, Owner: store.NewOwner(), Lease: store.MinLease, Label: rec.Label}
	now, err := s.Claim(ctx, req)
	switch {
	case errors.Is(err, store.ErrMismatch): // forgotten, and used for another request
		return now, store.ErrFenced
	case err == nil && now.State == store.Running && now.Owner == req.Owner:
		return now, errors.Join(store.ErrFenced, s.Release(context.WithoutCancel(ctx), now.Claim(), keep))
	}
	return now, err
}
