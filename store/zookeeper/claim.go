package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/internal/calls"
	"github.com/stet-go/stet/store/internal/rules"
)

// Claim implements store.Store.
func (s *Store) Claim(ctx context.Context, req store.ClaimRequest) (store.Record, error) {
	if l := req.Label; len(l.Class) > store.MaxLabel || len(l.Name) > store.MaxLabel || len(l.Ref) > store.MaxRef {
		return store.Record{}, fmt.Errorf("zookeeper: %w: a part of the label has more than %d bytes, or the reference more than %d", store.ErrInvalid, store.MaxLabel, store.MaxRef)
	}
	v, err := s.change(ctx, req.ID, func(v view) (*write, error) {
		rec := v.record()
		if v.changed && (rec.State != store.Running || rec.Owner != req.Owner) {
			return nil, store.ErrFenced
		}
		change, err := rules.OnClaim(rec, req)
		switch change {
		case rules.Grant:
			return grant(v, rec, req), nil
		case rules.MarkUnknown:
			return markUnknown(v), nil
		}
		return nil, err
	})
	if err != nil && !errors.Is(err, store.ErrMismatch) {
		return store.Record{}, err
	}
	return v.record(), err
}

// grant makes the record run under req. rec is the record, with the state None if it is forgotten.
func grant(v view, rec store.Record, req store.ClaimRequest) *write {
	to := &node{id: req.ID, head: head{
		Scope: req.Scope[:], Fingerprint: req.Fingerprint[:], Owner: req.Owner[:],
		Class: req.Label.Class, Name: req.Label.Name, Ref: []byte(req.Label.Ref),
		State: store.Running, Attempt: rec.Attempt + 1, End: times{Lease: span(req.Lease)},
	}}
	to.schedule(v.now)
	return &write{to: to, anew: true}
}

// with returns a copy of the record in another state, with other times from now on.
func (v view) with(state store.State, end times) *node {
	to := &node{id: v.id, head: v.head}
	to.State, to.End, to.At = state, end, 0
	return to
}

// again returns a copy of the record with the same times, to be written again.
func (v view) again() *node {
	to := &node{id: v.id, head: v.head, result: v.result, stat: v.stat}
	to.At = v.base()
	return to
}

// markUnknown ends a run with an expired lease.
func markUnknown(v view) *write {
	to := v.with(store.Unknown, times{})
	to.schedule(v.now)
	return &write{to: to}
}

// Read implements store.Store.
func (s *Store) Read(ctx context.Context, id store.ID) (store.Record, error) {
	v, err := s.change(ctx, id, func(view) (*write, error) { return nil, nil })
	if err != nil {
		return store.Record{}, err
	}
	return v.record(), nil
}

// Extend implements store.Store. It writes each record by itself, 32 at a time.
func (s *Store) Extend(ctx context.Context, claims []store.Claim, lease time.Duration) ([]store.Claim, error) {
	return calls.Extend(claims, func(c store.Claim) error { return s.extend(ctx, c, span(lease)) })
}

// extend renews one lease.
func (s *Store) extend(ctx context.Context, c store.Claim, lease millis) error {
	_, err := s.change(ctx, c.ID, func(v view) (*write, error) {
		if rec := v.record(); rec.State != store.Running || rec.Fence != c.Fence {
			return nil, store.ErrFenced
		}
		to := v.with(store.Running, times{Lease: lease})
		if to.schedule(v.now); to.Slot.Due > v.Slot.Due {
			to.Slot = v.Slot // the sweep puts it off: one write in place of three
		}
		return &write{to: to}, nil
	})
	return err
}
