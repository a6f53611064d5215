package sqlite

import (
	"bytes"
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"time"

	"github.com/stet-go/stet"
)

const (
	dueChunk = 1000     // records handed out by one Due
	dueBytes = 16 << 20 // of their work together, unless it is one
)

// Accept implements stet.WorkStore.
func (s *Store) Accept(ctx context.Context, req stet.ClaimRequest, work []byte, after time.Duration) (stet.Record, error) {
	return s.ask(ctx, &asked{&req, some(work), after})
}

// some is b, which is not nil.
func some(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

// Take implements stet.WorkStore.
func (s *Store) Take(ctx context.Context, id stet.ID, owner stet.Owner, lease time.Duration) (stet.Record, error) {
	return s.whole(ctx, func(b *batch) (stet.Record, error) { return take(b, id, owner, lease, b.now, b.draw) })
}

// whole has do executed in a batch, and returns the record that it returns.
func (s *Store) whole(ctx context.Context, do func(*batch) (stet.Record, error)) (stet.Record, error) {
	var rec stet.Record
	err := s.write(ctx, func(b *batch) (err error) {
		rec, err = do(b)
		return err
	})
	if err != nil {
		return stet.Record{}, err // a batch that is late may still be writing rec
	}
	return rec, nil
}

// take is the body of Take, in a write transaction.
func take(s session, id stet.ID, owner stet.Owner, lease time.Duration, now micros, fence draw) (stet.Record, error) {
	r, err := look(s, id)
	switch {
	case err != nil:
		return stet.Record{}, err
	case r == nil || r.forgotten(now):
		return stet.Record{ID: id}, nil
	case r.lapsed(now) && r.Owner != owner:
		return park(s, r, now)
	case r.State != stet.Accepted || r.Owner == owner:
		return r.at(now), nil
	}
	next, err := fence()
	if err != nil {
		return stet.Record{}, err
	}
	was := r.Fence
	if err := r.own(stet.VerbTake, owner, next, now); err != nil {
		return stet.Record{}, err
	}
	r.Attempt++
	r.lease = now + span(lease)
	_, err = s.exec(qTake, owner[:], int64(r.State), r.Fence, int64(r.Attempt), r.claimed, r.lease, r.lease, was, id[:])
	return r.at(now), err
}

// look is load with what only a stet.WorkStore keeps.
func look(s session, id stet.ID) (r *row, err error) {
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
func (r *row) scanWhole(id stet.ID, v []driver.Value) error {
	if err := r.scan(id, v); err != nil {
		return err
	}
	cancelling, _ := v[13].(int64)
	r.Cancelling = cancelling != 0
	r.Notes, _ = v[14].([]byte)
	r.Work, _ = v[15].([]byte)
	return nil
}

// Return implements stet.WorkStore.
func (s *Store) Return(ctx context.Context, c stet.Claim, after time.Duration) error {
	return s.write(ctx, func(b *batch) error {
		n, err := b.exec(qReturn, b.now, b.now+span(after), c.Fence, c.ID[:])
		if err != nil || n == 1 {
			return err
		}
		return doneBefore(b, c, b.now, stet.Accepted)
	})
}

// Cancel implements stet.WorkStore.
func (s *Store) Cancel(ctx context.Context, c stet.Claim, out stet.Outcome, keep stet.Retention) (stet.Record, error) {
	return s.whole(ctx, func(b *batch) (stet.Record, error) { return cancel(b, c, out, keep, b.now) })
}

// cancel is the body of Cancel, in a write transaction.
func cancel(s session, c stet.Claim, out stet.Outcome, keep stet.Retention, now micros) (stet.Record, error) {
	expires, forget := now+span(keep.Result), now+span(keep.Tombstone)
	due, gone, result := expires, int64(0), any(out.Result)
	if out.Gone {
		due, gone, result = forget, 1, nil
	}
	n, err := s.exec(qCancel, gone, result, now, expires, forget, due, c.Fence, c.ID[:])
	if err == nil && n == 0 {
		n, err = s.exec(qCancelRun, c.Fence, c.ID[:])
	}
	if err != nil {
		return stet.Record{}, err
	}
	r, err := look(s, c.ID)
	if err != nil {
		return stet.Record{}, err
	}
	if n == 0 && (r == nil || r.forgotten(now) || r.Fence != c.Fence || !r.came(stet.Failed, out, now)) {
		return stet.Record{}, stet.ErrFenced
	}
	return r.at(now), nil
}

// versionSize is how many bytes of notes are their version.
const versionSize = 8

func version(notes []byte) []byte { return notes[:min(versionSize, len(notes))] }

// Save implements stet.WorkStore.
func (s *Store) Save(ctx context.Context, c stet.Claim, notes []byte) error {
	return s.write(ctx, func(b *batch) error { return save(b, c, notes, stet.Running) })
}

// Strike implements stet.WorkStore.
func (s *Store) Strike(ctx context.Context, c stet.Claim, notes []byte) error {
	return s.write(ctx, func(b *batch) error { return save(b, c, notes, stet.Unknown) })
}

// save is the body of Save for a record in that state, in a write transaction.
func save(s session, c stet.Claim, notes []byte, in stet.State) error {
	n, err := s.exec(qSave, some(notes), c.Fence, c.ID[:], int64(in), some(version(notes)))
	if err != nil || n == 1 {
		return err
	}
	r, err := look(s, c.ID)
	if err != nil {
		return err
	}
	if r == nil || r.Fence != c.Fence || r.State != in || !bytes.Equal(version(notes), version(r.Notes)) {
		return stet.ErrFenced
	}
	return nil // the reply to the first time was lost
}

// Look implements stet.WorkStore. It never waits for a writer.
func (s *Store) Look(ctx context.Context, id stet.ID) (stet.Record, error) {
	return s.readWith(ctx, id, look)
}

// Relayed implements stet.WorkStore.
func (s *Store) Relayed(ctx context.Context, c stet.Claim, keep stet.Retention) error {
	return s.write(ctx, func(b *batch) error {
		forget := b.now + span(keep.Tombstone)
		n, err := b.exec(qRelayed, forget, forget, forget, c.Fence, c.ID[:])
		if err != nil || n == 1 {
			return err
		}
		return doneBefore(b, c, b.now, stet.Completed, stet.Failed)
	})
}

// Due implements stet.WorkStore. At most 1,000 records are returned by one call,
// and fewer when their work is more than 16 MiB, whatever limit says. Asking for
// what is not there waits for no writer.
func (s *Store) Due(ctx context.Context, what stet.Due, limit int, again time.Duration) ([]stet.Record, error) {
	if limit < 1 {
		return nil, ctx.Err()
	}
	waits, err := s.waits(ctx, what)
	if err != nil || !waits {
		return nil, err
	}
	var recs []stet.Record
	err = s.write(ctx, func(b *batch) (err error) {
		recs, err = handOut(b, what, min(limit, dueChunk), again, b.now)
		return err
	})
	if err != nil {
		return nil, err
	}
	return recs, nil
}

// waits reports whether anything is due.
func (s *Store) waits(ctx context.Context, what stet.Due) (waits bool, err error) {
	now := s.o.Clock().UnixMicro()
	err = s.read(ctx, func(l *link) error {
		return l.rows(qWaits, func(v []driver.Value) error {
			n, _ := v[what].(int64)
			waits = n != 0
			return nil
		}, now, now)
	})
	return waits, err
}

// handOut is the body of Due, in a write transaction.
func handOut(s session, what stet.Due, limit int, again time.Duration, now micros) (recs []stet.Record, err error) {
	find, put := qDueRun, qAgainRun
	if what == stet.DueRelay {
		find, put = qDueRelay, qAgainRelay
	}
	size := 0
	err = s.rows(find, func(v []driver.Value) error {
		var id stet.ID
		if b, _ := v[16].([]byte); copy(id[:], b) != len(id) {
			return fmt.Errorf("%w: a record is unreadable", errDamaged)
		}
		r := &row{}
		if err := r.scanWhole(id, v); err != nil {
			return err
		}
		if size += len(r.Work); size > dueBytes && len(recs) > 0 {
			return errEnough
		}
		recs = append(recs, r.at(now))
		return nil
	}, now, int64(limit))
	if err != nil && !errors.Is(err, errEnough) {
		return nil, err
	}
	for _, rec := range recs {
		if _, err := s.exec(put, now+span(again), rec.Fence, rec.ID[:]); err != nil {
			return nil, err
		}
	}
	return recs, nil
}
