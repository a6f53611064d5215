package sqlite

import (
	"cmp"
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/stet-go/stet/store"
)

const (
	dueChunk = 1000     // records returned by one Due
	dueBytes = 16 << 20 // of their work together, unless it is one
)

// Accept implements store.WorkStore.
func (s *Store) Accept(ctx context.Context, req store.ClaimRequest, work []byte, after time.Duration) (store.Record, error) {
	return s.ask(ctx, &asked{&req, some(work), after})
}

// some is b, which is not nil.
func some(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

// Take implements store.WorkStore.
func (s *Store) Take(ctx context.Context, req store.TakeRequest) (store.Record, error) {
	return s.whole(ctx, func(b *batch) (store.Record, error) { return take(b, req, b.now, b.draw) })
}

// whole has do executed in a batch, and returns the record that it returns.
func (s *Store) whole(ctx context.Context, do func(*batch) (store.Record, error)) (store.Record, error) {
	var rec store.Record
	err := s.write(ctx, func(b *batch) (err error) {
		rec, err = do(b)
		return err
	})
	if err != nil {
		return store.Record{}, err // a batch that is late may still be writing rec
	}
	return rec, nil
}

// take is the body of Take, in a write transaction.
func take(s session, req store.TakeRequest, now micros, fence draw) (store.Record, error) {
	r, err := look(s, req.ID)
	switch {
	case err != nil:
		return store.Record{}, err
	case r == nil || r.forgotten(now):
		return store.Record{ID: req.ID}, nil
	case r.lapsed(now) && r.Owner != req.Owner:
		if rec, err := markUnknown(s, r, now); err != nil || rec.State != store.Accepted {
			return rec, err
		}
	case r.State != store.Accepted || r.Owner == req.Owner || now < r.lease:
		return r.at(now), nil
	}
	next, err := fence()
	if err != nil {
		return store.Record{}, err
	}
	was := r.Fence
	if err := r.own(store.VerbTake, req.Owner, next, now); err != nil {
		return store.Record{}, err
	}
	r.Attempt++
	r.lease = now + span(req.Lease)
	var due any
	if req.Repeatable {
		due = r.lease
	}
	_, err = s.exec(qTake, req.Owner[:], int64(r.State), r.Fence, int64(r.Attempt), r.claimed, r.lease, r.lease, due, was, req.ID[:])
	return r.at(now), err
}

// keptFrom is the number of columns of columns.
const keptFrom = 20

// glance is load for store.Store.Read.
func glance(s session, id store.ID) (r *row, err error) {
	err = s.rows(qRead, func(v []driver.Value) error {
		r = &row{}
		if err := r.scan(id, v); err != nil {
			return err
		}
		cancelling, _ := v[keptFrom].(int64)
		r.Cancelling = cancelling != 0
		return nil
	}, id[:])
	if err != nil {
		return nil, err
	}
	return r, nil
}

// look is load with what only a store.WorkStore and a store.OutboxStore keep.
func look(s session, id store.ID) (r *row, err error) {
	err = s.rows(qLook, func(v []driver.Value) error {
		r = &row{}
		return r.scanWhole(id, v)
	}, id[:])
	if err != nil {
		return nil, err
	}
	return r, nil
}

// scanWhole is scan for what look selects.
func (r *row) scanWhole(id store.ID, v []driver.Value) error {
	if err := r.scan(id, v); err != nil {
		return err
	}
	cancelling, _ := v[keptFrom].(int64)
	r.Cancelling = cancelling != 0
	notes, _ := v[keptFrom+1].([]byte)
	r.Notes = store.UnmarshalNotes(notes)
	r.Work, _ = v[keptFrom+2].([]byte)
	if r.State.Settled() {
		r.Work, r.Outbox = nil, r.Work
	}
	return nil
}

// Return implements store.WorkStore.
func (s *Store) Return(ctx context.Context, c store.Claim, after time.Duration) error {
	return s.write(ctx, func(b *batch) error {
		n, err := b.exec(qReturn, b.now, b.now+span(after), b.now+span(after), c.Fence, c.ID[:])
		if err != nil || n == 1 {
			return err
		}
		return doneBefore(b, c, b.now, store.Accepted)
	})
}

// Cancel implements store.WorkStore.
func (s *Store) Cancel(ctx context.Context, c store.Claim, out store.Settlement, keep store.Retention) (store.Record, error) {
	return s.whole(ctx, func(b *batch) (store.Record, error) { return cancel(b, c, out, keep, b.now) })
}

// cancel is the body of Cancel, in a write transaction.
func cancel(s session, c store.Claim, out store.Settlement, keep store.Retention, now micros) (store.Record, error) {
	expires, forget := now+span(keep.Result), now+span(keep.Tombstone)
	due, gone, result := expires, int64(0), kept(out)
	if out.Gone {
		due, gone = forget, 1
	}
	n, err := s.exec(qCancel, gone, result[0], result[1], result[2], result[3], now, expires, forget, due, c.Fence, c.ID[:])
	if err == nil && n == 0 {
		n, err = s.exec(qCancelRun, c.Fence, c.ID[:])
	}
	if err != nil {
		return store.Record{}, err
	}
	r, err := look(s, c.ID)
	if err != nil {
		return store.Record{}, err
	}
	if n == 0 && (r == nil || r.forgotten(now) || r.Fence != c.Fence || !r.came(store.Failed, out, now)) {
		return store.Record{}, store.ErrFenced
	}
	return r.at(now), nil
}

// Save implements store.WorkStore.
func (s *Store) Save(ctx context.Context, c store.Claim, notes store.Notes, repeatable bool) error {
	return s.write(ctx, func(b *batch) error { return save(b, c, notes, store.Running, repeatable) })
}

// Amend implements store.WorkStore.
func (s *Store) Amend(ctx context.Context, c store.Claim, notes store.Notes) error {
	return s.write(ctx, func(b *batch) error { return save(b, c, notes, store.Unknown, false) })
}

// save is the body of Save for a record in that state, in a write transaction.
func save(s session, c store.Claim, notes store.Notes, in store.State, repeatable bool) error {
	mark := int64(0)
	if repeatable {
		mark = 1
	}
	version := store.Notes{Version: notes.Version}
	n, err := s.exec(qSave, some(notes.Marshal()), mark, c.Fence, c.ID[:], int64(in), some(version.Marshal()))
	if err != nil || n == 1 {
		return err
	}
	r, err := look(s, c.ID)
	if err != nil {
		return err
	}
	if r == nil || r.Fence != c.Fence || r.State != in || notes.Version != r.Notes.Version {
		return store.ErrFenced
	}
	return nil // the reply to the first time was lost
}

// Look implements store.WorkStore. It never waits for a writer.
func (s *Store) Look(ctx context.Context, id store.ID) (store.Record, error) {
	return s.readWith(ctx, id, look)
}

// Relayed implements store.OutboxStore.
func (s *Store) Relayed(ctx context.Context, c store.Claim, keep store.Retention) error {
	return s.write(ctx, func(b *batch) error {
		forget := b.now + span(keep.Tombstone)
		n, err := b.exec(qRelayed, forget, forget, forget, c.Fence, c.ID[:])
		if err != nil || n == 1 {
			return err
		}
		return doneBefore(b, c, b.now, store.Completed, store.Failed)
	})
}

// Due implements store.WorkStore. One call returns at most 1,000 records and 16 MiB of work,
// whatever limit is. If nothing is due, it does not wait for writers. Without names, it reads
// 256 names with waiting records, and the next call the following ones.
func (s *Store) Due(ctx context.Context, limit int, again time.Duration, names ...string) ([]store.Record, error) {
	if limit < 1 {
		return nil, ctx.Err()
	}
	lanes, err := s.lanes(ctx, names)
	if err != nil {
		return nil, err
	}
	return s.takeDue(ctx, lanes, limit, again)
}

// DueMessages implements store.OutboxStore. It is bounded like Due.
func (s *Store) DueMessages(ctx context.Context, limit int, again time.Duration) ([]store.Record, error) {
	if limit < 1 {
		return nil, ctx.Err()
	}
	return s.takeDue(ctx, []lane{{find: qDueRelay, put: qAgainRelay}}, limit, again)
}

// takeDue returns due records of some lanes, and makes them due again later.
func (s *Store) takeDue(ctx context.Context, lanes []lane, limit int, again time.Duration) ([]store.Record, error) {
	lanes, err := s.waits(ctx, lanes)
	if err != nil || len(lanes) == 0 {
		return nil, err
	}
	h := handing{lanes: lanes, limit: min(limit, dueChunk), again: again}
	err = s.write(ctx, func(b *batch) error { return h.all(b, b.now) })
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(h.recs, func(a, b waited) int { return cmp.Compare(a.since, b.since) })
	var recs []store.Record
	for _, rec := range h.recs {
		recs = append(recs, rec.Record)
	}
	return recs, h.hurt.err()
}

// lane is what waits for the same thing, under the same name.
type lane struct {
	find, put query
	of        []any // the name; nothing of messages to send
}

// lanes are those of some names; without names, of some under which something waits.
func (s *Store) lanes(ctx context.Context, names []string) (lanes []lane, err error) {
	if len(names) == 0 {
		err = s.read(ctx, func(l *link) (err error) {
			names, err = s.waiting(l)
			return err
		})
	}
	for _, i := range rand.Perm(len(names)) {
		lanes = append(lanes, lane{qDueRun, qAgainRun, []any{names[i]}})
	}
	return lanes, err
}

// waiting returns some names under which something waits, others each time if there
// are many.
func (s *Store) waiting(l *link) (names []string, err error) {
	from, found := "", true
	if next := s.dueFrom.Swap(nil); next != nil {
		from = *next
	}
	for len(names) < store.MaxDueNames {
		found = false
		err := l.rows(qNameFrom, func(v []driver.Value) error {
			var name string
			if name, found = v[0].(string); found {
				names, from = append(names, name), name+"\x00" // the next name
			}
			return nil
		}, from)
		if err != nil || !found {
			return names, err
		}
	}
	s.dueFrom.Store(&from)
	return names, nil
}

// waits returns those lanes in which something is due.
func (s *Store) waits(ctx context.Context, lanes []lane) (with []lane, err error) {
	now := s.o.Clock().UnixMicro()
	err = s.read(ctx, func(l *link) error {
		for _, lane := range lanes {
			q := qWaitsRun
			if lane.find == qDueRelay {
				q = qWaitsRelay
			}
			n, err := one(l, q, append(slices.Clip(lane.of), now)...)
			if err != nil {
				return err
			}
			if n != 0 {
				with = append(with, lane)
			}
		}
		return nil
	})
	return with, err
}

// waited is a record that was due since then.
type waited struct {
	store.Record
	since micros
}

// handing is one call of Due or DueMessages.
type handing struct {
	lanes []lane
	limit int
	again time.Duration
	recs  []waited
	hurt  hurt
	size  int
}

// all is the body of Due, in a write transaction. The lanes have equal shares of the
// room; what one has no use for is left to the others.
func (h *handing) all(s session, now micros) error {
	lanes := h.lanes
	h.recs, h.hurt, h.size = nil, hurt{}, 0
	for room := h.limit; room > 0 && len(lanes) > 0; room = h.limit - len(h.recs) - len(h.hurt.claims) {
		share := max(room/len(lanes), 1)
		var more []lane
		for _, l := range lanes[:min(len(lanes), room)] {
			n, err := h.some(s, l, share, now)
			if errors.Is(err, errEnough) {
				return nil
			}
			if err != nil {
				return err
			}
			if n == share {
				more = append(more, l)
			}
		}
		lanes = append(more, lanes[min(len(lanes), room):]...)
	}
	return nil
}

// some returns at most share due records of one lane, and their number. It returns errEnough
// if the limit is reached.
func (h *handing) some(s session, l lane, share int, now micros) (n int, err error) {
	var fences []int64
	full := s.rows(l.find, func(v []driver.Value) error {
		r := &row{}
		id, err := rowID(v[keptFrom+3])
		err = errors.Join(err, r.scanWhole(id, v))
		relay := l.find == qDueRelay
		if waits := r.State.Settled(); err == nil && waits != relay || err == nil && !waits && r.State != store.Accepted && !r.repeatable {
			err = unreadable(id, fmt.Sprintf("it is %v, and waits in a queue", r.State))
		}
		if h.size += len(r.Work) + len(r.Outbox); err == nil && h.size > dueBytes && len(h.recs) > 0 {
			return errEnough
		}
		if fences = append(fences, r.Fence); err != nil {
			h.hurt.add(r.Claim(), err)
		} else {
			since, _ := v[keptFrom+4].(int64)
			h.recs = append(h.recs, waited{r.at(now), since})
		}
		return nil
	}, append(slices.Clip(l.of), now, int64(share))...)
	if full != nil && !errors.Is(full, errEnough) {
		return 0, full
	}
	for _, fence := range fences {
		if _, err := s.exec(l.put, now+span(h.again), fence); err != nil {
			return 0, err
		}
	}
	return len(fences), full
}
