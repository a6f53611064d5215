package postgres

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/internal/rules"
)

// write is a claim, an acceptance, a settle or release, a worker's claim, or the end
// of relaying.
type write struct {
	req  *store.ClaimRequest
	job  *job // the accepted job; nil for a claim
	end  *ending
	take *store.TakeRequest
	sent *sent
	rec  store.Record // the resulting record, except of an end; of a transaction, the claimed record
	done bool         // by the first statement

	was     int64 // the fence of the record that it is to replace
	waiters int64 // the lock of waiting callers
	binding bool  // the result was read; see row.binding
}

// job is accepted work.
type job struct {
	work  []byte
	after time.Duration
}

// kind is which statement writes have in common.
type kind uint8

const (
	claiming kind = iota
	accepting
	settling
	takes
	relaying
	kinds
)

func (w *write) kind() kind {
	switch {
	case w.end != nil:
		return settling
	case w.take != nil:
		return takes
	case w.sent != nil:
		return relaying
	case w.job != nil:
		return accepting
	}
	return claiming
}

func (w *write) id() *store.ID {
	switch w.kind() {
	case settling:
		return &w.end.claim.ID
	case takes:
		return &w.take.ID
	case relaying:
		return &w.sent.claim.ID
	}
	return &w.req.ID
}

// owner is who claims or accepts; none for an end.
func (w *write) owner() (o store.Owner) {
	if w.req != nil {
		o = w.req.Owner
	}
	return o
}

func (w *write) size() int {
	n := 0
	if w.end != nil {
		n += w.end.out.Result.Size() + len(w.end.out.Outbox)
	}
	if w.job != nil {
		n += len(w.job.work)
	}
	return n
}

// decide says what w comes to, given that r is the record.
func (s *Store) decide(w *write, r *row) (next rules.Change, err error) {
	if w.req != nil {
		w.rec, next, err = s.standing(w.req, r)
		return next, err
	}
	return onEnding(w.end, r)
}

// replayShare tells whether most of the last calls have found a record. Then the store reads first.
type replayShare struct {
	over, above int64        // how many calls it is smoothed over, and the share of 1,000 that is high
	share       atomic.Int64 // of 1,000
}

func (s *replayShare) add(found, of int) {
	old := s.share.Load()
	s.share.Store(old + (int64(found)*1000/int64(of)-old)/s.over) // a lost update does not matter
}

func (s *replayShare) high() bool { return s.share.Load() > s.above }

// runWrites executes a batch of writes. It marks writes as slow that cannot be part of it.
func (s *Store) runWrites(ctx context.Context, batch []*op[write]) {
	err := s.writeBatch(ctx, batch)
	if err == nil {
		return
	}
	if len(batch) == 1 && lockedRow(err) {
		s.locked.add(*batch[0].v.id())
	}
	for _, o := range batch {
		if len(batch) > 1 && answered(err) || lockedRow(err) {
			o.err, o.slow = nil, true // one of them is at fault
			continue
		}
		o.err, o.slow = explain("write", err), false
	}
}

func (s *Store) writeBatch(ctx context.Context, batch []*op[write]) error {
	if len(batch) > 1 {
		slices.SortFunc(batch, func(a, b *op[write]) int { return bytes.Compare(a.v.id()[:], b.v.id()[:]) })
	}
	var groups [kinds][]*op[write]
	var rest []*op[write]
	for _, o := range batch {
		// Of several writes of one key, only the first is part of the batch. The others
		// follow with its result.
		into := &groups[o.v.kind()]
		if n := len(*into); n > 0 && *(*into)[n-1].v.id() == *o.v.id() {
			into = &rest
		}
		*into = append(*into, o)
	}
	refused := s.durability.refusal()
	for _, k := range []kind{claiming, accepting} {
		asks := groups[k]
		if len(asks) == 0 || refused == nil && !s.replay.high() {
			continue
		}
		found, err := s.answer(ctx, asks)
		switch {
		case err != nil && refused != nil:
			return fmt.Errorf("%w; the record was not read: %w", refused, err)
		case err != nil:
			return err
		}
		s.replay.add(found, len(asks))
		if groups[k] = nil; refused != nil {
			continue // slow ones write no claim
		}
		asks = slices.DeleteFunc(asks, func(o *op[write]) bool { return !o.slow })
		for _, o := range asks {
			o.slow = false
		}
		groups[k] = asks
	}
	left, err := s.writeFast(ctx, &groups)
	if err != nil {
		return err
	}
	rest = slices.DeleteFunc(append(rest, left...), func(o *op[write]) bool {
		o.slow = o.v.kind() >= takes // they read more
		return o.slow
	})
	if len(rest) == 0 {
		return nil
	}
	_, err = s.answer(ctx, rest)
	return err
}

// answer reads the records of ops and answers from them. It marks ops as slow that must change
// something. It returns how many records it found.
func (s *Store) answer(ctx context.Context, ops []*op[write]) (found int, err error) {
	ids := make([]store.ID, len(ops))
	for i, o := range ops {
		ids[i] = *o.v.id()
	}
	rows, err := s.readRows(ctx, ids)
	if err != nil {
		return 0, err
	}
	for _, o := range ops {
		r := rows[*o.v.id()]
		if r != nil {
			found++
		}
		next, err := s.decide(&o.v, r)
		o.err, o.slow = err, next != rules.None
		o.v.binding = err == nil && !o.slow && r.binding(o.v.owner())
	}
	return found, nil
}

// writeFast inserts claims and acceptances and writes ends, all in one transaction and round
// trip. It returns the writes that were not possible that way.
func (s *Store) writeFast(ctx context.Context, groups *[kinds][]*op[write]) (left []*op[write], err error) {
	n := 0
	for _, ops := range groups {
		n += len(ops)
	}
	if n == 0 {
		return nil, nil
	}
	err = s.exec(ctx, func() (calls []call) {
		for k, ops := range groups {
			if len(ops) == 0 {
				continue
			}
			for _, o := range ops {
				o.v.done = false
			}
			calls = append(calls, s.fastCall(kind(k), ops, n == 1))
		}
		return calls
	})
	if err != nil {
		return nil, err
	}
	for k, ops := range groups {
		before := len(left)
		for _, o := range ops {
			if !o.v.done {
				left = append(left, o)
			}
		}
		if kind(k) <= accepting && len(ops) > 0 && !s.replay.high() {
			s.replay.add(len(left)-before, len(ops))
		}
	}
	return left, nil
}

// fastCall executes writes of one kind. A settle that is alone may wait for the row, up to rowPatience.
func (s *Store) fastCall(k kind, ops []*op[write], alone bool) call {
	var id []byte
	named := func(before ...any) func(scanner) error {
		return func(from scanner) error {
			err := from.Scan(append([]any{&id}, before...)...)
			if o := find(ops, id); o != nil {
				o.v.done = true
			}
			return err
		}
	}
	switch k {
	case settling:
		var one *statement
		if alone {
			one = s.sql.endOne
		}
		return batched(ended, ops, one, s.sql.end, named(new(bool)))
	case relaying:
		return batched(relayed, ops, nil, s.sql.relayedFree, named())
	case takes:
		return batched(taking, ops, nil, s.sql.takeFree, func(from scanner) error {
			var r row
			err := r.scan(from, allColumns)
			if o := find(ops, r.read.id); o != nil {
				o.v.done, o.v.rec, o.err = true, r.record(), err
			}
			return err
		})
	}
	var fence int64
	var at time.Time
	inserted := func(from scanner) error {
		if err := from.Scan(&id, &fence, &at); err != nil {
			return err
		}
		o := find(ops, id)
		if o == nil {
			return errDamaged
		}
		o.v.done, o.v.rec = true, o.v.granted(fence, at)
		return nil
	}
	if k == accepting {
		return batched(accepted, ops, s.sql.acceptOne, s.sql.accept, inserted)
	}
	return batched(claimed, ops, s.sql.insertOne, s.sql.insert, inserted)
}

// batched is a call with the parameters of ops: of one if there is a statement for one.
func batched(list []param, ops []*op[write], one, many *statement, row func(scanner) error) call {
	if len(ops) == 1 && one != nil {
		return call{one, args(list, &ops[0].v), row}
	}
	writes := make([]*write, len(ops))
	for i, o := range ops {
		writes[i] = &o.v
	}
	return call{many, arrays(list, writes), row}
}

// find returns the op of id among ops, which are sorted by it.
func find(ops []*op[write], id []byte) *op[write] {
	i, ok := slices.BinarySearchFunc(ops, id, func(o *op[write], id []byte) int { return bytes.Compare(o.v.id()[:], id) })
	if !ok {
		return nil
	}
	return ops[i]
}

// granted is the record of a claim or an acceptance that was inserted.
func (w *write) granted(fence int64, at time.Time) store.Record {
	rec := store.Record{ID: w.req.ID, Scope: w.req.Scope, Label: w.req.Label, State: store.Running, Fingerprint: w.req.Fingerprint, Owner: w.req.Owner,
		Fence: fence, Attempt: 1, LeaseLeft: w.req.Lease, ClaimedAt: at}
	if w.job != nil {
		rec.State, rec.Attempt, rec.LeaseLeft = store.Accepted, 0, 0
	}
	return rec
}
