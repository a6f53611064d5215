package postgres

import (
	"bytes"
	"context"
	"slices"
	"sync/atomic"

	"github.com/jackc/pgx/v5/pgtype"
	"github.com/stet-go/stet"
)

// write is a claim, or a settle or release.
type write struct {
	req  *stet.ClaimRequest
	end  *ending
	rec  stet.Record // what a claim came to
	done bool        // by the first statement
}

func (w *write) id() *stet.ID {
	if w.req != nil {
		return &w.req.ID
	}
	return &w.end.claim.ID
}

func (w *write) size() int {
	if w.end != nil {
		return len(w.end.out.Result)
	}
	return 0
}

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
	for _, o := range batch {
		if len(batch) > 1 && answered(err) {
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
	var claims, ends, rest []*op[write]
	for _, o := range batch {
		// Of several on one key the first goes ahead. The others come after
		// it, when they have seen what it did.
		into := &ends
		if o.v.req != nil {
			into = &claims
		}
		if n := len(*into); n > 0 && *(*into)[n-1].v.id() == *o.v.id() {
			into = &rest
		}
		*into = append(*into, o)
	}
	if len(claims) > 0 && s.replay.high() {
		found, err := s.answer(ctx, claims)
		if err != nil {
			return err
		}
		s.replay.add(found, len(claims))
		claims = slices.DeleteFunc(claims, func(o *op[write]) bool { return !o.slow })
		for _, o := range claims {
			o.slow = false
		}
	}
	left, err := s.writeFast(ctx, claims, ends)
	if err != nil {
		return err
	}
	if rest = append(rest, left...); len(rest) == 0 {
		return nil
	}
	_, err = s.answer(ctx, rest)
	return err
}

// answer reads the records of ops and answers each from what it finds. Those
// that are to change something are marked as slow. It returns how many found a
// record.
func (s *Store) answer(ctx context.Context, ops []*op[write]) (found int, err error) {
	ids := make([]stet.ID, len(ops))
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
	}
	return found, nil
}

// writeFast inserts claims and writes ends, all in one transaction and round
// trip, and returns those that were not to be had so.
func (s *Store) writeFast(ctx context.Context, claims, ends []*op[write]) (left []*op[write], err error) {
	if len(claims)+len(ends) == 0 {
		return nil, nil
	}
	err = s.exec(ctx, func() (calls []call) {
		for _, ops := range [][]*op[write]{claims, ends} {
			for _, o := range ops {
				o.v.done = false
			}
		}
		if len(claims) > 0 {
			calls = append(calls, call{some(claims, s.sql.insertOne, s.sql.insert), insertParams(claims), func(values [][]byte) error {
				f := fields{values: values}
				o := find(claims, f.next(len(stet.ID{})))
				if o == nil {
					return errDamaged
				}
				o.v.done, o.v.rec = true, grant(o.v.req, f.int64(), f.time())
				return f.err()
			}})
		}
		if len(ends) > 0 {
			calls = append(calls, call{some(ends, s.sql.endFree, s.sql.end), endParams(ends), func(values [][]byte) error {
				if o := find(ends, values[0]); o != nil {
					o.v.done = true
				}
				return nil
			}})
		}
		return calls
	})
	if err != nil {
		return nil, err
	}
	notDone := func(ops []*op[write]) (n int) {
		for _, o := range ops {
			if !o.v.done {
				left = append(left, o)
				n++
			}
		}
		return n
	}
	if n := notDone(claims); len(claims) > 0 && !s.replay.high() {
		s.replay.add(n, len(claims))
	}
	notDone(ends)
	return left, nil
}

// find returns the op of id among ops, which are sorted by it.
func find(ops []*op[write], id []byte) *op[write] {
	i, ok := slices.BinarySearchFunc(ops, id, func(o *op[write], id []byte) int { return bytes.Compare(o.v.id()[:], id) })
	if !ok {
		return nil
	}
	return ops[i]
}

// grant is the record of a claim that was inserted.
func grant(req *stet.ClaimRequest, fence, at int64) stet.Record {
	return stet.Record{ID: req.ID, Scope: req.Scope, State: stet.Running, Fingerprint: req.Fingerprint, Owner: req.Owner,
		Fence: fence, Attempt: 1, LeaseLeft: req.Lease, ClaimedAt: instant(at)}
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

func insertParams(ops []*op[write]) (p params) {
	p.buf = make([]byte, 0, 5*20+len(ops)*(36+36+37+20+20))
	p.column(ops, pgtype.ByteaOID, func(w *write) { p.bytes(w.req.ID[:]) })
	p.column(ops, pgtype.ByteaOID, func(w *write) { p.bytes(w.req.Scope[:]) })
	p.column(ops, pgtype.ByteaOID, func(w *write) { p.bytes(w.req.Fingerprint[:]) })
	p.column(ops, pgtype.ByteaOID, func(w *write) { p.bytes(w.req.Owner[:]) })
	p.column(ops, pgtype.IntervalOID, func(w *write) { p.span(w.req.Lease) })
	return p
}

func endParams(ops []*op[write]) (p params) {
	size := 8 * 20
	for _, o := range ops {
		size += o.v.size() + 36 + 12 + 6 + 5 + 4 + 3*20
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
	p.column(ops, pgtype.IntervalOID, func(w *write) { p.span(w.end.forget()) })
	p.column(ops, pgtype.IntervalOID, func(w *write) { p.span(w.end.due()) })
	return p
}
