package postgres

import (
	"context"
	"time"

	"github.com/stet-go/stet"
)

const (
	workLanes = 4        // connections for workers' calls
	dueChunk  = 1000     // records handed out by one Due
	dueBytes  = 16 << 20 // of their work together, unless it is one
)

// keptFrom is where what kept adds to columns begins.
const keptFrom = 15

// scanWhole reads the values of kept.
func (r *row) scanWhole(values [][]byte) error {
	if len(values) < keptFrom {
		return errDamaged
	}
	if err := r.scan(values[:keptFrom]); err != nil {
		return err
	}
	f := fields{values: values[keptFrom:]}
	r.Work, r.Notes, r.Cancelling = f.bytes(), f.bytes(), f.bool()
	return f.err()
}

// Accept implements stet.WorkStore. Concurrent calls share statements.
func (s *Store) Accept(ctx context.Context, req stet.ClaimRequest, work []byte, after time.Duration) (stet.Record, error) {
	return s.ask(ctx, write{req: &req, job: newJob(work, after)})
}

func newJob(work []byte, after time.Duration) *job {
	if work == nil {
		work = []byte{} // there is some, though it is nothing
	}
	return &job{work, after}
}

// taking is a worker's claim.
type taking struct {
	id    stet.ID
	owner stet.Owner
	lease time.Duration
}

func takeParams(ops []*op[write]) (p params) {
	p.buf = make([]byte, 0, 3*20+len(ops)*(36+20+20))
	p.array(oidBytes, len(ops))
	for _, o := range ops {
		p.bytes(o.v.take.id[:])
	}
	p.array(oidBytes, len(ops))
	for _, o := range ops {
		p.bytes(o.v.take.owner[:])
	}
	p.array(oidInterval, len(ops))
	for _, o := range ops {
		p.span(o.v.take.lease)
	}
	return p
}

// Take implements stet.WorkStore. Concurrent calls share statements.
func (s *Store) Take(ctx context.Context, id stet.ID, owner stet.Owner, lease time.Duration) (stet.Record, error) {
	if err := ctx.Err(); err != nil {
		return stet.Record{}, err
	}
	o, err := s.writes.do(ctx, write{take: &taking{id, owner, lease}})
	if err != nil {
		return stet.Record{}, err
	}
	if !o.slow {
		return o.v.rec, nil
	}
	return s.slowTake(ctx, id, owner, lease)
}

// slowTake takes what was not free, or finds out why it is not to be had.
func (s *Store) slowTake(ctx context.Context, id stet.ID, owner stet.Owner, lease time.Duration) (stet.Record, error) {
	for range slowTries {
		take := call{statement: s.sql.take}
		take.params.raw(id[:])
		take.params.raw(owner[:])
		take.params.raw(appendSpan(nil, lease))
		r, err := s.whole(ctx, s.works, take)
		if err == nil && r == nil {
			r, err = s.look(ctx, id)
		}
		switch {
		case err != nil:
			return stet.Record{}, explain("take", err)
		case r == nil || r.forgotten():
			return stet.Record{ID: id}, nil
		case r.lapsed() && r.Owner != owner:
			if _, _, err := s.change(ctx, nil, r, stepPark); err != nil {
				return stet.Record{}, explain("park", err)
			}
		case r.State != stet.Accepted || r.Owner == owner:
			return r.record(), nil
		}
	}
	return stet.Record{}, explain("take", errContended)
}

// whole executes c, whose rows are those of kept, and returns the last; nil if there
// is none.
func (s *Store) whole(ctx context.Context, lane chan struct{}, calls ...call) (r *row, err error) {
	err = s.alone(ctx, lane, func() []call {
		r = nil
		for i := range calls {
			calls[i].row = func(values [][]byte) error {
				r = new(row)
				return r.scanWhole(values)
			}
		}
		return calls
	})
	return r, err
}

// look reads a record with what only a stet.WorkStore keeps; nil if there is none.
func (s *Store) look(ctx context.Context, id stet.ID) (*row, error) {
	c := call{statement: s.sql.look}
	c.params.raw(id[:])
	return s.whole(ctx, s.works, c)
}

// Look implements stet.WorkStore.
func (s *Store) Look(ctx context.Context, id stet.ID) (stet.Record, error) {
	if err := ctx.Err(); err != nil {
		return stet.Record{}, err
	}
	r, err := s.look(ctx, id)
	if err != nil {
		return stet.Record{}, explain("read", err)
	}
	if r == nil || r.forgotten() {
		return stet.Record{ID: id}, nil
	}
	return r.record(), nil
}

// affects executes a statement about a claim, and reports whether it has changed the
// record. Its last parameter, if there is one, is a time from now.
func (s *Store) affects(ctx context.Context, lane chan struct{}, st *statement, c stet.Claim, d ...time.Duration) (ok bool, err error) {
	err = s.alone(ctx, lane, func() []call {
		ok = false
		c := claimCall(st, c)
		for _, d := range d {
			c.params.rawInt64(micros(d))
		}
		c.row = func([][]byte) error { ok = true; return nil }
		return []call{c}
	})
	return ok, err
}

// claimCall is a call whose first parameters are of a claim.
func claimCall(st *statement, c stet.Claim) call {
	made := call{statement: st}
	made.params.raw(c.ID[:])
	made.params.rawInt64(c.Fence)
	return made
}

// Return implements stet.WorkStore. It waits for a transaction that is about to
// settle the record (SettleTx).
func (s *Store) Return(ctx context.Context, c stet.Claim, after time.Duration) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	ok, err := s.affects(ctx, s.works, s.sql.giveBackFree, c, after)
	if err != nil || ok {
		return explain("return", err)
	}
	// Whoever has locked the record may take long; workers must not wait for that.
	if ok, err = s.affects(ctx, s.slow, s.sql.giveBack, c, after); err != nil || ok {
		return explain("return", err)
	}
	return s.stands(ctx, c, func(r *row) bool { return r.State == stet.Accepted })
}

// stands finds out that a write was made before, whose reply was lost: the record
// has the claim's fence, and is as it should be. Otherwise it is stet.ErrFenced.
func (s *Store) stands(ctx context.Context, c stet.Claim, as func(*row) bool) error {
	r, err := s.look(ctx, c.ID)
	if err != nil {
		return explain("read", err)
	}
	if r == nil || r.forgotten() || r.Fence != c.Fence || !as(r) {
		return stet.ErrFenced
	}
	return nil
}

// Cancel implements stet.WorkStore. It waits for a transaction that is about to
// settle the record (SettleTx).
func (s *Store) Cancel(ctx context.Context, c stet.Claim, out stet.Outcome, keep stet.Retention) (stet.Record, error) {
	if err := ctx.Err(); err != nil {
		return stet.Record{}, err
	}
	out = stet.Outcome{State: stet.Failed, Result: out.Result, Gone: out.Gone}
	e := &ending{claim: c, out: out, keep: keep}
	cancel := claimCall(s.sql.cancel, c)
	gone := byte(0)
	if out.Gone {
		gone = 1
	}
	cancel.params.raw([]byte{gone})
	cancel.params.rawUnless(out.Gone, out.Result)
	due, _ := e.due()
	for _, d := range []time.Duration{keep.Result, keep.Tombstone, due} {
		cancel.params.raw(appendSpan(nil, d))
	}
	for range slowTries {
		r, err := s.whole(ctx, s.slow, cancel, claimCall(s.sql.cancelRun, c))
		if err == nil && r == nil {
			if r, err = s.look(ctx, c.ID); err == nil && (r == nil || r.forgotten() || r.Fence != c.Fence) {
				return stet.Record{}, stet.ErrFenced
			}
		}
		switch {
		case err != nil:
			return stet.Record{}, explain("cancel", err)
		case r.came(out) || r.State == stet.Running && r.Cancelling:
			return r.record(), nil
		case r.State != stet.Accepted && (r.State != stet.Running || r.Work == nil):
			return stet.Record{}, stet.ErrFenced
		}
	}
	return stet.Record{}, explain("cancel", errContended)
}

// Save implements stet.WorkStore.
func (s *Store) Save(ctx context.Context, c stet.Claim, notes []byte) error {
	return s.put(ctx, s.works, s.sql.save, c, notes)
}

// Strike implements stet.WorkStore. It waits for a transaction that is about to
// settle the record (SettleTx).
func (s *Store) Strike(ctx context.Context, c stet.Claim, notes []byte) error {
	return s.put(ctx, s.slow, s.sql.strike, c, notes)
}

// put executes a statement that writes notes.
func (s *Store) put(ctx context.Context, lane chan struct{}, st *statement, c stet.Claim, notes []byte) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	saved := false
	err := s.alone(ctx, lane, func() []call {
		saved = false
		save := claimCall(st, c)
		save.params.raw(notes)
		save.row = func([][]byte) error { saved = true; return nil }
		return []call{save}
	})
	if err == nil && !saved {
		return stet.ErrFenced
	}
	return explain("save", err)
}

// sent says that messages have left.
type sent struct {
	claim stet.Claim
	keep  time.Duration
}

func relayedParams(ops []*op[write]) (p params) {
	p.buf = make([]byte, 0, 3*20+len(ops)*(36+12+20))
	p.array(oidBytes, len(ops))
	for _, o := range ops {
		p.bytes(o.v.sent.claim.ID[:])
	}
	p.array(oidInt64, len(ops))
	for _, o := range ops {
		p.int64(o.v.sent.claim.Fence)
	}
	p.array(oidInterval, len(ops))
	for _, o := range ops {
		p.span(o.v.sent.keep)
	}
	return p
}

// Relayed implements stet.WorkStore. Concurrent calls share statements.
func (s *Store) Relayed(ctx context.Context, c stet.Claim, keep stet.Retention) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	o, err := s.writes.do(ctx, write{sent: &sent{c, keep.Tombstone}})
	if err != nil || !o.slow {
		return err
	}
	ok, err := s.affects(ctx, s.works, s.sql.relayed, c, keep.Tombstone)
	if err != nil || ok {
		return explain("relay", err)
	}
	return s.stands(ctx, c, func(r *row) bool { return r.State.Settled() })
}

// Due implements stet.WorkStore. At most 1,000 records are returned by one call, and
// fewer when their work is more than 16 MiB, whatever limit says.
func (s *Store) Due(ctx context.Context, what stet.Due, limit int, again time.Duration) (recs []stet.Record, err error) {
	if err := ctx.Err(); err != nil || limit < 1 {
		return nil, err
	}
	due := call{statement: s.sql.dueRun, row: func(values [][]byte) error {
		var r row
		err := r.scanWhole(values)
		recs = append(recs, r.record())
		return err
	}}
	if what == stet.DueRelay {
		due.statement = s.sql.dueRelay
	}
	due.params.rawInt64(int64(min(limit, dueChunk)))
	due.params.rawInt64(micros(again))
	err = s.alone(ctx, s.works, func() []call {
		recs = nil
		return []call{due}
	})
	if err != nil {
		return nil, explain("hand out", err)
	}
	return recs, nil
}
