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

// bySQL is a store whose transactions are begun, and whose records are settled, released
// and swept, by the functions alone. There are none for leases and for reading, which are
// the Store's. The functions digest a key themselves and mint owners, so it knows records
// by other names than its callers do. Results are packed into the body.
type bySQL struct {
	store  *Store
	schema string

	mu     sync.Mutex
	ids    map[store.ID]store.ID       // of callers, by those in the table
	scopes map[store.ID]store.ID       // of what stet_begin has begun, by the callers' IDs
	owners map[store.Owner]store.Owner // of callers, by those in the table
	minted map[store.Owner]store.Owner // those in the table, by the callers'
}

func newBySQL(s *Store) *bySQL {
	return &bySQL{store: s, schema: pgx.Identifier{s.n.schema}.Sanitize(), ids: map[store.ID]store.ID{}, scopes: map[store.ID]store.ID{},
		owners: map[store.Owner]store.Owner{}, minted: map[store.Owner]store.Owner{}}
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
	b.mu.Lock()
	defer b.mu.Unlock()
	if minted, ok := b.minted[c.Owner]; ok {
		c.Owner = minted
	}
	return c
}

// asked is a request for the record in the table.
func (b *bySQL) asked(req *store.ClaimRequest) store.ClaimRequest {
	inside := *req
	inside.ID = b.in(req.ID)
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
	if rec.Scope == store.DigestScope("", "adapter") {
		rec.Scope = b.scopes[rec.ID]
	}
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
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range gone {
		c.ID = b.ids[c.ID]
		lost = append(lost, c)
	}
	return lost, err
}

// Settle is stet_settle, which refuses a repetition. Whether it is one the record says.
func (b *bySQL) Settle(ctx context.Context, c store.Claim, out store.Settlement, keep store.Retention) error {
	return b.orBefore(ctx, c, b.settle(ctx, b.store.Pool(), b.claimIn(c).String(), out, keep), func(rec store.Record) bool {
		return rec.State == out.State && time.Now().Before(rec.ExpiresAt) && rec.Gone == out.Gone && (out.Gone || rec.Result.Equal(out.Result))
	})
}

// Release is stet_release, which refuses a repetition.
func (b *bySQL) Release(ctx context.Context, c store.Claim, keep store.Retention) error {
	_, err := b.store.Pool().Exec(ctx, "SELECT "+b.schema+".stet_release($1, $2::bigint * interval '1 us')", b.claimIn(c).String(), forSQL(keep.Result))
	return b.orBefore(ctx, c, fenced(err), func(rec store.Record) bool { return rec.State == store.Retryable })
}

// orBefore takes a refusal for a success if the record is as it should be afterwards.
func (b *bySQL) orBefore(ctx context.Context, c store.Claim, err error, done func(store.Record) bool) error {
	if !errors.Is(err, store.ErrFenced) {
		return err
	}
	rec, readErr := b.Read(ctx, c.ID)
	if readErr != nil || rec.Fence == c.Fence && done(rec) {
		return readErr
	}
	return err
}

// forSQL are microseconds that the functions take: more than none, and at most 100 years.
func forSQL(d time.Duration) int64 {
	return micros(min(max(d, time.Microsecond), 100*365*24*time.Hour))
}

// fenced is ErrFenced where the functions say so.
func fenced(err error) error {
	if sqlState(err) == "ST002" {
		return store.ErrFenced
	}
	return err
}

func (b *bySQL) Read(ctx context.Context, id store.ID) (store.Record, error) {
	rec, err := b.store.Read(ctx, b.in(id))
	return b.out(rec), err
}

// Sweep is stet_sweep.
func (b *bySQL) Sweep(ctx context.Context, limit int) (swept store.Swept, err error) {
	if limit < 1 {
		return swept, ctx.Err()
	}
	err = b.store.Pool().QueryRow(ctx, "SELECT marked_unknown, expired, removed, more FROM "+b.schema+".stet_sweep($1)", min(limit, 10_000)).
		Scan(&swept.MarkedUnknown, &swept.Expired, &swept.Purged, &swept.More)
	return swept, err
}

// settle is stet_settle.
func (b *bySQL) settle(ctx context.Context, q querier, claim string, out store.Settlement, keep store.Retention) error {
	if !out.State.Settled() {
		return fmt.Errorf("%w: an outcome is completed or failed, not %v", store.ErrInvalid, out.State)
	}
	_, err := q.Exec(ctx, "SELECT "+b.schema+".stet_settle($1, body => $2, failed => $3, gone => $4, result => $5::bigint * interval '1 us', tombstone => $6::bigint * interval '1 us', max_result => 67108864)",
		claim, out.Result.Marshal(), out.State == store.Failed, out.Gone, forSQL(keep.Result), forSQL(keep.Tombstone))
	return fenced(err)
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
	rows, err := tx.Query(ctx, "SELECT * FROM "+b.schema+".stet_begin('adapter', $1, $2, class => $3, name => $4, ref => $5)",
		req.ID.String(), req.Fingerprint[:], req.Label.Class, req.Label.Name, req.Label.Ref)
	if err != nil {
		return store.Record{}, err
	}
	begun, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[todo])
	if err != nil {
		return store.Record{}, err
	}
	if begun.Action != "run" {
		return b.stands(ctx, tx, begun, inside, req)
	}
	parsed, err := store.ParseClaim(*begun.Claim)
	if err != nil || parsed.ID != inside.ID || parsed.Fence != *begun.Fence {
		return store.Record{}, errors.Join(fmt.Errorf("the claim %+v is not of %v, %d", parsed, inside.ID, *begun.Fence), err)
	}
	b.mu.Lock()
	b.owners[parsed.Owner], b.minted[req.Owner], b.scopes[req.ID] = req.Owner, parsed.Owner, req.Scope
	b.mu.Unlock()
	rec := store.Record{ID: req.ID, Scope: req.Scope, Label: req.Label, State: store.Running, Fingerprint: req.Fingerprint, Owner: req.Owner,
		Fence: *begun.Fence, Attempt: *begun.Attempt, LeaseLeft: req.Lease}
	if err := tx.QueryRow(ctx, "SELECT statement_timestamp()").Scan(&rec.ClaimedAt); err != nil {
		return rec, err
	}
	out, err := fn(ctx, tx, rec)
	if err != nil {
		return rec, err
	}
	ctx = context.WithoutCancel(ctx) // as the Store has it
	if err := b.settle(ctx, tx, *begun.Claim, out, keep); err != nil {
		return rec, err
	}
	if err := tx.Commit(ctx); err != nil {
		return rec, err
	}
	return b.Read(ctx, req.ID)
}

// Outside implements store.OutsideStore.
func (b *bySQL) Outside() {}

// stands answers for an operation that is not to be run, with what stet_begin has said; the
// times and the owner, of which it says nothing, are read.
func (b *bySQL) stands(ctx context.Context, tx pgx.Tx, begun todo, inside, req store.ClaimRequest) (rec store.Record, err error) {
	if err := tx.Rollback(ctx); err != nil {
		return rec, err
	}
	switch begun.Action {
	case "mismatch":
		return rec, store.ErrMismatch
	case "unknown": // the functions do not mark records unknown
		return b.Claim(ctx, req)
	}
	r, err := b.store.readAlone(ctx, inside.ID)
	switch {
	case err != nil:
		return rec, err
	case r == nil && begun.Action == "in_flight":
		return store.Record{ID: req.ID, Scope: req.Scope, State: store.Running, Fingerprint: req.Fingerprint, InTx: true}, nil
	case r == nil:
		return rec, fmt.Errorf("stet_begin says %s, and there is no record", begun.Action)
	}
	rec = b.out(r.record())
	if begun.Fence == nil { // a transaction held it, and has ended since
		return rec, nil
	}
	rec.Fence, rec.Attempt, rec.Gone, rec.Result = *begun.Fence, *begun.Attempt, begun.Action == "expired", store.Result{}
	if begun.State == nil || *begun.State != rec.State.String() {
		return rec, fmt.Errorf("stet_begin says %s, of a record that is %v", *begun.State, rec.State)
	}
	if begun.Action == "replay" {
		err = rec.Result.Unmarshal(begun.Body)
	}
	return rec, err
}

// TestFunctionsKeepTheContract is run again for each defect by
// TestSuiteNoticesBrokenFunctions, in processes of its own.
func TestFunctionsKeepTheContract(t *testing.T) {
	t.Parallel()
	broken := theDefect(t)
	pool := broken.database(t)
	h := harnessOn(t, pool, Options{})
	h.Damage = nil
	pg := h.New
	h.New = func(t testing.TB) store.Store {
		s := pg(t).(*Store)
		broken.plant(t, s)
		return newBySQL(s)
	}
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
	t.Run("store", func(t *testing.T) { storetest.Run(t, h.Harness) })
	t.Run("transactions", func(t *testing.T) { storetest.RunTx(t, h) })
}
