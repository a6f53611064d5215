package dynamodb

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/internal/rules"
)

// Settle implements store.Store. It is one write while the claim is running.
func (s *Store) Settle(ctx context.Context, c store.Claim, out store.Settlement, keep store.Retention) error {
	if err := checkOutcome(out); err != nil {
		return err
	}
	_, err := s.change(ctx, c.ID, running(c), func(v view) (*write, error) {
		change, err := rules.OnSettle(v.record(), c, out, at(v.now))
		if change == rules.None {
			return nil, err
		}
		return &write{to: settled(v, out, keep)}, nil
	})
	return err
}

func checkOutcome(out store.Settlement) error {
	if !out.State.Settled() {
		return fmt.Errorf("dynamodb: %w: an outcome is completed or failed, not %v", store.ErrInvalid, out.State)
	}
	if size := out.Result.Size(); size > MaxResult {
		return fmt.Errorf("dynamodb: %w: the result has %d bytes; at most %d fit", store.ErrInvalid, size, MaxResult)
	}
	return nil
}

// settled is the record with its outcome.
func settled(v view, out store.Settlement, keep store.Retention) *node {
	to := v.with(out.State, times{settled: v.now, expire: v.now + span(keep.Result), forget: v.now + span(keep.Tombstone)})
	if to.gone = out.Gone; !out.Gone {
		to.result = out.Result
	}
	return to
}

// Release implements store.Store.
func (s *Store) Release(ctx context.Context, c store.Claim, keep store.Retention) error {
	_, err := s.change(ctx, c.ID, running(c), func(v view) (*write, error) {
		change, err := rules.OnRelease(v.record(), c)
		if change == rules.None {
			return nil, err
		}
		return &write{to: v.with(store.Retryable, times{settled: v.now, forget: v.now + span(keep.Result)})}, nil
	})
	return err
}

// discard removes the result of a settled record.
func discard(v view) *write {
	to := v.with(v.state, v.times)
	to.gone, to.expire, to.tx = true, min(v.now, v.expire), v.tx
	return &write{to: to}
}

// buried is how long the tombstone of a damaged record is kept.
const buried = 30 * 24 * time.Hour

// Expire implements store.Browser. Backups of the table and its streams have the bytes until DynamoDB deletes them.
func (s *Store) Expire(ctx context.Context, c store.Claim) error {
	v, err := s.change(ctx, c.ID, nil, func(v view) (*write, error) {
		if _, err := rules.OnExpire(v.record(), c); err != nil || v.gone {
			return nil, err
		}
		return discard(v), nil
	})
	if !errors.Is(err, store.ErrDamaged) {
		return err
	}
	return s.bury(ctx, v.node, c)
}

// bury replaces a damaged record by a tombstone, if it has the fence of the claim, or neither has one.
func (s *Store) bury(ctx context.Context, n *node, c store.Claim) error {
	now, err := s.now()
	if err != nil {
		return err
	}
	if n.fence != c.Fence {
		return store.ErrFenced
	}
	v := view{node: &node{id: c.ID, head: head{owner: c.Owner, fence: max(c.Fence, 1), attempt: 1, claimed: now.UnixMilli()}}, now: now.UnixMilli()}
	to := v.with(store.Failed, times{settled: v.now, expire: v.now, forget: v.now + span(buried)})
	to.gone = true
	e := &expression{}
	var condition string
	if c.Fence != 0 {
		condition = e.name(attrFence) + " = " + e.value("fence", numberOf(c.Fence))
	} else {
		condition = "attribute_exists(" + e.name(attrID) + ") AND NOT attribute_type(" + e.name(attrFence) + ", " + e.value("number", textOf("N")) + ")"
	}
	_, err = s.db.PutItem(ctx, &dynamodb.PutItemInput{TableName: &s.table, Item: to.marshal(s.grace), ConditionExpression: &condition,
		ExpressionAttributeNames: e.names, ExpressionAttributeValues: e.values}, once)
	if _, changed := conflict(err); changed {
		return store.ErrFenced
	}
	if err != nil {
		return fmt.Errorf("dynamodb: write %v: %w", c.ID, err)
	}
	return nil
}
