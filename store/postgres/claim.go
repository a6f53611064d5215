package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/stet-go/stet/internal/timer"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/internal/rules"
)

const (
	slowTries   = 16   // rounds of look and change, each lost to another caller
	extendChunk = 1000 // claims renewed in one statement
	sweepChunk  = 1000 // records looked at by one Sweep
)

// errContended: a record changed under us time and again.
var errContended = errors.New("the record changes faster than it can be written; nothing was done")

// Claim implements store.Store.
func (s *Store) Claim(ctx context.Context, req store.ClaimRequest) (store.Record, error) {
	return s.ask(ctx, write{req: &req})
}

// ask claims or accepts.
func (s *Store) ask(ctx context.Context, w write) (store.Record, error) {
	if err := ctx.Err(); err != nil {
		return store.Record{}, err
	}
	if s.locked.has(w.req.ID) {
		return s.slowAsk(ctx, &w)
	}
	o, err := s.asks.do(ctx, w)
	if err == nil && o.v.binding {
		err = s.confirm(ctx)
	}
	if err != nil && !errors.Is(err, store.ErrMismatch) {
		return store.Record{}, err
	}
	if o.slow {
		return s.slowAsk(ctx, &w)
	}
	return o.v.rec, err
}

// Settle implements store.Store.
func (s *Store) Settle(ctx context.Context, c store.Claim, out store.Settlement, keep store.Retention) error {
	if !out.State.Settled() {
		return fmt.Errorf("%w: an outcome is completed or failed, not %v", store.ErrInvalid, out.State)
	}
	return s.end(ctx, &ending{claim: c, out: out, keep: keep})
}

// Release implements store.Store.
func (s *Store) Release(ctx context.Context, c store.Claim, keep store.Retention) error {
	return s.end(ctx, &ending{claim: c, out: store.Settlement{State: store.Retryable}, keep: keep, release: true})
}

func (s *Store) end(ctx context.Context, e *ending) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if s.locked.has(e.claim.ID) {
		return s.slowEnd(ctx, e)
	}
	o, err := s.ends.do(ctx, write{end: e})
	if err == nil && o.v.binding {
		err = s.confirm(ctx)
	}
	if err != nil || !o.slow {
		return err
	}
	return s.slowEnd(ctx, e)
}

// slowAsk claims a key, or accepts an operation, on which there is something to be
// changed.
func (s *Store) slowAsk(ctx context.Context, w *write) (store.Record, error) {
	for range slowTries {
		r, err := s.readAlone(ctx, w.req.ID)
		if err != nil {
			return store.Record{}, explain("claim", err)
		}
		rec, next, err := s.standing(w.req, r)
		if next == rules.None {
			if err == nil {
				err = s.ensureReplicated(ctx, r, w.req.Owner)
			}
			return rec, err
		}
		rec, ok, err := s.change(ctx, w, r, next)
		if err != nil {
			return store.Record{}, explain("claim", err)
		}
		if ok && !freed(rec, next) {
			return rec, nil
		}
	}
	return store.Record{}, explain("claim", errContended)
}

// standing is onClaim. While claims are refused, it returns an error if the claim would be
// written or would start a run.
func (s *Store) standing(req *store.ClaimRequest, r *row) (store.Record, rules.Change, error) {
	rec, next, err := onClaim(req, r)
	switch refused := s.durability.refusal(); {
	case refused == nil:
	case next == rules.Grant:
		return store.Record{}, rules.None, refused
	case err == nil && rec.State == store.Running && rec.Owner == req.Owner:
		// An earlier try has written this claim, so the error is not ErrNotDone: the caller must release it.
		return store.Record{}, rules.None, fmt.Errorf("postgres: claims are refused, and this one starts no run: %w", errLossy)
	}
	return rec, next, err
}

// freed reports whether a change has ended an expired run that had no effect: its record can
// be claimed now.
func freed(rec store.Record, by rules.Change) bool {
	return by == rules.MarkUnknown && rec.State == store.Retryable
}

// Outside implements store.OutsideStore: services settle by stet_settle. See docs/sql.md.
func (s *Store) Outside() {}

// change makes a change that onClaim has returned; r is nil for no record. If the record has changed since, ok is false.
// While another transaction has the record locked, it is not marked unknown and stays running.
func (s *Store) change(ctx context.Context, w *write, r *row, next rules.Change) (rec store.Record, ok bool, err error) {
	if r == nil {
		ops := []*op[write]{{v: *w}}
		err := s.onRow(ctx, s.slow, w.req.ID, func() []call {
			ops[0].v.done = false
			return []call{s.fastCall(w.kind(), ops, true)}
		})
		return ops[0].v.rec, ops[0].v.done, err
	}
	changed := func(before ...any) func(scanner) error {
		return func(from scanner) error {
			var now row
			err := now.scan(from, columns, before...)
			rec, ok = now.record(), true
			return err
		}
	}
	if next == rules.MarkUnknown {
		l := s.slow
		if s.locked.has(r.ID) {
			l = s.lockedRows
		}
		err = s.alone(ctx, l, func() []call {
			return []call{{s.sql.markUnknown, []any{r.ID[:], r.Fence}, changed(new(bool))}}
		})
		if !lockedRow(err) {
			return rec, ok, err
		}
		s.locked.add(r.ID) // a service's transaction has settled it late, and has not ended
		return r.record(), true, nil
	}
	err = s.onRow(ctx, s.slow, r.ID, func() []call {
		again := *w
		again.was = r.Fence
		if w.job == nil {
			return []call{{s.sql.regrant, args(with(claimed, was), &again), changed()}}
		}
		return []call{{s.sql.reaccept, args(with(accepted, was), &again), changed()}}
	})
	return rec, ok, err
}

// slowEnd settles or releases a record that another transaction had locked.
func (s *Store) slowEnd(ctx context.Context, e *ending) error {
	for range slowTries {
		ok := false
		err := s.onRow(ctx, s.slow, e.claim.ID, func() []call {
			ok = false
			return []call{{s.sql.endOne, args(ended, &write{end: e}), func(scanner) error { ok = true; return nil }}}
		})
		if err != nil {
			return explain("settle", err)
		}
		if !ok && e.release { // perhaps of an accepted operation
			ok, err = s.affects(ctx, s.slow, s.sql.giveBack, e.claim, 0)
		}
		if err != nil {
			return explain("settle", err)
		}
		if ok {
			return nil
		}
		r, err := s.readAlone(ctx, e.claim.ID)
		if err != nil {
			return explain("settle", err)
		}
		if next, err := onEnding(e, r); next == rules.None {
			if err == nil {
				err = s.ensureReplicated(ctx, r, store.Owner{})
			}
			return err
		}
	}
	return explain("settle", errContended)
}

// readAlone reads the record of id; nil if there is none.
func (s *Store) readAlone(ctx context.Context, id store.ID) (r *row, err error) {
	err = s.alone(ctx, s.slow, func() []call {
		r = nil
		return []call{s.readCall([]store.ID{id}, func(got *row) { r = got })}
	})
	if err == nil && r != nil {
		err = r.damage
	}
	return r, err
}

// readCall reads the records of ids.
func (s *Store) readCall(ids []store.ID, each func(*row)) call {
	return call{s.sql.read, []any{idsOf(ids)}, func(from scanner) error {
		r := new(row)
		err := r.scan(from, columns)
		if r.damage != nil {
			err = nil // a damaged record hides no other
		}
		each(r)
		return err
	}}
}

func idsOf(ids []store.ID) [][]byte {
	all := make([][]byte, len(ids))
	for i := range ids {
		all[i] = ids[i][:]
	}
	return all
}

// readRows reads the records of ids, which may repeat.
func (s *Store) readRows(ctx context.Context, ids []store.ID) (rows map[store.ID]*row, err error) {
	err = s.exec(ctx, func() []call {
		rows = make(map[store.ID]*row, len(ids))
		return []call{s.readCall(ids, func(r *row) { rows[r.ID] = r })}
	})
	return rows, err
}

// Extend implements store.Store. It has a connection of its own. A record that
// stays locked, because a transaction is about to settle it (SettleTx), is
// neither waited for nor renewed; it is not lost.
func (s *Store) Extend(ctx context.Context, claims []store.Claim, lease time.Duration) (lost []store.Claim, err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	var bad []store.Claim
	for len(claims) > 0 {
		n := min(len(claims), extendChunk)
		gone, unread, err := s.extend(ctx, claims[:n], lease)
		if err != nil {
			return nil, explain("extend", err)
		}
		lost, bad, claims = append(lost, gone...), append(bad, unread...), claims[n:]
	}
	return lost, partial("extend", bad)
}

// extendTries bounds how often rows are tried that are locked, for 5 ms
// and twice as long each time. What stays locked for longer is an open SettleTx:
// no caller can mark it unknown in the meantime, and waiting would hold up the others.
const extendTries = 5

func (s *Store) extend(ctx context.Context, claims []store.Claim, lease time.Duration) (lost, bad []store.Claim, err error) {
	for try, pause := 1, 5*time.Millisecond; ; try, pause = try+1, 2*pause {
		renewed, err := s.renew(ctx, claims, lease)
		if err != nil {
			return nil, nil, err
		}
		claims = slices.DeleteFunc(slices.Clone(claims), func(c store.Claim) bool { return renewed[c.ID] == c.Fence })
		if len(claims) == 0 {
			return lost, bad, nil
		}
		live, err := s.running(ctx, claims)
		if err != nil {
			return nil, nil, err
		}
		locked := claims[:0]
		for _, c := range claims {
			switch fence, ok := live[c.ID]; {
			case ok && fence == c.Fence:
				locked = append(locked, c)
			case ok && fence == unreadable:
				bad = append(bad, c)
			default:
				lost = append(lost, c)
			}
		}
		if s.looked != nil {
			s.looked()
		}
		if claims = locked; len(claims) == 0 || try == extendTries || !timer.Sleep(ctx, pause) {
			return lost, bad, ctx.Err()
		}
	}
}

// renew extends the leases of rows that are not locked, and returns their
// fences.
func (s *Store) renew(ctx context.Context, claims []store.Claim, lease time.Duration) (renewed map[store.ID]int64, err error) {
	ids, fences := make([][]byte, len(claims)), make([]int64, len(claims))
	for i := range claims {
		ids[i], fences[i] = claims[i].ID[:], claims[i].Fence
	}
	err = s.alone(ctx, s.beat, func() []call {
		renewed = make(map[store.ID]int64, len(claims))
		return []call{{s.sql.extend, []any{ids, fences, micros(lease)}, func(from scanner) error {
			var id []byte
			var fence int64
			if err := from.Scan(&id, &fence); err != nil {
				return err
			}
			renewed[store.ID(id)] = fence
			return nil
		}}}
	})
	return renewed, err
}

// unreadable is for running the fence of a record that cannot be read.
const unreadable = 0

// running returns the fences of running records.
func (s *Store) running(ctx context.Context, claims []store.Claim) (live map[store.ID]int64, err error) {
	ids := make([]store.ID, len(claims))
	for i, c := range claims {
		ids[i] = c.ID
	}
	live = make(map[store.ID]int64)
	err = s.alone(ctx, s.beat, func() []call {
		return []call{s.readCall(ids, func(r *row) {
			switch {
			case r.damage != nil:
				live[r.ID] = unreadable
			case r.State == store.Running:
				live[r.ID] = r.Fence
			}
		})}
	})
	return live, err
}

// Sweep implements store.Sweeper. At most 1,000 records are looked at by one
// call, whatever limit says.
func (s *Store) Sweep(ctx context.Context, limit int) (swept store.Swept, err error) {
	if err := ctx.Err(); err != nil || limit < 1 {
		return swept, err
	}
	limit = min(limit, sweepChunk)
	err = s.alone(ctx, s.sweeps, func() []call {
		return []call{{s.sql.sweep, []any{int64(limit)}, func(from scanner) error {
			var found int
			err := from.Scan(&found, &swept.MarkedUnknown, &swept.Expired, &swept.Purged)
			swept.More = found >= limit
			return err
		}}}
	})
	if err != nil {
		return store.Swept{}, explain("sweep", err)
	}
	return swept, nil
}
