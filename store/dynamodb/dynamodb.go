// Package dynamodb is the store for Amazon DynamoDB. It is for services that have DynamoDB and no
// SQL database, such as functions on AWS Lambda. See docs/dynamodb.md.
//
// A record is one item. Each change of it is one conditional write, which compares the state, the
// fence and what else the change depends on, so two calls never change the same record. TxStore's
// transactions are one TransactWriteItems: the service's items and the outcome are written
// together, or neither is.
//
// DynamoDB has no clock that a condition can use. So the clock is that of the caller's host. The
// store compares it with the Date of DynamoDB's responses, and refuses to work if they differ by
// more than Options.MaxSkew. Two hosts can therefore differ by twice MaxSkew, and a lease or a
// retention can end earlier or later by that much. An early end of a lease makes an operation
// unknown, never repeated.
//
// A fence is the time of its claim in microseconds, or one more than the fence before it, if that
// is greater. An item is deleted only when four times MaxSkew have passed since its last fence. So
// a later claim, from any host, has a greater fence.
package dynamodb

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/stet-go/stet/store"
)

// MaxResult is the greatest result that the store keeps, in bytes. An item of DynamoDB has 400 KB
// at most, with its label and its times.
const MaxResult = 380_000

const (
	defaultSkew = 5 * time.Second
	minSkew     = 2 * time.Second // the Date of a response is in whole seconds
	maxSkew     = time.Minute
)

// dueIndex is the index that Sweep reads.
const dueIndex = "stet-due"

// Options configure a Store. Table is required.
type Options struct {
	// Table is the name of the table, as CreateTable creates it.
	Table string
	// MaxSkew is how much the host's clock may differ from DynamoDB's. If it differs by more, every
	// call fails with an error that wraps store.ErrNotDone. From 2 s to 1 min. Default 5 s.
	MaxSkew time.Duration
}

// Store is a store.TxStore[*Tx], store.Sweeper, store.Browser and store.Limiter in one table of
// DynamoDB. It starts no goroutines and needs no Close. It is safe for concurrent use.
type Store struct {
	db    *dynamodb.Client
	table string
	skew  time.Duration
	clock func() time.Time
	wrong atomic.Pointer[string] // why the clock is wrong; nil: it is right
	grace millis                 // an item is deleted that long after its last fence
}

var _ interface {
	store.TxStore[*Tx]
	store.Sweeper
	store.Browser
	store.Limiter
} = (*Store)(nil)

// Open opens the store. It reads the description of the table, and refuses a table without the key
// and the index of CreateTable, and a host with a wrong clock. ctx bounds the call.
func Open(ctx context.Context, db *dynamodb.Client, o Options) (*Store, error) {
	o.MaxSkew = cmp.Or(o.MaxSkew, defaultSkew)
	switch {
	case db == nil:
		return nil, errors.New("dynamodb: Open needs a client; dynamodb.NewFromConfig makes one")
	case o.Table == "":
		return nil, errors.New("dynamodb: Options.Table is empty; it must name the table that CreateTable created")
	case o.MaxSkew < minSkew || o.MaxSkew > maxSkew:
		return nil, fmt.Errorf("dynamodb: Options.MaxSkew is %v; it must be %v to %v", o.MaxSkew, minSkew, maxSkew)
	}
	s := &Store{db: db, table: o.Table, skew: o.MaxSkew, clock: time.Now, grace: span(4 * o.MaxSkew)}
	sent := s.clock()
	d, err := db.DescribeTable(ctx, &dynamodb.DescribeTableInput{TableName: &s.table})
	if err != nil {
		return nil, fmt.Errorf("dynamodb: describe the table %q: %w", o.Table, err)
	}
	s.checkClock(d.ResultMetadata, sent)
	if _, err := s.now(); err != nil {
		return nil, err
	}
	return s, s.checkTable(d.Table)
}

// checkTable refuses a table that CreateTable cannot have created.
func (s *Store) checkTable(t *types.TableDescription) error {
	if len(t.Replicas) > 0 {
		return fmt.Errorf("dynamodb: %q is a global table, in which two Regions can grant one claim; use a table of one Region", s.table)
	}
	if !hasKey(t.KeySchema, attrID) {
		return fmt.Errorf("dynamodb: the key of the table %q is not %q alone; create the table by CreateTable", s.table, attrID)
	}
	for _, i := range t.GlobalSecondaryIndexes {
		if aws.ToString(i.IndexName) == dueIndex && hasKey(i.KeySchema, attrShard, attrDue) {
			return nil
		}
	}
	return fmt.Errorf("dynamodb: the table %q has no index %q on %q and %q; create the table by CreateTable", s.table, dueIndex, attrShard, attrDue)
}

func hasKey(schema []types.KeySchemaElement, names ...string) bool {
	return slices.EqualFunc(schema, names, func(e types.KeySchemaElement, name string) bool { return aws.ToString(e.AttributeName) == name })
}

// CreateTable creates the table, paid by request, and waits until it is active. DynamoDB then
// deletes forgotten records by their attribute "ttl". A table that exists keeps its key and its
// indexes, so CreateTable may be called again. ctx bounds the call; creation takes some seconds.
func CreateTable(ctx context.Context, db *dynamodb.Client, table string) error {
	key := func(name string, t types.KeyType) types.KeySchemaElement {
		return types.KeySchemaElement{AttributeName: &name, KeyType: t}
	}
	of := func(name string, t types.ScalarAttributeType) types.AttributeDefinition {
		return types.AttributeDefinition{AttributeName: &name, AttributeType: t}
	}
	_, err := db.CreateTable(ctx, &dynamodb.CreateTableInput{
		TableName:   &table,
		BillingMode: types.BillingModePayPerRequest,
		AttributeDefinitions: []types.AttributeDefinition{
			of(attrID, types.ScalarAttributeTypeB), of(attrShard, types.ScalarAttributeTypeN), of(attrDue, types.ScalarAttributeTypeN)},
		KeySchema: []types.KeySchemaElement{key(attrID, types.KeyTypeHash)},
		GlobalSecondaryIndexes: []types.GlobalSecondaryIndex{{
			IndexName:  aws.String(dueIndex),
			KeySchema:  []types.KeySchemaElement{key(attrShard, types.KeyTypeHash), key(attrDue, types.KeyTypeRange)},
			Projection: &types.Projection{ProjectionType: types.ProjectionTypeKeysOnly},
		}},
	})
	var exists *types.ResourceInUseException
	if err != nil && !errors.As(err, &exists) { // another call may be creating it
		return fmt.Errorf("dynamodb: create the table %q: %w", table, err)
	}
	const creation = 5 * time.Minute
	if err := dynamodb.NewTableExistsWaiter(db).Wait(ctx, &dynamodb.DescribeTableInput{TableName: &table}, creation); err != nil {
		return fmt.Errorf("dynamodb: wait for the table %q: %w", table, err)
	}
	ttl, err := db.DescribeTimeToLive(ctx, &dynamodb.DescribeTimeToLiveInput{TableName: &table})
	if err == nil && ttl.TimeToLiveDescription != nil && slices.Contains([]types.TimeToLiveStatus{types.TimeToLiveStatusEnabled, types.TimeToLiveStatusEnabling}, ttl.TimeToLiveDescription.TimeToLiveStatus) {
		return nil
	}
	_, err = db.UpdateTimeToLive(ctx, &dynamodb.UpdateTimeToLiveInput{TableName: &table,
		TimeToLiveSpecification: &types.TimeToLiveSpecification{AttributeName: aws.String(attrTTL), Enabled: aws.Bool(true)}})
	if err != nil {
		return fmt.Errorf("dynamodb: set the attribute %q of the table %q, by which items are deleted: %w", attrTTL, table, err)
	}
	return nil
}

// MaxResult implements store.Limiter.
func (s *Store) MaxResult() int { return MaxResult }
