package mysql

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/internal/rules"
)

// Claim implements store.Store.
func (s *Store) Claim(ctx context.Context, req store.ClaimRequest) (store.Record, error) {
	return s.claim(ctx, claiming{ClaimRequest: &req})
}

// Accept implements store.WorkStore.
func (s *Store) Accept(ctx context.Context, req store.ClaimRequest, work []byte, after time.Duration) (store.Record, error) {
	return s.claim(ctx, claiming{&req, notNil(work), after})
}

func (s *Store) claim(ctx context.Context, c claiming) (store.Record, error) {
	return s.do(ctx, c.ID, len(c.work)+len(c.Label.Ref), func(now micros, r *row) (store.Record, error) {
		if r.broken != nil {
			return store.Record{}, r.broken
		}
		err := r.claim(now, c)
		return r.at(now), err
	})
}

// change executes a call that has a claim. do changes the row if the rule allows it.
func (s *Store) change(ctx context.Context, c store.Claim, size int, rule func(store.Record, micros) (rules.Change, error), do func(*row, micros, rules.Change)) (store.Record, error) {
	return s.do(ctx, c.ID, size, func(now micros, r *row) (store.Record, error) {
		if r.broken != nil {
			return store.Record{}, r.broken
		}
		change, err := rule(r.whole(now), now)
		if err == nil && change != rules.None {
			do(r, now, change)
		}
		return r.whole(now), err
	})
}

// checkOutcome refuses an outcome that cannot be stored.
func (s *Store) checkOutcome(out store.Settlement) error {
	switch n := out.Result.Size(); {
	case !out.State.Settled():
		return fmt.Errorf("%w: an outcome is completed or failed, not %v", store.ErrInvalid, out.State)
	case n > s.MaxResult():
		return fmt.Errorf("%w: the result has %d bytes; with max_allowed_packet = %d of the server, the limit is %d", store.ErrInvalid, n, s.packet, s.MaxResult())
	}
	return nil
}

// Settle implements store.Store.
func (s *Store) Settle(ctx context.Context, c store.Claim, out store.Settlement, keep store.Retention) error {
	if err := s.checkOutcome(out); err != nil {
		return err
	}
	_, err := s.change(ctx, c, out.Result.Size()+len(out.Outbox),
		func(rec store.Record, now micros) (rules.Change, error) {
			return rules.OnSettle(rec, c, out, instant(now))
		},
		func(r *row, now micros, _ rules.Change) { r.settle(now, out, keep) })
	return err
}

// Release implements store.Store.
func (s *Store) Release(ctx context.Context, c store.Claim, keep store.Retention) error {
	_, err := s.change(ctx, c, 0,
		func(rec store.Record, _ micros) (rules.Change, error) { return rules.OnRelease(rec, c) },
		func(r *row, now micros, change rules.Change) {
			if change == rules.Return {
				r.requeue(now, 0)
				return
			}
			r.release(now, keep)
		})
	return err
}

// extendChunk is how many claims one transaction extends.
const extendChunk = 500

// Extend implements store.Store. A claim whose record another transaction has locked, such as one of
// SettleTx, is not renewed, and named by the error.
func (s *Store) Extend(ctx context.Context, claims []store.Claim, lease time.Duration) (lost []store.Claim, err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	var bad damage
	for chunk := range slices.Chunk(claims, extendChunk) {
		gone, failed, err := s.extend(ctx, chunk, lease)
		if err != nil {
			return nil, s.gaveUp("extend", err)
		}
		lost = append(lost, gone...)
		bad.claims, bad.cause = append(bad.claims, failed.claims...), cmp.Or(bad.cause, failed.cause)
	}
	return lost, bad.err()
}

// extend extends claims in one transaction.
func (s *Store) extend(ctx context.Context, claims []store.Claim, lease time.Duration) (lost []store.Claim, bad damage, err error) {
	var ids []any
	for _, c := range claims {
		ids = append(ids, c.ID[:])
	}
	in := list(len(ids))
	text := s.t.begin + "SELECT id FROM " + s.t.records + " FORCE INDEX (PRIMARY) WHERE id IN " + in + "; " + s.t.extendLock + in + " FOR UPDATE SKIP LOCKED" + s.t.header
	var renewed []any
	err = s.inOwn(ctx, text, slices.Concat(ids, ids), func(a *answer) (string, []any) {
		lost, bad, renewed = nil, damage{}, nil
		for _, c := range claims {
			switch r := a.row(c.ID); {
			case !r.stored && a.seen[c.ID]:
				bad.add(c, undone{fmt.Errorf("mysql: another transaction has the record %v locked", c.ID)})
			case r.broken != nil:
				bad.add(c, r.broken)
			case r.State != store.Running || r.Fence != c.Fence:
				lost = append(lost, c)
			default:
				renewed = append(renewed, c.ID[:])
			}
		}
		if len(renewed) == 0 {
			return "", nil
		}
		end := a.now + span(lease)
		return s.t.extend + list(len(renewed)), append([]any{end, end, end}, renewed...)
	})
	if err == nil && s.late.Load() && len(lost) > 0 && len(renewed) == 0 {
		err = s.confirm(ctx)
	}
	return lost, bad, err
}
