package dynamodb

import (
	"context"
	"errors"
	"fmt"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/stet-go/stet/store"
)

// browseItems is how many items one Browse reads.
const browseItems = 1000

// listed are the attributes that Browse reads: all but the result.
var listed = []string{attrID, attrTx, attrScope, attrFingerprint, attrOwner, attrClass, attrName, attrRef, attrFence, attrAttempt, attrClaimed,
	attrState, attrLease, attrSettled, attrExpire, attrForget, attrGone}

// Browse implements store.Browser. It reads the table, 1,000 items at most a call, and DynamoDB charges for all of
// them. Records are in the order of the table's partitions.
func (s *Store) Browse(ctx context.Context, q store.Query) (page store.Page, err error) {
	if err := q.Check(); err != nil {
		return page, err
	}
	now, err := s.timeNow(ctx)
	if err != nil {
		return page, err
	}
	if q.Limit == 0 {
		q.Limit = store.DefaultBrowse
	}
	var after item
	if q.After != "" {
		id, err := store.ParseID(q.After)
		if err != nil {
			return page, fmt.Errorf("dynamodb: %w: Query.After is no Page.Next of this store", store.ErrInvalid)
		}
		after = keyOf(id)
	}
	e := &expression{}
	fields := ""
	for _, name := range listed {
		if fields != "" {
			fields += ", "
		}
		fields += e.name(name)
	}
	for read := 0; ; {
		got, err := s.db.Scan(ctx, &dynamodb.ScanInput{TableName: &s.table, ConsistentRead: aws.Bool(true), ExclusiveStartKey: after,
			Limit: aws.Int32(int32(browseItems - read)), ProjectionExpression: &fields, ExpressionAttributeNames: e.names})
		if err != nil {
			return page, fmt.Errorf("dynamodb: scan the table %q: %w", s.table, err)
		}
		for _, it := range got.Items {
			id, ok := idOf(it)
			if read++; !ok {
				continue
			}
			if len(page.Records) == q.Limit {
				return page, nil // Next is that of the record before
			}
			if rec, ok := match(id, it, q, now.UnixMilli()); ok {
				page.Records = append(page.Records, rec)
			}
			page.Next = id.String()
		}
		after = got.LastEvaluatedKey
		if len(after) == 0 {
			page.Next = ""
			return page, nil
		}
		if read >= browseItems {
			return page, nil
		}
	}
}

// match returns the record of an item, if it matches.
func match(id store.ID, it item, q store.Query, now millis) (store.Record, bool) {
	n, err := unmarshal(id, it)
	if errors.Is(err, store.ErrDamaged) {
		rec := store.Record{ID: id, Scope: n.scope, Owner: n.owner, Fence: n.fence, Damage: err.Error()}
		return rec, len(q.States) == 0 && q.OlderThan == 0 && q.NewerThan == 0
	}
	rec := n.record(now)
	return rec, rec.State != store.None && q.Match(rec, left(now, n.claimed))
}
