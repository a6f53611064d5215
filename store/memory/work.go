package memory

import (
	"bytes"
	"container/heap"
	"context"
	"slices"
	"time"

	"github.com/stet-go/stet"
)

// work is what a record holds besides its outcome.
type work struct {
	what       []byte // to be run, or once settled to be sent
	notes      []byte
	cancelling bool
	due        instant // when it is handed out next; never while it runs
}

// accepted reports whether e is of an accepted operation that has not ended.
func (e *entry) accepted() bool {
	return e.work != nil && e.work.what != nil && !e.state.Settled()
}

// Accept implements stet.WorkStore.
func (s *Store) Accept(ctx context.Context, req stet.ClaimRequest, what []byte, later time.Duration) (stet.Record, error) {
	if err := ctx.Err(); err != nil {
		return stet.Record{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	e := s.current(req.ID, now)
	switch {
	case e == nil:
		if s.n >= s.o.MaxRecords {
			return stet.Record{}, s.full()
		}
		e = s.add(req)
		s.accept(e, req, what, now, later)
	case e.fingerprint != req.Fingerprint:
		return s.record(e, now), stet.ErrMismatch
	case e.state == stet.Running && e.owner != req.Owner && now >= e.leaseEnd:
		s.park(e, now)
	case e.state == stet.Retryable && e.owner != req.Owner:
		s.accept(e, req, what, now, later)
	}
	return s.record(e, now), nil
}

// accept makes e wait for a worker. The caller holds s.mu.
func (s *Store) accept(e *entry, req stet.ClaimRequest, what []byte, now instant, later time.Duration) {
	e.to(stet.VerbAccept)
	s.own(e, req.Owner, now)
	e.works().what = what
	s.wait(e, stet.DueRun, after(now, later))
}

// works returns e's work, made if there was none. The caller holds the store's mu.
func (e *entry) works() *work {
	if e.work == nil {
		e.work = &work{due: never}
	}
	return e.work
}

// Take implements stet.WorkStore.
func (s *Store) Take(ctx context.Context, id stet.ID, owner stet.Owner, lease time.Duration) (stet.Record, error) {
	if err := ctx.Err(); err != nil {
		return stet.Record{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	e := s.current(id, now)
	switch {
	case e == nil:
		return stet.Record{ID: id}, nil
	case e.state == stet.Running && e.owner != owner && now >= e.leaseEnd:
		s.park(e, now)
	case e.state == stet.Accepted && e.owner != owner:
		e.to(stet.VerbTake)
		e.attempt++
		e.leaseEnd = after(now, lease)
		s.own(e, owner, now)
		e.work.due = never
	}
	return s.whole(e, now), nil
}

// whole is record with what only a WorkStore keeps. The caller holds s.mu.
func (s *Store) whole(e *entry, now instant) stet.Record {
	r := s.record(e, now)
	if e.work != nil {
		r.Work, r.Notes, r.Cancelling = e.work.what, e.work.notes, e.work.cancelling
	}
	return r
}

// Return implements stet.WorkStore.
func (s *Store) Return(ctx context.Context, c stet.Claim, later time.Duration) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	e := s.current(c.ID, now)
	if e == nil || e.fence != c.Fence || !e.accepted() {
		return stet.ErrFenced
	}
	if e.state == stet.Accepted {
		return nil // the reply to the first time was lost
	}
	if _, ok := e.state.Next(stet.VerbReturn); !ok {
		return stet.ErrFenced
	}
	s.handBack(e, now, later)
	return nil
}

// handBack makes e wait for a worker again. The caller holds s.mu.
func (s *Store) handBack(e *entry, now instant, later time.Duration) {
	e.to(stet.VerbReturn)
	e.ended, e.settled = true, now
	s.wait(e, stet.DueRun, after(now, later))
}

// Cancel implements stet.WorkStore.
func (s *Store) Cancel(ctx context.Context, c stet.Claim, out stet.Outcome, keep stet.Retention) (stet.Record, error) {
	if err := ctx.Err(); err != nil {
		return stet.Record{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	e := s.current(c.ID, now)
	switch {
	case e == nil || e.fence != c.Fence:
		return stet.Record{}, stet.ErrFenced
	case e.state == stet.Accepted:
		e.to(stet.VerbCancel)
		e.result, e.gone, e.work = out.Result, out.Gone, nil
		e.ended, e.settled, e.expires, e.forget = true, now, after(now, keep.Result), after(now, keep.Tombstone)
	case e.state == stet.Running && e.accepted():
		e.work.cancelling = true
	case e.state != stet.Failed || !e.gone && (out.Gone || !bytes.Equal(e.result, out.Result)):
		return stet.Record{}, stet.ErrFenced
	}
	return s.whole(e, now), nil
}

// Save implements stet.WorkStore.
func (s *Store) Save(ctx context.Context, c stet.Claim, notes []byte) error {
	return s.save(ctx, c, notes, stet.Running)
}

// Strike implements stet.WorkStore.
func (s *Store) Strike(ctx context.Context, c stet.Claim, notes []byte) error {
	return s.save(ctx, c, notes, stet.Unknown)
}

// save is Save for a record in that state.
func (s *Store) save(ctx context.Context, c stet.Claim, notes []byte, in stet.State) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.current(c.ID, s.now())
	if e == nil || e.fence != c.Fence || e.state != in {
		return stet.ErrFenced
	}
	w := e.works()
	switch was := version(w.notes); bytes.Compare(version(notes), was) {
	case 0:
		return nil // the reply to the first time was lost
	case -1:
		return stet.ErrFenced
	}
	w.notes = notes
	return nil
}

// version is what notes begin with.
func version(notes []byte) []byte { return notes[:min(8, len(notes))] }

// Look implements stet.WorkStore.
func (s *Store) Look(ctx context.Context, id stet.ID) (stet.Record, error) {
	if err := ctx.Err(); err != nil {
		return stet.Record{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	e := s.current(id, now)
	if e == nil {
		return stet.Record{ID: id}, nil
	}
	return s.whole(e, now), nil
}

// Relayed implements stet.WorkStore.
func (s *Store) Relayed(ctx context.Context, c stet.Claim, keep stet.Retention) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	e := s.current(c.ID, now)
	if e == nil || e.fence != c.Fence || !e.state.Settled() {
		return stet.ErrFenced
	}
	if e.work != nil {
		e.work, e.forget = nil, after(now, keep.Tombstone)
	}
	return nil
}

// Due implements stet.WorkStore.
func (s *Store) Due(ctx context.Context, what stet.Due, limit int, again time.Duration) ([]stet.Record, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	var recs []stet.Record
	for q := &s.queues[what]; len(*q) > 0 && len(recs) < limit && (*q)[0].due <= now; {
		place, _ := heap.Pop(q).(waiting)
		e := s.current(place.id, now)
		if e == nil || e.work == nil || e.work.due != place.due || e.state.Settled() != (what == stet.DueRelay) {
			continue // it has waited for something else since
		}
		s.wait(e, what, after(now, again))
		rec := s.record(e, now)
		rec.Work = e.work.what
		recs = append(recs, rec)
	}
	return recs, nil
}

// waiting is a place in a queue. It is out of date if its record is due at
// another time by now.
type waiting struct {
	due instant
	id  stet.ID
}

// wait makes e due. The caller holds s.mu.
func (s *Store) wait(e *entry, what stet.Due, due instant) {
	e.work.due = due
	q := &s.queues[what]
	if len(*q) > 2*s.n+chunk {
		s.tidy(q)
	}
	heap.Push(q, waiting{due, e.id})
}

// tidy removes the places that are out of date, which otherwise go when they are
// due. The caller holds s.mu.
func (s *Store) tidy(q *queue) {
	*q = slices.DeleteFunc(*q, func(w waiting) bool {
		i, ok := s.index[w.id]
		return !ok || s.at(i).work == nil || s.at(i).work.due != w.due
	})
	heap.Init(q)
}

// queue is a heap of what waits, by when it is due.
type queue []waiting

func (q queue) Len() int           { return len(q) }
func (q queue) Less(i, j int) bool { return q[i].due < q[j].due }
func (q queue) Swap(i, j int)      { q[i], q[j] = q[j], q[i] }

// Push implements heap.Interface.
func (q *queue) Push(x any) {
	w, _ := x.(waiting)
	*q = append(*q, w)
}

// Pop implements heap.Interface.
func (q *queue) Pop() any {
	last := len(*q) - 1
	w := (*q)[last]
	*q = (*q)[:last]
	return w
}
