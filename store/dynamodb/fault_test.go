package dynamodb

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/stet-go/stet/store"
)

// network is a transport that loses requests, replies, or has the server refuse them.
type network struct {
	http.RoundTripper
	mu     sync.Mutex
	faults map[string][]string // by operation: "request", "reply", or the code of an error
	before func()              // called before a reply is lost; nil: not
}

var errLost = errors.New("connection reset")

func (n *network) next(r *http.Request) (fault string) {
	_, op, _ := strings.Cut(r.Header.Get("X-Amz-Target"), ".")
	n.mu.Lock()
	defer n.mu.Unlock()
	if all := n.faults[op]; len(all) > 0 {
		fault, n.faults[op] = all[0], all[1:]
	}
	return fault
}

func (n *network) RoundTrip(r *http.Request) (*http.Response, error) {
	switch fault := n.next(r); fault {
	case "":
		return n.RoundTripper.RoundTrip(r)
	case "request":
		return nil, errLost
	case "reply":
		res, err := n.RoundTripper.RoundTrip(r)
		if err == nil {
			_, _ = io.Copy(io.Discard, res.Body)
			_ = res.Body.Close()
		}
		if n.before != nil {
			n.before()
		}
		return nil, errLost
	default:
		body := fmt.Sprintf(`{"__type":"com.amazonaws.dynamodb.v20120810#%s","message":"a fault"}`, fault)
		return &http.Response{StatusCode: http.StatusBadRequest, Header: http.Header{"Content-Type": {"application/x-amz-json-1.0"}},
			Body: io.NopCloser(strings.NewReader(body)), Request: r}, nil
	}
}

// lose has the next requests of an operation fail.
func (n *network) lose(op string, faults ...string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.faults[op] = faults
}

// faultyStore opens a store whose network has faults.
func faultyStore(t *testing.T) (*Store, *network) {
	t.Helper()
	n := &network{RoundTripper: idle(t), faults: make(map[string][]string)}
	db := client(t, n)
	s, err := Open(t.Context(), db, Options{Table: newTable(t, db)})
	if err != nil {
		t.Fatal(err)
	}
	return s, n
}

func TestLostRepliesAndRequestsChangeNoAnswer(t *testing.T) {
	s, n := faultyStore(t)
	for _, faults := range [][]string{{"reply"}, {"request"}, {"reply", "reply"}, {"request", "reply"}, {"ThrottlingException", "reply"}} {
		name := strings.Join(faults, ", ")
		req := request("lost " + name)
		n.lose("PutItem", faults...)
		rec := mustClaim(t, s, req)
		if rec.Attempt != 1 || rec.Owner != req.Owner {
			t.Errorf("%s of a claim lost: attempt %d; want the claim granted, attempt 1", name, rec.Attempt)
		}
		n.lose("UpdateItem", faults...)
		if lost, err := s.Extend(t.Context(), []store.Claim{rec.Claim()}, time.Hour); err != nil || len(lost) > 0 {
			t.Errorf("%s of a heartbeat lost: %d lost claims, %v", name, len(lost), err)
		}
		n.lose("UpdateItem", faults...)
		mustSettle(t, s, rec.Claim(), "result")
		if now := mustRead(t, s, req.ID); now.State != store.Completed || string(now.Result.Body) != "result" {
			t.Errorf("%s of an outcome lost: the record is %v; want it completed", name, now.State)
		}
		req = request("released " + name)
		rec = mustClaim(t, s, req)
		n.lose("UpdateItem", faults...)
		if err := s.Release(t.Context(), rec.Claim(), keep); err != nil {
			t.Errorf("%s of a release lost: %v", name, err)
		}
		req.Owner = store.NewOwner()
		n.lose("PutItem", faults...)
		if again := mustClaim(t, s, req); again.Attempt != 2 || again.Fence <= rec.Fence {
			t.Errorf("%s of a second claim lost: attempt %d, fence %d after %d", name, again.Attempt, again.Fence, rec.Fence)
		}
		n.lose("PutItem")
		n.lose("UpdateItem")
	}
}

// Such a call had its effect, and another caller has changed the record. The error must say neither that
// nothing was written nor that the claim is granted.
func TestLostReplyIsUnknownWhenTheRecordHasChanged(t *testing.T) {
	s, n := faultyStore(t)
	other, err := Open(t.Context(), client(t, nil), Options{Table: s.table})
	if err != nil {
		t.Fatal(err)
	}
	unknown := func(what string, err error) {
		t.Helper()
		if err == nil || errors.Is(err, store.ErrFenced) || errors.Is(err, store.ErrNotDone) {
			t.Errorf("%s: %v; want an error that wraps neither ErrFenced nor ErrNotDone", what, err)
		}
	}
	req := request("released")
	run := mustClaim(t, s, req)
	n.before = func() {
		next := req
		next.Owner = store.NewOwner()
		mustClaim(t, other, next)
	}
	n.lose("UpdateItem", "reply")
	unknown("a release, after which another claimed", s.Release(t.Context(), run.Claim(), keep))

	req = request("claimed")
	n.before = func() {
		rec := mustRead(t, other, req.ID)
		if err := other.Release(context.Background(), rec.Claim(), keep); err != nil {
			t.Error(err)
		}
		next := req
		next.Owner = store.NewOwner()
		mustClaim(t, other, next)
	}
	n.lose("PutItem", "reply")
	if rec, err := s.Claim(t.Context(), req); err != nil || rec.Owner == req.Owner || rec.Attempt != 2 {
		t.Errorf("a claim that was released by another, and claimed again: owner %v, attempt %d, %v; want the other's claim", rec.Owner, rec.Attempt, err)
	}
}

func TestThrottledAndRefusedCallsHaveNoEffect(t *testing.T) {
	s, n := faultyStore(t)
	req := request("k")
	for _, code := range []string{"ThrottlingException", "AccessDeniedException", "ResourceNotFoundException"} {
		faults := make([]string, 2*tries)
		for i := range faults {
			faults[i] = code
		}
		n.lose("PutItem", faults...)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		_, err := s.Claim(ctx, req)
		cancel()
		if !errors.Is(err, store.ErrNotDone) {
			t.Errorf("a claim that DynamoDB refused with %s: %v; want an error that wraps ErrNotDone", code, err)
		}
	}
	n.lose("PutItem")
	if rec := mustRead(t, s, req.ID); rec.State != store.None {
		t.Errorf("after refused claims the record is %v", rec.State)
	}
}

func TestHostWithAWrongClockIsRefused(t *testing.T) {
	s, _ := faultyStore(t)
	run := mustClaim(t, s, request("k"))
	for _, off := range []time.Duration{time.Hour, -time.Hour} {
		wrong, err := Open(t.Context(), s.db, Options{Table: s.table})
		if err != nil {
			t.Fatal(err)
		}
		wrong.clock = func() time.Time { return time.Now().Add(off) }
		if _, err := wrong.Read(t.Context(), run.ID); !errors.Is(err, store.ErrNotDone) || !strings.Contains(err.Error(), "clock") {
			t.Errorf("by a clock that is %v wrong: %v; want a refusal that names the clock", off, err)
		}
		if swept, err := wrong.Sweep(t.Context(), 100); err == nil || swept != (store.Swept{}) {
			t.Errorf("a sweep by a clock that is %v wrong: %+v, %v; want a refusal", off, swept, err)
		}
		// A completed record whose tombstone is over by that clock.
		done := request(fmt.Sprint("done ", off))
		mustSettle(t, s, mustClaim(t, s, done).Claim(), "result")
		first, err := Open(t.Context(), s.db, Options{Table: s.table})
		if err != nil {
			t.Fatal(err)
		}
		first.clock = func() time.Time { return time.Now().Add(1000 * off) }
		again := done
		again.Owner = store.NewOwner()
		if rec, err := first.Claim(t.Context(), again); err == nil {
			t.Errorf("a first claim by a clock that is %v wrong returned %v", 1000*off, rec.State)
		}
		if rec := mustRead(t, s, done.ID); rec.State != store.Completed || string(rec.Result.Body) != "result" {
			t.Errorf("after a claim by a wrong clock the record is %v", rec.State)
		}
		wrong.clock, first.clock = time.Now, time.Now
		if _, err := wrong.Sweep(t.Context(), 100); err != nil {
			t.Errorf("a sweep after the clock was set right: %v", err)
		}
		mustClaim(t, first, request(fmt.Sprint("right ", off)))
	}
	if rec := mustRead(t, s, run.ID); rec.State != store.Running {
		t.Errorf("wrong clocks changed the record to %v", rec.State)
	}
}

// counted is a transaction that puts a row, if there is none, and settles.
func counted(rows, name string) func(context.Context, *Tx, store.Record) (store.Settlement, error) {
	return func(_ context.Context, tx *Tx, _ store.Record) (store.Settlement, error) {
		tx.Add(types.TransactWriteItem{Put: &types.Put{TableName: &rows, Item: item{attrID: bytesOf([]byte(name))},
			ConditionExpression: aws.String("attribute_not_exists(id)")}})
		return completed("result"), nil
	}
}

func TestUnacknowledgedCommitIsFound(t *testing.T) {
	s, n := faultyStore(t)
	rows := newTable(t, s.db)
	for _, faults := range [][]string{{"reply"}, {"request"}, {"reply", "request", "reply"}, {"TransactionConflictException"}} {
		name := strings.Join(faults, ", ")
		n.lose("TransactWriteItems", faults...)
		rec, err := s.RunTx(t.Context(), request(name), keep, counted(rows, name))
		if err != nil || rec.State != store.Completed {
			t.Errorf("%s of a commit lost: %v, %v; want it completed", name, rec.State, err)
		}
	}
	// All replies are lost, and then the context ends: the record says that it was committed.
	ctx, cancel := context.WithCancel(t.Context())
	n.before = cancel
	n.lose("TransactWriteItems", "reply")
	rec, err := s.RunTx(ctx, request("ended"), keep, counted(rows, "ended"))
	if err != nil || rec.State != store.Completed {
		t.Errorf("reply lost and context ended: %v, %v; want it completed", rec.State, err)
	}
	// The request is lost: the transaction is ended, so a copy of the request cannot be executed later.
	ctx, cancel = context.WithCancel(t.Context())
	defer cancel()
	req := request("never sent")
	n.lose("TransactWriteItems", "request")
	_, err = s.RunTx(ctx, req, keep, func(ctx context.Context, tx *Tx, rec store.Record) (store.Settlement, error) {
		time.AfterFunc(10*time.Millisecond, cancel)
		return counted(rows, "never sent")(ctx, tx, rec)
	})
	if now := mustRead(t, s, req.ID); err == nil != (now.State == store.Completed) || errors.Is(err, store.ErrUnknown) {
		t.Errorf("request lost and context ended: %v, and the record is %v", err, now.State)
	}
}

func TestConditionOfABusinessWriteAbortsTheTransaction(t *testing.T) {
	s, _ := faultyStore(t)
	rows := newTable(t, s.db)
	if _, err := s.RunTx(t.Context(), request("first"), keep, counted(rows, "one")); err != nil {
		t.Fatal(err)
	}
	req := request("second")
	_, err := s.RunTx(t.Context(), req, keep, counted(rows, "one"))
	var aborted *store.AbortedError
	if !errors.As(err, &aborted) {
		t.Errorf("a condition that is not met: %v; want a *store.AbortedError", err)
	}
	if rec := mustRead(t, s, req.ID); rec.State != store.None {
		t.Errorf("after an aborted transaction the record is %v", rec.State)
	}
}

// A transaction that takes longer than its lease loses its place, and commits nothing.
func TestSlowTransactionCommitsNothingAfterATakeover(t *testing.T) {
	s, _ := faultyStore(t)
	rows := newTable(t, s.db)
	req := request("slow")
	req.Lease = time.Millisecond
	next := req
	next.Owner, next.Lease = store.NewOwner(), time.Minute
	rec, err := s.RunTx(t.Context(), req, keep, func(ctx context.Context, tx *Tx, slow store.Record) (store.Settlement, error) {
		for { // until its lease has run out
			rec, err := s.RunTx(ctx, next, keep, counted(rows, "next"))
			if err != nil {
				return store.Settlement{}, err
			}
			if !rec.InTx {
				break
			}
		}
		return counted(rows, "slow")(ctx, tx, slow)
	})
	if err != nil || rec.Owner != next.Owner || rec.State != store.Completed {
		t.Errorf("the slow transaction returned %v of owner %v, %v; want the outcome of the other", rec.State, rec.Owner, err)
	}
	got, err := s.db.Scan(t.Context(), &dynamodb.ScanInput{TableName: &rows})
	if err != nil || len(got.Items) != 1 {
		t.Errorf("%d rows, %v; want only that of the other", len(got.Items), err)
	}
}

func TestForeignItemsDoNotEndAListing(t *testing.T) {
	s, _ := faultyStore(t)
	want := 20
	for i := range want {
		mustClaim(t, s, request(fmt.Sprint(i)))
		foreign := item{attrID: bytesOf([]byte(fmt.Sprint("foreign ", i)))}
		if _, err := s.db.PutItem(t.Context(), &dynamodb.PutItemInput{TableName: &s.table, Item: foreign}); err != nil {
			t.Fatal(err)
		}
	}
	seen := make(map[store.ID]bool)
	q := store.Query{Limit: 3}
	for {
		page, err := s.Browse(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		for _, rec := range page.Records {
			seen[rec.ID] = true
		}
		if q.After = page.Next; q.After == "" {
			break
		}
	}
	if len(seen) != want {
		t.Errorf("%d records were listed beside foreign items; want %d", len(seen), want)
	}
}

func TestTableOfAnotherShapeIsRefused(t *testing.T) {
	db := client(t, nil)
	if _, err := Open(t.Context(), db, Options{Table: "no-such-table"}); err == nil {
		t.Error("a table that does not exist was opened")
	}
	name := newTable(t, db) + "-other"
	_, err := db.CreateTable(t.Context(), &dynamodb.CreateTableInput{TableName: &name, BillingMode: types.BillingModePayPerRequest,
		AttributeDefinitions: []types.AttributeDefinition{{AttributeName: aws.String("pk"), AttributeType: types.ScalarAttributeTypeS}},
		KeySchema:            []types.KeySchemaElement{{AttributeName: aws.String("pk"), KeyType: types.KeyTypeHash}}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), db, Options{Table: name}); err == nil || !strings.Contains(err.Error(), "CreateTable") {
		t.Errorf("a table with another key: %v; want a refusal that names CreateTable", err)
	}
	for _, o := range []Options{{}, {Table: "t", MaxSkew: time.Millisecond}, {Table: "t", MaxSkew: time.Hour}} {
		if _, err := Open(t.Context(), db, o); err == nil {
			t.Errorf("%+v was accepted", o)
		}
	}
}

func TestRecordWithAnUnreadableFenceOrStateCanBeExpired(t *testing.T) {
	s, _ := faultyStore(t)
	for _, attr := range []string{attrFence, attrState} {
		rec := mustClaim(t, s, request("damaged "+attr))
		mustSettle(t, s, rec.Claim(), "secret")
		e := &expression{}
		update := "SET " + e.name(attr) + " = " + e.value("v", textOf("damaged"))
		if _, err := s.db.UpdateItem(t.Context(), &dynamodb.UpdateItemInput{TableName: &s.table, Key: keyOf(rec.ID), UpdateExpression: &update,
			ExpressionAttributeNames: e.names, ExpressionAttributeValues: e.values}); err != nil {
			t.Fatal(err)
		}
		page, err := s.Browse(t.Context(), store.Query{})
		if err != nil {
			t.Fatal(err)
		}
		for _, shown := range page.Records {
			if shown.ID != rec.ID {
				continue
			}
			if err := s.Expire(t.Context(), shown.Claim()); shown.Damage == "" || err != nil {
				t.Errorf("Expire of a record with an unreadable %s, shown with damage %q: %v", attr, shown.Damage, err)
			}
		}
		if now, err := s.Read(t.Context(), rec.ID); err != nil || now.State != store.Failed || !now.Gone {
			t.Errorf("an expired record with an unreadable %s: %v, %v; want a tombstone", attr, now.State, err)
		}
	}
}
