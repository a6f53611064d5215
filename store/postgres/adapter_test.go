package postgres

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/storetest"
)

// bySQL is a store whose transactions are begun and settled by the functions alone; there
// are none for leases, which are the Store's. The functions digest a key themselves and
// mint owners, so it knows records by other names than its callers do. Results are packed
// into the body.
type bySQL struct {
	store  *Store
	schema string

	mu     sync.Mutex
	ids    map[store.ID]store.ID       // of callers, by those in the table
	scopes map[store.ID]store.ID       // by the callers' IDs
	owners map[store.Owner]store.Owner // of callers, by those in the table
}

func newBySQL(s *Store) *bySQL {
	return &bySQL{store: s, schema: pgx.Identifier{s.n.schema}.Sanitize(), ids: map[store.ID]store.ID{}, scopes: map[store.ID]store.ID{}, owners: map[store.Owner]store.Owner{}}
}

// in is the ID in the table.
func (b *bySQL) in(id store.ID) store.ID {
	b.mu.Lock()
	defer b.mu.Unlock()
	inside := store.Digest("", "adapter", id.String())
	b.ids[inside] = id
	return inside
}

func (b *bySQL) claimIn(c store.Claim) store.Claim {
	c.ID = b.in(c.ID)
	return c
}

// asked notes what a request has and the functions are not told.
func (b *bySQL) asked(req *store.ClaimRequest) store.ClaimRequest {
	inside := *req
	inside.ID = b.in(req.ID)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.scopes[req.ID] = req.Scope
	return inside
}

// out is a record as its caller knows it.
func (b *bySQL) out(rec store.Record) store.Record {
	b.mu.Lock()
	defer b.mu.Unlock()
	rec.ID = b.ids[rec.ID]
	if rec.State == store.None {
		return rec
	}
	rec.Scope = b.scopes[rec.ID]
	if owner, ok := b.owners[rec.Owner]; ok {
		rec.Owner = owner
	}
	if rec.State.Settled() && !rec.Gone {
		if err := rec.Result.Unmarshal(rec.Result.Body); err != nil {
			panic(err)
		}
	}
	return rec
}

func (b *bySQL) Claim(ctx context.Context, req store.ClaimRequest) (store.Record, error) {
	rec, err := b.store.Claim(ctx, b.asked(&req))
	return b.out(rec), err
}

func (b *bySQL) Extend(ctx context.Context, claims []store.Claim, lease time.Duration) (lost []store.Claim, err error) {
	inside := make([]store.Claim, len(claims))
	for i, c := range claims {
		inside[i] = b.claimIn(c)
	}
	gone, err := b.store.Extend(ctx, inside, lease)
	for _, c := range gone {
		c.ID = b.ids[c.ID]
		lost = append(lost, c)
	}
	return lost, err
}

func (b *bySQL) Settle(ctx context.Context, c store.Claim, out store.Settlement, keep store.Retention) error {
	out.Result = store.Result{Body: out.Result.Marshal()}
	return b.store.Settle(ctx, b.claimIn(c), out, keep)
}

func (b *bySQL) Release(ctx context.Context, c store.Claim, keep store.Retention) error {
	return b.store.Release(ctx, b.claimIn(c), keep)
}

func (b *bySQL) Read(ctx context.Context, id store.ID) (store.Record, error) {
	rec, err := b.store.Read(ctx, b.in(id))
	return b.out(rec), err
}

func (b *bySQL) Sweep(ctx context.Context, limit int) (store.Swept, error) {
	return b.store.Sweep(ctx, limit)
}

// settle is stet_settle.
func (b *bySQL) settle(ctx context.Context, tx pgx.Tx, claim string, out store.Settlement, keep store.Retention) error {
	if !out.State.Settled() {
		return fmt.Errorf("%w: an outcome is completed or failed, not %v", store.ErrInvalid, out.State)
	}
	_, err := tx.Exec(ctx, "SELECT "+b.schema+".stet_settle($1, body => $2, failed => $3, gone => $4, result => $5::bigint * interval '1 us', tombstone => $6::bigint * interval '1 us', max_result => 67108864)",
		claim, out.Result.Marshal(), out.State == store.Failed, out.Gone, micros(keep.Result), micros(keep.Tombstone))
	if sqlState(err) == "ST002" {
		return store.ErrFenced
	}
	return err
}

// SettleTx is stet_settle of a claim under a lease.
func (b *bySQL) SettleTx(ctx context.Context, tx pgx.Tx, c store.Claim, out store.Settlement, keep store.Retention) error {
	return b.settle(ctx, tx, b.claimIn(c).String(), out, keep)
}

// RunTx is stet_begin, fn, stet_settle.
func (b *bySQL) RunTx(ctx context.Context, req store.ClaimRequest, keep store.Retention, fn function) (store.Record, error) {
	inside := b.asked(&req)
	if err := ctx.Err(); err != nil {
		return store.Record{}, err
	}
	tx, err := b.store.Pool().Begin(ctx)
	if err != nil {
		return store.Record{}, err
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	var action string
	var claim *string
	var fence *int64
	var attempt *int
	err = tx.QueryRow(ctx, "SELECT action, claim, fence, attempt FROM "+b.schema+".stet_begin('adapter', $1, $2, class => $3, name => $4, ref => $5)",
		req.ID.String(), req.Fingerprint[:], req.Label.Class, req.Label.Name, req.Label.Ref).Scan(&action, &claim, &fence, &attempt)
	if err != nil {
		return store.Record{}, err
	}
	if action != "run" {
		return b.stands(ctx, tx, action, inside, req)
	}
	parsed, err := store.ParseClaim(*claim)
	if err != nil || parsed.ID != inside.ID || parsed.Fence != *fence {
		return store.Record{}, errors.Join(fmt.Errorf("the claim %+v is not of %v, %d", parsed, inside.ID, *fence), err)
	}
	b.mu.Lock()
	b.owners[parsed.Owner] = req.Owner
	b.mu.Unlock()
	rec := store.Record{ID: req.ID, Scope: req.Scope, Label: req.Label, State: store.Running, Fingerprint: req.Fingerprint, Owner: req.Owner,
		Fence: *fence, Attempt: *attempt, LeaseLeft: req.Lease}
	if err := tx.QueryRow(ctx, "SELECT statement_timestamp()").Scan(&rec.ClaimedAt); err != nil {
		return rec, err
	}
	out, err := fn(ctx, tx, rec)
	if err != nil {
		return rec, err
	}
	ctx = context.WithoutCancel(ctx) // as the Store has it
	if err := b.settle(ctx, tx, *claim, out, keep); err != nil {
		return rec, err
	}
	if err := tx.Commit(ctx); err != nil {
		return rec, err
	}
	return b.Read(ctx, req.ID)
}

// stands answers for an operation that is not to be run.
func (b *bySQL) stands(ctx context.Context, tx pgx.Tx, action string, inside, req store.ClaimRequest) (rec store.Record, err error) {
	if err := tx.Rollback(ctx); err != nil {
		return rec, err
	}
	if action == "unknown" { // which the functions do not park
		rec, err = b.Claim(ctx, req)
		return rec, err
	}
	r, err := b.store.readAlone(ctx, inside.ID)
	switch {
	case err == nil && action == "mismatch":
		return rec, store.ErrMismatch
	case err == nil && r == nil && action == "in_flight":
		return store.Record{ID: req.ID, Scope: req.Scope, State: store.Running, Fingerprint: req.Fingerprint, InTx: true}, nil
	case err == nil && r == nil:
		return rec, fmt.Errorf("stet_begin says %s, and there is no record", action)
	case err == nil:
		rec = b.out(r.record())
	}
	return rec, err
}

func TestFunctionsKeepTheContract(t *testing.T) {
	h := harness(t, Options{})
	h.Damage = nil
	pg := h.New
	h.New = func(t testing.TB) store.Store { return newBySQL(pg(t).(*Store)) }
	h.Rows = func(t testing.TB, s store.TxStore[pgx.Tx], name string) (n int) {
		if err := s.(*bySQL).store.Pool().QueryRow(context.Background(), "SELECT count(*) FROM effects WHERE name = $1", name).Scan(&n); err != nil {
			t.Error(err)
		}
		return n
	}
	begin := h.Begin
	h.Begin = func(t testing.TB, s store.TxStore[pgx.Tx]) (pgx.Tx, func(bool) error) {
		return begin(t, s.(*bySQL).store)
	}
	storetest.RunTx(t, h)
}
