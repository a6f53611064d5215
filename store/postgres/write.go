package postgres

import (
	"bytes"
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
	"github.com/stet-go/stet/store"
)

// write is a claim, an acceptance, a settle or release, a worker's claim, or the end
// of relaying.
type write struct {
	req  *store.ClaimRequest
	job  *job // what is accepted; nil for a claim
	end  *ending
	take *store.TakeRequest
	sent *sent
	rec  store.Record // what came of it, unless it is an end
	done bool         // by the first statement

	binding bool // what came of it was read; see row.binding
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
	switch w.kind() {
	case settling:
		return w.end.size()
	case accepting:
		return len(w.job.work)
	}
	return 0
}

func (e *ending) size() int { return len(e.out.Result) + len(e.out.Outbox) }

// decide says what w comes to, given that r is the record.
func (w *write) decide(r *row) (next step, err error) {
	if w.req != nil {
		w.rec, next, err = onClaim(w.req, r)
		return next, err
	}
	return onEnding(w.end, r)
}

// replayShare tells whether most claims find a record. Then it pays to look
// first: an insertion that fails costs more than a look.
type replayShare struct{ share atomic.Int64 } // of 1,000, smoothed

func (s *replayShare) add(found, of int) {
	old := s.share.Load()
	s.share.Store(old + (int64(found)*1000/int64(of)-old)/4) // a lost update does not matter
}

func (s *replayShare) high() bool { return s.share.Load() > 500 }

// runWrites deals with a batch of writes. Those that are not free to be done in
// company it marks as slow.
func (s *Store) runWrites(ctx context.Context, batch []*op[write]) {
	if len(batch) > 1 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, batchTimeout)
		defer cancel()
	}
	err := s.writeBatch(ctx, batch)
	if err == nil {
		return
	}
	if len(batch) == 1 && lockedRow(err) {
		s.holds.found(*batch[0].v.id())
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
		// Of several on one key the first goes ahead. The others come after
		// it, when they have seen what it did.
		into := &groups[o.v.kind()]
		if n := len(*into); n > 0 && *(*into)[n-1].v.id() == *o.v.id() {
			into = &rest
		}
		*into = append(*into, o)
	}
	if claims := groups[claiming]; len(claims) > 0 && s.replay.high() {
		found, err := s.answer(ctx, claims)
		if err != nil {
			return err
		}
		s.replay.add(found, len(claims))
		claims = slices.DeleteFunc(claims, func(o *op[write]) bool { return !o.slow })
		for _, o := range claims {
			o.slow = false
		}
		groups[claiming] = claims
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

// answer reads the records of ops and answers each from what it finds. Those
// that are to change something are marked as slow. It returns how many found a
// record.
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
		next, err := o.v.decide(r)
		o.err, o.slow = err, next != stepNone
		o.v.binding = err == nil && !o.slow && r.binding(o.v.owner())
	}
	return found, nil
}

// writeFast inserts claims and acceptances and writes ends, all in one transaction
// and round trip, and returns those that were not to be had so.
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
			calls = append(calls, s.fastCall(kind(k), ops))
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
		if kind(k) == claiming && len(ops) > 0 && !s.replay.high() {
			s.replay.add(len(left)-before, len(ops))
		}
	}
	return left, nil
}

// fastCall is what writes of one kind have in common.
func (s *Store) fastCall(k kind, ops []*op[write]) call {
	named := func(values [][]byte) error {
		if o := find(ops, values[0]); o != nil {
			o.v.done = true
		}
		return nil
	}
	switch k {
	case settling:
		return call{some(ops, s.sql.endFree, s.sql.end), endParams(ops), named}
	case relaying:
		return call{s.sql.relayedFree, relayedParams(ops), named}
	case takes:
		return call{s.sql.takeFree, takeParams(ops), func(values [][]byte) error {
			var r row
			err := r.scanWhole(values)
			if o := find(ops, r.ID[:]); o != nil {
				o.v.done, o.v.rec, o.err = true, r.record(), err
			}
			return nil
		}}
	}
	c := call{row: func(values [][]byte) error {
		f := fields{values: values}
		o := find(ops, f.next(len(store.ID{})))
		if o == nil {
			return errDamaged
		}
		o.v.done, o.v.rec = true, o.v.granted(f.int64(), f.time())
		return f.err()
	}}
	if k == accepting {
		c.statement, c.params = some(ops, s.sql.acceptOne, s.sql.accept), acceptParams(ops)
	} else {
		c.statement, c.params = some(ops, s.sql.insertOne, s.sql.insert), insertParams(ops)
	}
	return c
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
func (w *write) granted(fence, at int64) store.Record {
	rec := store.Record{ID: w.req.ID, Scope: w.req.Scope, Label: w.req.Label, State: store.Running, Fingerprint: w.req.Fingerprint, Owner: w.req.Owner,
		Fence: fence, Attempt: 1, LeaseLeft: w.req.Lease, ClaimedAt: instant(at)}
	if w.job != nil {
		rec.State, rec.Attempt, rec.LeaseLeft = store.Accepted, 0, 0
	}
	return rec
}

// some chooses the statement for one op or for many.
func some(ops []*op[write], one, many *statement) *statement {
	if len(ops) == 1 {
		return one
	}
	return many
}

// column is a parameter: the value of the only op, or an array of those of all.
func (p *params) column(ops []*op[write], oid uint32, value func(*write)) {
	one := len(ops) == 1
	start := len(p.buf)
	if one {
		p.begin()
	} else {
		p.array(oid, len(ops))
	}
	for _, o := range ops {
		value(&o.v)
	}
	if !one {
		return
	}
	// A lone value has no length before it, and its absence is a mark.
	if p.buf[start] == 0xff {
		p.nulls |= 1 << (len(p.starts) - 1)
		p.buf = p.buf[:start]
		return
	}
	p.buf = append(p.buf[:start], p.buf[start+4:]...)
}

func labelSize(l store.Label) int { return 3*4 + len(l.Class) + len(l.Name) + len(l.Ref) }

func insertParams(ops []*op[write]) (p params) {
	size := 8 * 20
	for _, o := range ops {
		size += 36 + 36 + 37 + 20 + 20 + labelSize(o.v.req.Label)
	}
	p.buf = make([]byte, 0, size)
	p.asking(ops)
	p.column(ops, pgtype.IntervalOID, func(w *write) { p.span(w.req.Lease) })
	return p
}

func acceptParams(ops []*op[write]) (p params) {
	size := 9 * 20
	for _, o := range ops {
		size += o.v.size() + 36 + 36 + 37 + 20 + 20 + 4 + labelSize(o.v.req.Label)
	}
	p.buf = make([]byte, 0, size)
	p.asking(ops)
	p.column(ops, pgtype.IntervalOID, func(w *write) { p.span(w.job.after) })
	p.column(ops, pgtype.ByteaOID, func(w *write) { p.bytes(w.job.work) })
	return p
}

// asking are the parameters that claims and acceptances have in common.
func (p *params) asking(ops []*op[write]) {
	p.column(ops, pgtype.ByteaOID, func(w *write) { p.bytes(w.req.ID[:]) })
	p.column(ops, pgtype.ByteaOID, func(w *write) { p.bytes(w.req.Scope[:]) })
	p.column(ops, pgtype.ByteaOID, func(w *write) { p.bytes(w.req.Fingerprint[:]) })
	p.column(ops, pgtype.ByteaOID, func(w *write) { p.bytes(w.req.Owner[:]) })
	p.column(ops, pgtype.TextOID, func(w *write) { p.text(w.req.Label.Class) })
	p.column(ops, pgtype.TextOID, func(w *write) { p.text(w.req.Label.Name) })
	p.column(ops, pgtype.TextOID, func(w *write) { p.text(w.req.Label.Ref) })
}

func endParams(ops []*op[write]) (p params) {
	size := 9 * 20
	for _, o := range ops {
		size += o.v.size() + 36 + 12 + 6 + 5 + 4 + 3*20 + 4
	}
	p.buf = make([]byte, 0, size)
	p.column(ops, pgtype.ByteaOID, func(w *write) { p.bytes(w.end.claim.ID[:]) })
	p.column(ops, pgtype.Int8OID, func(w *write) { p.int64(w.end.claim.Fence) })
	p.column(ops, pgtype.Int2OID, func(w *write) { p.int16(int16(w.end.out.State)) })
	p.column(ops, pgtype.BoolOID, func(w *write) { p.bool(w.end.out.Gone) })
	p.column(ops, pgtype.ByteaOID, func(w *write) {
		if w.end.release || w.end.out.Gone {
			p.null()
			return
		}
		p.bytes(w.end.out.Result)
	})
	p.column(ops, pgtype.IntervalOID, func(w *write) {
		if w.end.release { // it has no result that expires
			p.null()
			return
		}
		p.span(w.end.keep.Result)
	})
	p.column(ops, pgtype.IntervalOID, func(w *write) { p.spanIf(w.end.forget()) })
	p.column(ops, pgtype.IntervalOID, func(w *write) { p.spanIf(w.end.due()) })
	p.column(ops, pgtype.ByteaOID, func(w *write) {
		if w.end.out.Outbox == nil {
			p.null()
			return
		}
		p.bytes(w.end.out.Outbox)
	})
	return p
}
