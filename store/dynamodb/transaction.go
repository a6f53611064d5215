package dynamodb

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/smithy-go"

	"github.com/stet-go/stet/internal/timer"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/internal/rules"
)

// maxItems is how many items one transaction of DynamoDB has.
const maxItems = 100

// Tx collects the writes of a transaction, which DynamoDB executes together at its end. The zero value is an
// empty transaction. It is not safe for concurrent use.
type Tx struct {
	items   []types.TransactWriteItem
	outcome map[int]bool // the items that write outcomes
}

// Add adds writes, each a Put, Update, Delete or ConditionCheck, as of TransactWriteItems. Nothing is sent
// before the end of the transaction. A transaction has at most 99 of them beside one outcome, for different items.
func (tx *Tx) Add(items ...types.TransactWriteItem) { tx.items = append(tx.items, items...) }

func (tx *Tx) addOutcome(i types.TransactWriteItem) {
	if tx.outcome == nil {
		tx.outcome = make(map[int]bool)
	}
	tx.outcome[len(tx.items)] = true
	tx.Add(i)
}

// SettleTx implements store.TxStore. Commit then writes the outcome, or returns an error that wraps
// store.ErrFenced if the record has changed since.
func (s *Store) SettleTx(ctx context.Context, tx *Tx, c store.Claim, out store.Settlement, keep store.Retention) error {
	if err := checkOutcome(out); err != nil {
		return err
	}
	_, err := s.change(ctx, c.ID, nil, func(v view) (*write, error) {
		change, err := rules.OnSettle(v.record(), c, out, at(v.now))
		if change == rules.Settle {
			tx.addOutcome(s.outcomeOf(v, settled(v, out, keep), false))
			return nil, nil
		}
		if err == nil {
			err = fmt.Errorf("%w: an earlier transaction has stored this outcome", store.ErrFenced)
		}
		return nil, err
	})
	return err
}

// outcomeOf is the write of an outcome in a transaction, if the record is as in v.
func (s *Store) outcomeOf(v view, to *node, whole bool) types.TransactWriteItem {
	e := &expression{}
	condition := e.unchanged(v, false)
	if whole {
		return types.TransactWriteItem{Put: &types.Put{TableName: &s.table, Item: to.marshal(s.grace), ConditionExpression: &condition,
			ExpressionAttributeNames: e.names, ExpressionAttributeValues: e.values}}
	}
	update := e.update(to.changing(s.grace))
	return types.TransactWriteItem{Update: &types.Update{TableName: &s.table, Key: keyOf(v.id), UpdateExpression: &update,
		ConditionExpression: &condition, ExpressionAttributeNames: e.names, ExpressionAttributeValues: e.values}}
}

// Commit executes the writes of tx together, or none of them. An error that wraps store.ErrFenced says that an
// outcome of SettleTx is not accepted any more, a *store.AbortedError that a condition of another write is not
// met. If it wraps store.ErrUnknown, the writes may have been executed; after any other error they were not.
func (s *Store) Commit(ctx context.Context, tx *Tx) error {
	if len(tx.items) == 0 {
		return nil
	}
	unsure, err := s.transact(ctx, tx)
	if err != nil && unsure {
		return fmt.Errorf("dynamodb: %w: a commit was not acknowledged: %s", store.ErrUnknown, err.Error())
	}
	return err
}

// transact is Commit. unsure: an earlier request was not acknowledged, and may be executed later. All
// requests have one token: DynamoDB executes them once.
func (s *Store) transact(ctx context.Context, tx *Tx) (unsure bool, err error) {
	if len(tx.items) > maxItems {
		return false, &store.AbortedError{Cause: fmt.Errorf("dynamodb: a transaction has %d writes, with the outcome; at most %d are possible", len(tx.items), maxItems)}
	}
	owner := store.NewOwner() // 32 digits; a token has 36 at most
	in := &dynamodb.TransactWriteItemsInput{TransactItems: tx.items, ClientRequestToken: aws.String(owner.String())}
	for try := 1; ; try++ {
		sent := s.clock()
		out, err := s.db.TransactWriteItems(ctx, in, once)
		if err == nil {
			s.checkClock(out.ResultMetadata, sent)
			return false, nil
		}
		unsure = unsure || !refused(err)
		if final := tx.refusal(err); final != nil {
			return unsure, final
		}
		if try == tries || !timer.Sleep(ctx, timer.Backoff(try, retryLeast, retryMost)) {
			return unsure, fmt.Errorf("dynamodb: commit: %w", err)
		}
	}
}

// refusal returns the error of a transaction that no repetition changes; nil if the next try may succeed.
func (tx *Tx) refusal(err error) error {
	var cancelled *types.TransactionCanceledException
	if !errors.As(err, &cancelled) {
		var api smithy.APIError
		switch {
		case again(err):
			return nil
		case errors.As(err, &api) && api.ErrorCode() == "ValidationException": // of the writes
			return &store.AbortedError{Cause: fmt.Errorf("dynamodb: commit: %w", err)}
		}
		return fmt.Errorf("dynamodb: commit: %w", err)
	}
	var aborted error
	for i, r := range cancelled.CancellationReasons {
		switch code := aws.ToString(r.Code); code {
		case "", "None":
		case "TransactionConflict", "ProvisionedThroughputExceeded", "ThrottlingError":
			return nil
		case "ConditionalCheckFailed":
			if tx.outcome[i] {
				return fmt.Errorf("dynamodb: commit: %w: the record has changed", store.ErrFenced)
			}
			fallthrough
		default:
			aborted = &store.AbortedError{Cause: fmt.Errorf("dynamodb: commit: write %d: %s: %s", i+1, code, aws.ToString(r.Message))}
		}
	}
	if aborted == nil {
		aborted = &store.AbortedError{Cause: fmt.Errorf("dynamodb: commit: %w", err)}
	}
	return aborted
}

// RunTx implements store.TxStore. It first writes a marker, which keeps other calls of the key away for
// req.Lease. If fn runs for longer, another call may take its place; then this one commits nothing. A process
// that ends in fn leaves the marker until then, and no effect.
func (s *Store) RunTx(ctx context.Context, req store.ClaimRequest, keep store.Retention, fn func(context.Context, *Tx, store.Record) (store.Settlement, error)) (store.Record, error) {
	if err := checkLabel(req.Label); err != nil {
		return store.Record{}, err
	}
	v, err := s.mark(ctx, req)
	switch {
	case errors.Is(err, store.ErrMismatch):
		return v.seen(), err
	case err != nil:
		return store.Record{}, err
	case !v.locked(v.now):
		return v.record(), nil
	case v.tx.Owner != req.Owner:
		return inTx(v), nil
	}
	if err := s.distrusted(); err != nil {
		return store.Record{}, err
	}
	return s.runMarked(ctx, v, req, keep, fn)
}

// inTx is the record of a transaction of another call.
func inTx(v view) store.Record {
	return store.Record{ID: v.id, State: store.Running, InTx: true, Fingerprint: v.tx.Fingerprint}
}

// mark writes the marker of a transaction, if the key is free.
func (s *Store) mark(ctx context.Context, req store.ClaimRequest) (view, error) {
	return s.change(ctx, req.ID, &node{id: req.ID}, func(v view) (*write, error) {
		if v.locked(v.now) && v.tx.Owner == req.Owner {
			return nil, nil // the reply was lost
		}
		change, err := rules.OnClaim(v.seen(), req)
		switch change {
		case rules.Grant:
			to := *v.node
			to.exists = true
			to.tx = &marker{Owner: req.Owner, Fingerprint: req.Fingerprint, Fence: v.nextFence(), Until: v.now + max(span(req.Lease), 1)}
			return &write{to: &to, whole: true}, nil
		case rules.MarkUnknown:
			return markUnknown(v), nil
		}
		return nil, err
	})
}

// runMarked runs fn under the marker of v, and commits.
func (s *Store) runMarked(ctx context.Context, v view, req store.ClaimRequest, keep store.Retention, fn func(context.Context, *Tx, store.Record) (store.Settlement, error)) (store.Record, error) {
	open := true
	defer func() { // also if fn panics
		if open {
			_ = s.unmark(ctx, v)
		}
	}()
	run := store.Record{ID: req.ID, Scope: req.Scope, Label: req.Label, State: store.Running, Fingerprint: req.Fingerprint, Owner: req.Owner,
		Fence: v.tx.Fence, Attempt: v.record().Attempt + 1, LeaseLeft: left(v.tx.Until, v.now), ClaimedAt: at(v.now)}
	tx := &Tx{}
	out, err := fn(ctx, tx, run)
	if err != nil {
		return store.Record{}, err
	}
	if err := checkOutcome(out); err != nil {
		return store.Record{}, err
	}
	if err := ctx.Err(); err != nil {
		return store.Record{}, context.Cause(ctx)
	}
	now, err := s.now()
	if err != nil {
		return store.Record{}, err
	}
	end := view{node: &node{id: req.ID, head: head{scope: run.Scope, fingerprint: run.Fingerprint, owner: run.Owner, label: run.Label,
		fence: run.Fence, attempt: run.Attempt, claimed: v.now}}, now: now.UnixMilli()}
	to := settled(end, out, keep)
	tx.addOutcome(s.outcomeOf(v, to, true))
	unsure, err := s.transact(ctx, tx)
	if open = false; err != nil {
		return s.afterCommit(ctx, v, req, unsure, err)
	}
	return to.record(end.now), nil
}

// rollbackTime limits the requests after the end of a transaction, also after the end of its context.
const rollbackTime = 10 * time.Second

// unmark ends the marker of v. The transaction then cannot commit any more.
func (s *Store) unmark(ctx context.Context, v view) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTime)
	defer cancel()
	_, err := s.change(ctx, v.id, v.node, func(now view) (*write, error) {
		if now.tx == nil || now.tx.Fence != v.tx.Fence || now.tx.Until == 1 {
			return nil, nil
		}
		to := *now.node
		ended := *now.tx
		ended.Until = 1 // in the past
		to.tx = &ended
		return &write{to: &to}, nil
	})
	return err
}

// afterCommit finds out what became of a transaction whose commit failed.
func (s *Store) afterCommit(ctx context.Context, v view, req store.ClaimRequest, unsure bool, cause error) (store.Record, error) {
	err := s.unmark(ctx, v)
	if err != nil && unsure {
		return store.Record{}, fmt.Errorf("dynamodb: %w: %s; then: %s", store.ErrUnknown, cause.Error(), err.Error())
	}
	if !unsure && !errors.Is(cause, store.ErrFenced) {
		return store.Record{}, cause
	}
	after, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTime)
	defer cancel()
	now, err := s.change(after, req.ID, nil, func(view) (*write, error) { return nil, nil })
	switch {
	case err != nil && unsure:
		return store.Record{}, fmt.Errorf("dynamodb: %w: %s; then: %s", store.ErrUnknown, cause.Error(), err.Error())
	case err != nil:
		return store.Record{}, err
	case now.fence == v.tx.Fence && now.owner == req.Owner && now.state.Settled():
		return now.record(), nil // it was committed
	case now.locked(now.now):
		return inTx(now), nil
	case now.record().State == store.None || now.state == store.Retryable:
		return store.Record{}, fmt.Errorf("dynamodb: the transaction was not committed: %s", cause.Error())
	case now.fingerprint != req.Fingerprint:
		return now.record(), store.ErrMismatch
	}
	return now.record(), nil
}
