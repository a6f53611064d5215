package dynamodb

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/smithy-go/middleware"

	"github.com/stet-go/stet/internal/timer"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/internal/calls"
)

const (
	tries      = 12 // of one change, while others change the record or DynamoDB throttles
	trustItems = 3  // of these, the first may use the item that a refused write returns
	retryLeast = 20 * time.Millisecond
	retryMost  = time.Second
)

// once has the client send a request once: change repeats it, and must know.
func once(o *dynamodb.Options) { o.Retryer = aws.NopRetryer{} }

// view is a record at a time.
type view struct {
	*node
	now    millis
	unsure bool // an earlier write of this call was not acknowledged
}

// seen is the record, or the transaction that runs.
func (v view) seen() store.Record { return v.node.seen(v.now) }

// record is the record, without a transaction that runs.
func (v view) record() store.Record { return v.node.record(v.now) }

// write is a change of a record: to a whole item, to other attributes of the item, or to nothing.
type write struct {
	to    *node // nil: delete the item
	whole bool  // also what a claim writes
}

// load reads a record. With an error that wraps store.ErrDamaged, the ID is set, and the fence if it is readable.
func (s *Store) load(ctx context.Context, id store.ID) (*node, error) {
	sent := s.clock()
	got, err := s.db.GetItem(ctx, &dynamodb.GetItemInput{TableName: &s.table, Key: keyOf(id), ConsistentRead: aws.Bool(true)}, once)
	if err != nil {
		return &node{id: id}, fmt.Errorf("dynamodb: read %v: %w", id, err)
	}
	s.checkClock(got.ResultMetadata, sent)
	return unmarshal(id, got.Item)
}

// change makes the change that plan returns of a record, until no other write came in between. Plan first gets
// guess, if that is not nil, then the record. A plan of nil changes nothing. After an unacknowledged write,
// plan must return an error unless it recognises its own change, or makes it again; the effect is then unknown.
// The error wraps store.ErrNotDone if no write had an effect.
func (s *Store) change(ctx context.Context, id store.ID, guess *node, plan func(view) (*write, error)) (view, error) {
	v := view{node: guess}
	fail := func(err error) (view, error) {
		if v.unsure { // the error can wrap ErrNotDone or ErrFenced
			return v, fmt.Errorf("dynamodb: %v: a write was not acknowledged: %s", id, err.Error())
		}
		return v, calls.NotDone(err)
	}
	var last error
	for try := 1; try <= tries; try++ {
		if err := ctx.Err(); err != nil {
			return fail(errors.Join(context.Cause(ctx), last))
		}
		w, err := s.plan(ctx, id, &v, plan)
		switch {
		case errors.Is(err, store.ErrDamaged) || w == nil && err == nil:
			return v, err
		case v.node != nil && err != nil && v.unsure:
			return fail(err)
		case v.node != nil && err != nil:
			return v, err
		}
		if err == nil {
			if err = s.commit(ctx, v, w); err == nil {
				return view{node: w.to, now: v.now}, nil
			}
			stands, changed := conflict(err) // its Date was compared, so plan does not trust a wrong clock
			v.node = nil
			if changed && try < trustItems {
				if v.node, err = unmarshal(id, stands); err != nil {
					return v, err
				}
			}
			if changed {
				last = fmt.Errorf("dynamodb: write %v: other calls change it", id)
				continue
			}
			err = fmt.Errorf("dynamodb: write %v: %w", id, err)
			v.unsure = v.unsure || !refused(err)
		}
		if last = err; !again(err) || !timer.Sleep(ctx, timer.Backoff(try, retryLeast, retryMost)) {
			return fail(last)
		}
	}
	return fail(fmt.Errorf("gave up after %d tries: %w", tries, last))
}

// plan reads the record if v has none, and the clock, and plans. An error with v.node nil is of the reading.
func (s *Store) plan(ctx context.Context, id store.ID, v *view, plan func(view) (*write, error)) (*write, error) {
	n := v.node
	if v.node = nil; n == nil || s.wrong.Load() != nil { // a response tells whether the clock is right now
		var err error
		if n, err = s.load(ctx, id); errors.Is(err, store.ErrDamaged) {
			v.node = n
			return nil, err
		} else if err != nil {
			return nil, err
		}
	}
	now, err := s.now()
	if err != nil {
		return nil, err
	}
	v.node, v.now = n, now.UnixMilli()
	return plan(*v)
}

// expression is a condition or an update, with its names and values.
type expression struct {
	names  map[string]string
	values item
}

// name returns the placeholder of an attribute: many names are reserved words.
func (e *expression) name(attr string) string {
	if e.names == nil {
		e.names = make(map[string]string)
	}
	e.names["#"+attr] = attr
	return "#" + attr
}

// value returns a placeholder of a value.
func (e *expression) value(name string, v types.AttributeValue) string {
	if e.values == nil {
		e.values = make(item)
	}
	e.values[":"+name] = v
	return ":" + name
}

// unchanged is the condition that the record is as in v, as far as a change depends on it. Times of a
// lease matter only to end it.
func (e *expression) unchanged(v view, lease bool) string {
	if !v.exists {
		return "attribute_not_exists(" + e.name(attrID) + ")"
	}
	is := func(attr string, v types.AttributeValue, has bool) string {
		if !has {
			return "attribute_not_exists(" + e.name(attr) + ")"
		}
		return e.name(attr) + " = " + e.value("was_"+attr, v)
	}
	all := []string{is(attrState, numberOf(int64(v.state)), v.state != store.None)}
	if v.state != store.None {
		all = append(all, is(attrFence, numberOf(v.fence), true))
	}
	if v.tx != nil {
		all = append(all, is(attrTx, v.tx.marshal(), true))
	} else {
		all = append(all, is(attrTx, nil, false))
	}
	if lease {
		all = append(all, is(attrLease, numberOf(v.lease), true))
	}
	return strings.Join(all, " AND ")
}

// update is the update expression for the attributes of a change.
func (e *expression) update(changes item) string {
	var set, remove []string
	for name, v := range changes {
		if v == nil {
			remove = append(remove, e.name(name))
			continue
		}
		set = append(set, e.name(name)+" = "+e.value(name, v))
	}
	slices.Sort(set)
	slices.Sort(remove)
	return "SET " + strings.Join(set, ", ") + " REMOVE " + strings.Join(remove, ", ")
}

// commit makes a change, if the record is as in v.
func (s *Store) commit(ctx context.Context, v view, w *write) error {
	e := &expression{}
	condition := e.unchanged(v, w.to != nil && w.to.state == store.Unknown)
	sent := s.clock()
	written, err := s.send(ctx, v, w, condition, e)
	if err != nil {
		s.checkRefusal(err, sent)
		return err
	}
	s.checkClock(written, sent)
	return nil
}

// send sends the write of a change.
func (s *Store) send(ctx context.Context, v view, w *write, condition string, e *expression) (middleware.Metadata, error) {
	const returned = types.ReturnValuesOnConditionCheckFailureAllOld
	var of middleware.Metadata
	switch {
	case w.to == nil:
		out, err := s.db.DeleteItem(ctx, &dynamodb.DeleteItemInput{TableName: &s.table, Key: keyOf(v.id), ConditionExpression: &condition,
			ExpressionAttributeNames: e.names, ExpressionAttributeValues: e.values, ReturnValuesOnConditionCheckFailure: returned}, once)
		if err == nil {
			of = out.ResultMetadata
		}
		return of, err
	case w.whole:
		out, err := s.db.PutItem(ctx, &dynamodb.PutItemInput{TableName: &s.table, Item: w.to.marshal(s.grace), ConditionExpression: &condition,
			ExpressionAttributeNames: e.names, ExpressionAttributeValues: e.values, ReturnValuesOnConditionCheckFailure: returned}, once)
		if err == nil {
			of = out.ResultMetadata
		}
		return of, err
	}
	update := e.update(w.to.changing(s.grace))
	out, err := s.db.UpdateItem(ctx, &dynamodb.UpdateItemInput{TableName: &s.table, Key: keyOf(v.id), UpdateExpression: &update, ConditionExpression: &condition,
		ExpressionAttributeNames: e.names, ExpressionAttributeValues: e.values, ReturnValuesOnConditionCheckFailure: returned}, once)
	if err == nil {
		of = out.ResultMetadata
	}
	return of, err
}
