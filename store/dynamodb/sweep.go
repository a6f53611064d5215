package dynamodb

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/internal/calls"
)

// sweepPage is how many records of a partition of the index one request lists.
const sweepPage = 200

// Sweep implements store.Sweeper. It queries the 16 partitions of the index for records that are due, and
// reads each of them. The index follows the table after some milliseconds.
func (s *Store) Sweep(ctx context.Context, limit int) (store.Swept, error) {
	sw := &sweep{s: s, left: limit}
	for shard := range int64(shards) {
		if sw.left <= 0 {
			break
		}
		if err := sw.shard(ctx, shard); err != nil {
			return sw.swept, err
		}
	}
	sw.swept.More = limit > 0 && sw.left <= 0
	return sw.swept, cmp.Or(ctx.Err(), sw.bad.Err())
}

// sweep is one call of Sweep.
type sweep struct {
	s     *Store
	mu    sync.Mutex
	swept store.Swept
	left  int // of the limit
	bad   calls.Partial
}

// shard processes the records of a partition that are due.
func (sw *sweep) shard(ctx context.Context, shard int64) error {
	now, err := sw.s.timeNow(ctx)
	if err != nil {
		return err
	}
	e := &expression{}
	due := e.name(attrShard) + " = " + e.value("shard", numberOf(shard)) + " AND " + e.name(attrDue) + " <= " + e.value("now", numberOf(now.UnixMilli()))
	pages := dynamodb.NewQueryPaginator(sw.s.db, &dynamodb.QueryInput{TableName: &sw.s.table, IndexName: aws.String(dueIndex), Limit: aws.Int32(sweepPage),
		KeyConditionExpression: &due, ExpressionAttributeNames: e.names, ExpressionAttributeValues: e.values})
	for pages.HasMorePages() && sw.left > 0 {
		sent := sw.s.clock()
		page, err := pages.NextPage(ctx)
		if err != nil {
			return fmt.Errorf("dynamodb: query the index %s: %w", dueIndex, err)
		}
		sw.s.checkClock(page.ResultMetadata, sent)
		var ids []store.ID
		for _, it := range page.Items {
			if id, ok := idOf(it); ok {
				ids = append(ids, id)
			}
		}
		for len(ids) > 0 && sw.left > 0 && ctx.Err() == nil {
			n := min(sw.left, len(ids)) // damaged records are not counted
			calls.Each(n, func(i int) { sw.one(ctx, ids[i]) })
			ids = ids[n:]
		}
	}
	return nil
}

// idOf returns the ID of an item, if it is one of a record.
func idOf(it item) (id store.ID, ok bool) {
	v, ok := it[attrID].(*types.AttributeValueMemberB)
	if !ok || len(v.Value) != len(id) {
		return id, false
	}
	return store.ID(v.Value), true
}

// errLeave ends a change of a record that is not due any more.
var errLeave = errors.New("not due")

// one processes a record that is due.
func (sw *sweep) one(ctx context.Context, id store.ID) {
	var did *int
	v, err := sw.s.change(ctx, id, nil, func(v view) (w *write, err error) {
		if w, did = sw.plan(v); w == nil {
			return nil, errLeave
		}
		return w, nil
	})
	if err != nil && !errors.Is(err, errLeave) {
		c := store.Claim{ID: id}
		if v.node != nil {
			c.Fence = v.fence
		}
		sw.bad.Add(c, err)
		if errors.Is(err, store.ErrDamaged) { // it is due in every sweep, and must not use up the limit
			return
		}
	}
	sw.mu.Lock()
	defer sw.mu.Unlock()
	if sw.left--; err == nil {
		*did++
	}
}

// plan returns the due change of a record, and the number to count it in.
func (sw *sweep) plan(v view) (*write, *int) {
	grace := sw.s.grace
	switch {
	case !v.exists || v.locked(v.now):
		return nil, nil
	case v.forgotten(v.now) && v.deletable(v.now, grace):
		return &write{}, &sw.swept.Purged
	case v.state == store.None && v.deletable(v.now, grace):
		return &write{}, new(int) // transactions that were rolled back
	case v.state == store.Running && v.record().LeaseLeft <= 0:
		return markUnknown(v), &sw.swept.MarkedUnknown
	case v.state.Settled() && !v.gone && v.now >= v.expire:
		return discard(v), &sw.swept.Expired
	}
	return nil, nil
}
