package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/internal/rules"
)

// Settle implements store.Store.
func (s *Store) Settle(ctx context.Context, c store.Claim, out store.Settlement, keep store.Retention) error {
	if !out.State.Settled() {
		return fmt.Errorf("zookeeper: %w: an outcome is completed or failed, not %v", store.ErrInvalid, out.State)
	}
	if size := out.Result.Size(); size > MaxResult {
		return fmt.Errorf("zookeeper: %w: the result has %d bytes; at most %d fit", store.ErrInvalid, size, MaxResult)
	}
	_, err := s.change(ctx, c.ID, func(v view) (*write, error) {
		change, err := rules.OnSettle(v.record(), c, out, time.UnixMilli(v.now))
		if change == rules.None {
			return nil, err
		}
		to := v.with(out.State, times{Expire: span(keep.Result), Forget: span(keep.Tombstone)})
		if to.Gone = out.Gone; !out.Gone {
			to.result = out.Result
		}
		to.schedule(v.now)
		return &write{to: to}, nil
	})
	return err
}

// Release implements store.Store.
func (s *Store) Release(ctx context.Context, c store.Claim, keep store.Retention) error {
	_, err := s.change(ctx, c.ID, func(v view) (*write, error) {
		change, err := rules.OnRelease(v.record(), c)
		if change == rules.None {
			return nil, err
		}
		to := v.with(store.Retryable, times{Forget: span(keep.Result)})
		to.schedule(v.now)
		return &write{to: to}, nil
	})
	return err
}

// buried is how long the tombstone of a damaged record is kept.
const buried = 30 * 24 * time.Hour

// Expire implements store.Browser. The servers' transaction logs and snapshots have the bytes until
// ZooKeeper purges them. A server that lags behind can return them until it has caught up.
func (s *Store) Expire(ctx context.Context, c store.Claim) error {
	_, err := s.change(ctx, c.ID, func(v view) (*write, error) {
		_, err := rules.OnExpire(v.record(), c)
		if err != nil || v.Gone {
			return nil, err
		}
		return discard(v, v.now-v.base()), nil
	})
	if !errors.Is(err, store.ErrDamaged) {
		return err
	}
	v, err := s.see(ctx, c.ID, true, 0)
	switch {
	case !errors.Is(err, store.ErrDamaged):
		return fmt.Errorf("zookeeper: %v has changed; list it again: %w", c.ID, errors.Join(store.ErrFenced, err))
	case v.stat.Czxid != c.Fence:
		return store.ErrFenced
	}
	if v.now, err = s.now(ctx); err != nil {
		return err
	}
	v.head = head{Scope: make([]byte, len(store.ID{})), Fingerprint: make([]byte, len(store.Fingerprint{})), Owner: c.Owner[:]}
	to := v.with(store.Failed, times{Forget: span(buried)})
	to.Gone = true
	to.schedule(v.now)
	_, err = s.commit(ctx, v, &write{to: to})
	return err
}

// discard removes the result of a settled record, which expires at that time.
func discard(v view, expires millis) *write {
	to := v.again()
	to.result, to.Gone, to.End.Expire = store.Result{}, true, min(expires, to.End.Expire)
	to.schedule(v.now)
	return &write{to: to}
}
