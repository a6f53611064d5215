package dynamodb

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/internal/calls"
	"github.com/stet-go/stet/store/internal/rules"
)

// Claim implements store.Store. The claim of a new key is one write.
func (s *Store) Claim(ctx context.Context, req store.ClaimRequest) (store.Record, error) {
	if err := checkLabel(req.Label); err != nil {
		return store.Record{}, err
	}
	v, err := s.change(ctx, req.ID, &node{id: req.ID}, func(v view) (*write, error) {
		change, err := rules.OnClaim(v.seen(), req)
		switch change {
		case rules.Grant:
			return &write{to: s.granted(v, req), whole: true}, nil
		case rules.MarkUnknown:
			return markUnknown(v), nil
		}
		return nil, err
	})
	if err != nil && !errors.Is(err, store.ErrMismatch) {
		return store.Record{}, err
	}
	if err == nil && v.state == store.Running && v.owner == req.Owner {
		err = s.distrusted()
	}
	return v.seen(), err
}

func checkLabel(l store.Label) error {
	if len(l.Class) > store.MaxLabel || len(l.Name) > store.MaxLabel || len(l.Ref) > store.MaxRef {
		return fmt.Errorf("dynamodb: %w: a part of the label has more than %d bytes, or the reference more than %d", store.ErrInvalid, store.MaxLabel, store.MaxRef)
	}
	return nil
}

// nextFence is greater than all earlier fences of the key.
func (v view) nextFence() int64 { return max(v.last()+1, v.now*1000) }

// granted is the record that runs under req.
func (s *Store) granted(v view, req store.ClaimRequest) *node {
	return &node{id: req.ID, exists: true, state: store.Running, times: times{lease: v.now + span(req.Lease)},
		head: head{scope: req.Scope, fingerprint: req.Fingerprint, owner: req.Owner, label: req.Label,
			fence: v.nextFence(), attempt: v.record().Attempt + 1, claimed: v.now}}
}

// with returns a copy of the record in another state, with other times.
func (v view) with(state store.State, t times) *node {
	return &node{id: v.id, exists: true, state: state, head: v.head, times: t}
}

// markUnknown ends a run with an expired lease.
func markUnknown(v view) *write {
	return &write{to: v.with(store.Unknown, times{settled: v.now})}
}

// Read implements store.Store.
func (s *Store) Read(ctx context.Context, id store.ID) (store.Record, error) {
	v, err := s.change(ctx, id, nil, func(view) (*write, error) { return nil, nil })
	if err != nil {
		return store.Record{}, err
	}
	return v.seen(), nil
}

// Extend implements store.Store. It writes each record by itself, 32 at a time.
func (s *Store) Extend(ctx context.Context, claims []store.Claim, lease time.Duration) ([]store.Claim, error) {
	return calls.Extend(claims, func(c store.Claim) error { return s.extend(ctx, c, span(lease)) })
}

// running is the record of a claim, as far as the claim tells.
func running(c store.Claim) *node {
	return &node{id: c.ID, exists: true, state: store.Running, head: head{owner: c.Owner, fence: c.Fence}}
}

// extend renews one lease.
func (s *Store) extend(ctx context.Context, c store.Claim, lease millis) error {
	_, err := s.change(ctx, c.ID, running(c), func(v view) (*write, error) {
		if v.state != store.Running || v.fence != c.Fence {
			return nil, store.ErrFenced
		}
		return &write{to: v.with(store.Running, times{lease: v.now + lease})}, nil
	})
	return err
}
