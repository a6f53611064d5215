package postgres

import (
	"context"
	"time"

	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/internal/rules"
)

const (
	dueChunk = 1000     // records returned by one Due
	dueBytes = 16 << 20 // of their work together, unless it is one
)

// Accept implements store.WorkStore. Concurrent calls share statements.
func (s *Store) Accept(ctx context.Context, req store.ClaimRequest, work []byte, after time.Duration) (store.Record, error) {
	return s.ask(ctx, write{req: &req, job: newJob(work, after)})
}

func newJob(work []byte, after time.Duration) *job {
	if work == nil {
		work = []byte{} // there is some, though it is nothing
	}
	return &job{work, after}
}

// Take implements store.WorkStore. Concurrent calls share statements.
func (s *Store) Take(ctx context.Context, req store.TakeRequest) (store.Record, error) {
	if err := ctx.Err(); err != nil {
		return store.Record{}, err
	}
	if err := s.durability.refusal(); err != nil {
		return store.Record{}, err
	}
	o, err := s.ends.do(ctx, write{take: &req})
	if err != nil {
		return store.Record{}, err
	}
	if !o.slow {
		return o.v.rec, nil
	}
	return s.slowTake(ctx, req)
}

// slowTake takes a job that was locked, or returns why it cannot be taken.
func (s *Store) slowTake(ctx context.Context, req store.TakeRequest) (store.Record, error) {
	id, owner := req.ID, req.Owner
	for range slowTries {
		take := call{statement: s.sql.take, args: args(taking, &write{take: &req})}
		var r *row
		err := s.onRow(ctx, s.works, id, lastOf(&r, take))
		if err == nil && r == nil {
			r, err = s.look(ctx, id)
		}
		switch {
		case err != nil:
			return store.Record{}, explain("take", err)
		case r == nil || r.forgotten():
			return store.Record{ID: id}, nil
		case rules.OnTake(r.record(), store.TakeRequest{Owner: owner}, false) == rules.MarkUnknown:
			rec, _, err := s.change(ctx, nil, r, rules.MarkUnknown)
			if err != nil || rec.State == store.Running {
				return rec, explain("mark unknown", err)
			}
		case r.State != store.Accepted || r.Owner == owner || r.now.Before(r.lease):
			return r.record(), explain("take", s.ensureReplicated(ctx, r, owner))
		}
	}
	return store.Record{}, explain("take", errContended)
}

// lastOf makes calls whose rows are those of kept, and puts the last into r; nil if
// there is none.
func lastOf(r **row, calls ...call) func() []call {
	return func() []call {
		*r = nil
		for i := range calls {
			calls[i].row = func(from scanner) error {
				*r = new(row)
				return (*r).scan(from, allColumns)
			}
		}
		return calls
	}
}

// look reads a record with what only a store.WorkStore and a store.OutboxStore keep; nil if there is none.
func (s *Store) look(ctx context.Context, id store.ID) (r *row, err error) {
	err = s.alone(ctx, s.works, lastOf(&r, call{statement: s.sql.look, args: []any{id[:]}}))
	return r, err
}

// Look implements store.WorkStore.
func (s *Store) Look(ctx context.Context, id store.ID) (store.Record, error) {
	if err := ctx.Err(); err != nil {
		return store.Record{}, err
	}
	r, err := s.look(ctx, id)
	if err != nil {
		return store.Record{}, explain("read", err)
	}
	if r == nil || r.forgotten() {
		return store.Record{ID: id}, nil
	}
	return r.record(), explain("read", s.ensureReplicated(ctx, r, store.Owner{}))
}

// affects executes a statement about a claim, and reports whether it has changed the
// record. Its last parameter, if there is one, is a time from now.
func (s *Store) affects(ctx context.Context, l limit, st *statement, c store.Claim, d ...time.Duration) (ok bool, err error) {
	err = s.onRow(ctx, l, c.ID, func() []call {
		ok = false
		c := claimCall(st, c)
		for _, d := range d {
			c.args = append(c.args, micros(d))
		}
		c.row = func(scanner) error { ok = true; return nil }
		return []call{c}
	})
	return ok, err
}

// claimCall is a call whose first parameters are of a claim.
func claimCall(st *statement, c store.Claim, more ...any) call {
	return call{statement: st, args: append([]any{c.ID[:], c.Fence}, more...)}
}

// Return implements store.WorkStore. It waits for a transaction that is about to
// settle the record (SettleTx).
func (s *Store) Return(ctx context.Context, c store.Claim, after time.Duration) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	ok, err := s.affects(ctx, s.works, s.sql.giveBack, c, after)
	if err != nil || ok {
		return explain("return", err)
	}
	return s.stands(ctx, c, func(r *row) bool { return r.State == store.Accepted })
}

// stands finds out that a write was made before, whose reply was lost: the record
// has the claim's fence, and is as it should be. Otherwise it is store.ErrFenced.
func (s *Store) stands(ctx context.Context, c store.Claim, as func(*row) bool) error {
	r, err := s.look(ctx, c.ID)
	if err != nil {
		return explain("read", err)
	}
	if r == nil || r.forgotten() || r.Fence != c.Fence || !as(r) {
		return store.ErrFenced
	}
	return nil
}

// Cancel implements store.WorkStore. It waits for a transaction that is about to
// settle the record (SettleTx).
func (s *Store) Cancel(ctx context.Context, c store.Claim, out store.Settlement, keep store.Retention) (store.Record, error) {
	if err := ctx.Err(); err != nil {
		return store.Record{}, err
	}
	out = store.Settlement{State: store.Failed, Result: out.Result, Gone: out.Gone}
	e := &ending{claim: c, out: out, keep: keep}
	cancel := call{statement: s.sql.cancel, args: args(ended, &write{end: e})}
	for range slowTries {
		var r *row
		err := s.onRow(ctx, s.slow, c.ID, lastOf(&r, cancel, claimCall(s.sql.cancelRun, c)))
		if err == nil && r == nil {
			r, err = s.look(ctx, c.ID)
		}
		if err != nil {
			return store.Record{}, explain("cancel", err)
		}
		if r == nil {
			return store.Record{}, store.ErrFenced
		}
		switch next, err := rules.OnCancel(r.known(), c, out, r.now); {
		case err != nil:
			return store.Record{}, err
		case next == rules.None || next == rules.RequestCancel && r.Cancelling:
			return r.record(), explain("cancel", s.ensureReplicated(ctx, r, store.Owner{}))
		}
	}
	return store.Record{}, explain("cancel", errContended)
}

// Save implements store.WorkStore.
func (s *Store) Save(ctx context.Context, c store.Claim, notes store.Notes, repeatable bool) error {
	return s.put(ctx, s.works, c.ID, claimCall(s.sql.save, c, notes.Marshal(), repeatable))
}

// Amend implements store.WorkStore. It waits for a transaction that is about to
// settle the record (SettleTx).
func (s *Store) Amend(ctx context.Context, c store.Claim, notes store.Notes) error {
	return s.put(ctx, s.slow, c.ID, claimCall(s.sql.amend, c, notes.Marshal()))
}

// put executes a statement that writes notes.
func (s *Store) put(ctx context.Context, l limit, id store.ID, save call) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	saved := false
	save.row = func(scanner) error { saved = true; return nil }
	err := s.onRow(ctx, l, id, func() []call {
		saved = false
		return []call{save}
	})
	if err == nil && !saved {
		return store.ErrFenced
	}
	return explain("save", err)
}

// sent says that messages have left.
type sent struct {
	claim store.Claim
	keep  time.Duration
}

// Relayed implements store.OutboxStore. Concurrent calls share statements.
func (s *Store) Relayed(ctx context.Context, c store.Claim, keep store.Retention) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	o, err := s.ends.do(ctx, write{sent: &sent{c, keep.Tombstone}})
	if err != nil || !o.slow {
		return err
	}
	ok, err := s.affects(ctx, s.works, s.sql.relayed, c, keep.Tombstone)
	if err != nil || ok {
		return explain("relay", err)
	}
	return s.stands(ctx, c, func(r *row) bool { return r.State.Settled() })
}

// Due implements store.WorkStore. At most 1,000 records are returned by one call, and
// fewer when their work is more than 16 MiB, whatever limit says. Without names, it
// looks at 256 names under which something waits, and the next call at the next.
func (s *Store) Due(ctx context.Context, limit int, again time.Duration, names ...string) ([]store.Record, error) {
	if len(names) > 0 {
		return s.handOut(ctx, s.sql.dueRun, limit, []any{micros(again), names})
	}
	var from string
	if next := s.dueFrom.Swap(nil); next != nil {
		from = *next
	}
	var next *string
	recs, err := s.handOut(ctx, s.sql.dueAny, limit, []any{micros(again), from}, &next)
	if next != nil {
		s.dueFrom.Store(next)
	}
	return recs, err
}

// DueMessages implements store.OutboxStore. It is bounded like Due.
func (s *Store) DueMessages(ctx context.Context, limit int, again time.Duration) ([]store.Record, error) {
	return s.handOut(ctx, s.sql.dueRelay, limit, []any{micros(again)})
}

// handOut executes a statement that returns records that are due, and makes them due again. args are
// its parameters after the limit, and before are scanned before the records.
func (s *Store) handOut(ctx context.Context, st *statement, limit int, args []any, before ...any) (recs []store.Record, err error) {
	if err := ctx.Err(); err != nil || limit < 1 {
		return nil, err
	}
	var bad []store.Claim
	due := call{st, append([]any{int64(min(limit, dueChunk))}, args...), func(from scanner) error {
		var r row
		err := r.scan(from, allColumns, before...)
		switch {
		case r.damage != nil:
			bad = append(bad, store.Claim{ID: r.ID, Owner: r.Owner, Fence: r.Fence})
		case err != nil:
			return err
		case r.read.id != nil:
			r.Cancelling = false // Take returns it
			recs = append(recs, r.record())
		}
		return nil
	}}
	err = s.alone(ctx, s.works, func() []call {
		recs, bad = nil, nil
		return []call{due}
	})
	if err != nil {
		return nil, explain("due", err)
	}
	return recs, partial("due", bad)
}
