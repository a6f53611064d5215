package memory

import (
	"cmp"
	"container/heap"
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/stet-go/stet/store"
)

// work is what a record holds besides its outcome.
type work struct {
	what       []byte // to be run, or once settled to be sent
	notes      store.Notes
	cancelling bool
	due        instant // when it is handed out next; never while it runs, unless the run is repeatable
}

// accepted reports whether e is of an accepted operation that has not ended.
func (e *entry) accepted() bool {
	return e.work != nil && e.work.what != nil && !e.state.Settled()
}

// repeatable reports whether e's run is due when its lease has run out.
func (e *entry) repeatable() bool {
	return e.state == store.Running && e.work != nil && e.work.due != never
}

// Accept implements store.WorkStore.
func (s *Store) Accept(ctx context.Context, req store.ClaimRequest, what []byte, later time.Duration) (store.Record, error) {
	return s.enter(ctx, req, func(e *entry, now instant) { s.accept(e, req, what, now, later) })
}

// accept makes e wait for a worker. The caller holds its shard's mu.
func (s *Store) accept(e *entry, req store.ClaimRequest, what []byte, now instant, later time.Duration) {
	e.to(store.VerbAccept)
	e.label = req.Label
	s.own(e, req.Owner, now)
	if what == nil {
		what = []byte{} // nil says that it was not accepted
	}
	e.works().what = what
	e.leaseEnd = after(now, later)
	s.wait(e, after(now, max(later, req.Queued)))
}

// postpone makes e, which is accepted, due: before that it cannot be taken. The caller
// holds its shard's mu.
func (s *Store) postpone(e *entry, due instant) {
	e.leaseEnd = due
	s.wait(e, due)
}

// works returns e's work, made if there was none. The caller holds its shard's mu.
func (e *entry) works() *work {
	if e.work == nil {
		e.work = &work{due: never}
	}
	return e.work
}

// Take implements store.WorkStore.
func (s *Store) Take(ctx context.Context, req store.TakeRequest) (store.Record, error) {
	return s.look(ctx, req.ID, func(e *entry, now instant) store.Record {
		if e.state == store.Running && e.owner != req.Owner && now >= e.leaseEnd {
			s.park(e, now)
		}
		if e.state == store.Accepted && e.owner != req.Owner && now >= e.leaseEnd {
			e.to(store.VerbTake)
			e.attempt++
			e.leaseEnd = after(now, req.Lease)
			s.own(e, req.Owner, now)
			s.mark(e, req.Repeatable)
		}
		return s.whole(e, now)
	})
}

// mark says whether e's run, of an accepted operation, is repeatable: due when its
// lease has run out. The caller holds its shard's mu.
func (s *Store) mark(e *entry, repeatable bool) {
	if repeatable {
		s.wait(e, e.leaseEnd)
	} else {
		e.work.due = never
	}
}

// whole is record with what only a WorkStore and an OutboxStore keep. The caller holds its shard's mu.
func (s *Store) whole(e *entry, now instant) store.Record {
	r := s.record(e, now)
	if e.work != nil {
		r.Work, r.Notes, r.Cancelling = e.work.what, e.work.notes, e.work.cancelling
	}
	if e.state.Settled() {
		r.Work, r.Outbox = nil, r.Work
	}
	return r
}

// Return implements store.WorkStore.
func (s *Store) Return(ctx context.Context, c store.Claim, later time.Duration) error {
	return s.change(ctx, c, func(e *entry, now instant) error {
		if !e.accepted() {
			return store.ErrFenced
		}
		if e.state == store.Accepted {
			return nil // the reply to the first time was lost
		}
		if _, ok := e.state.Next(store.VerbReturn); !ok {
			return store.ErrFenced
		}
		s.handBack(e, now, later)
		return nil
	})
}

// handBack makes e wait for a worker again. The caller holds its shard's mu.
func (s *Store) handBack(e *entry, now instant, later time.Duration) {
	e.to(store.VerbReturn)
	e.ended, e.settled = true, now
	s.postpone(e, after(now, later))
}

// Cancel implements store.WorkStore.
func (s *Store) Cancel(ctx context.Context, c store.Claim, out store.Settlement, keep store.Retention) (rec store.Record, err error) {
	err = s.change(ctx, c, func(e *entry, now instant) error {
		switch {
		case e.state == store.Accepted:
			e.to(store.VerbCancel)
			e.result, e.gone, e.work = out.Result, out.Gone, nil
			e.ended, e.settled, e.expires, e.forget = true, now, after(now, keep.Result), after(now, keep.Tombstone)
		case e.state == store.Running && e.accepted():
			e.work.cancelling = true
		case e.state != store.Failed || !e.came(out, now):
			return store.ErrFenced
		}
		rec = s.whole(e, now)
		return nil
	})
	return rec, err
}

// Save implements store.WorkStore.
func (s *Store) Save(ctx context.Context, c store.Claim, notes store.Notes, repeatable bool) error {
	return s.save(ctx, c, notes, store.Running, repeatable)
}

// Strike implements store.WorkStore.
func (s *Store) Strike(ctx context.Context, c store.Claim, notes store.Notes) error {
	return s.save(ctx, c, notes, store.Unknown, false)
}

// save is Save for a record in that state.
func (s *Store) save(ctx context.Context, c store.Claim, notes store.Notes, in store.State, repeatable bool) error {
	return s.change(ctx, c, func(e *entry, _ instant) error {
		if e.state != in {
			return store.ErrFenced
		}
		w := e.works()
		switch was := w.notes.Version; {
		case notes.Version == was:
			return nil // the reply to the first time was lost
		case notes.Version < was:
			return store.ErrFenced
		}
		w.notes = notes
		if repeatable = repeatable && e.accepted(); repeatable != e.repeatable() {
			s.mark(e, repeatable)
		}
		return nil
	})
}

// Look implements store.WorkStore.
func (s *Store) Look(ctx context.Context, id store.ID) (store.Record, error) {
	return s.look(ctx, id, s.whole)
}

// Relayed implements store.OutboxStore.
func (s *Store) Relayed(ctx context.Context, c store.Claim, keep store.Retention) error {
	return s.change(ctx, c, func(e *entry, now instant) error {
		if !e.state.Settled() {
			return store.ErrFenced
		}
		if e.work != nil {
			e.work, e.forget = nil, after(now, keep.Tombstone)
		}
		return nil
	})
}

// Due implements store.WorkStore.
func (s *Store) Due(ctx context.Context, limit int, again time.Duration, names ...string) ([]store.Record, error) {
	return s.handOut(ctx, toRun, limit, again, names)
}

// DueMessages implements store.OutboxStore.
func (s *Store) DueMessages(ctx context.Context, limit int, again time.Duration) ([]store.Record, error) {
	return s.handOut(ctx, toSend, limit, again, nil)
}

// handOut returns what waits for that, under some names, and makes it due again.
func (s *Store) handOut(ctx context.Context, what waitsFor, limit int, again time.Duration, names []string) ([]store.Record, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	defer s.all()()
	if s.crowded.Load() {
		s.tidied()
	}
	now := s.now()
	type found struct {
		store.Record
		due instant
	}
	var all []found
	for lanes := s.queues.lanes(what, names); len(lanes) > 0 && len(all) < limit; {
		left := lanes[:0] // each in turn, while it has something due
		for _, l := range lanes {
			if len(all) == limit {
				break
			}
			e := s.first(l, now)
			if e == nil {
				continue
			}
			rec := s.whole(e, now)
			rec.Notes, rec.Cancelling = store.Notes{}, false
			all = append(all, found{rec, e.work.due})
			s.wait(e, after(now, again))
			left = append(left, l)
		}
		lanes = left
	}
	slices.SortStableFunc(all, func(a, b found) int { return cmp.Compare(a.due, b.due) })
	var recs []store.Record
	for _, f := range all {
		recs = append(recs, f.Record)
	}
	return recs, nil
}

// all locks all shards, and returns what unlocks them.
func (s *Store) all() (unlock func()) {
	for i := range s.shards {
		s.shards[i].mu.Lock()
	}
	return func() {
		for i := range s.shards {
			s.shards[i].mu.Unlock()
		}
	}
}

// first takes the first out of a queue that is due; nil if none is. The caller holds
// the mu of all shards.
func (s *Store) first(l lane, now instant) *entry {
	for q := s.queues.of[l]; q != nil && (*q)[0].due <= now; q = s.queues.of[l] {
		place := s.queues.pop(l)
		e := s.current(place.id, now)
		if e != nil && e.work != nil && e.work.due == place.due && e.lane() == l {
			return e
		}
	}
	return nil
}

// waiting is a place in a queue. It is out of date if its record is due at
// another time by now.
type waiting struct {
	due instant
	id  store.ID
}

// wait makes e due. The caller holds its shard's mu.
func (s *Store) wait(e *entry, due instant) {
	e.work.due = due
	s.waits.Lock()
	defer s.waits.Unlock()
	s.queues.push(e.lane(), waiting{due, e.id})
	s.crowded.Store(s.queues.places > 2*s.Len()+spare)
}

// spare is how many places may be out of date before it matters.
const spare = 256

// tidy removes the places that are out of date, which otherwise go when they are
// due, once there are many. The caller holds no lock.
func (s *Store) tidy() {
	if s.crowded.Load() {
		defer s.all()()
		s.tidied()
	}
}

// tidied is tidy for a caller that holds the mu of all shards, so that none waits.
func (s *Store) tidied() {
	was := s.queues.of
	s.queues = queues{order: s.queues.order}
	for l, q := range was {
		for _, w := range *q {
			sh := s.shard(w.id)
			if i, ok := sh.index[w.id]; ok && sh.at(i).work != nil && sh.at(i).work.due == w.due && sh.at(i).lane() == l {
				s.queues.push(l, w)
			}
		}
	}
	s.crowded.Store(false)
}

// waitsFor is what a record waits for.
type waitsFor uint8

const (
	toRun waitsFor = iota
	toSend
)

// lane is what waits for the same thing, under the same name.
type lane struct {
	what waitsFor
	name string // "" of what is to be sent
}

// lane returns the lane that e waits in.
func (e *entry) lane() lane {
	if e.state.Settled() {
		return lane{what: toSend}
	}
	return lane{name: e.label.Name}
}

// queues are the queues of all lanes in which something waits.
type queues struct {
	of     map[lane]*queue
	places int        // in all of them
	order  *rand.Rand // in which lanes are looked at
}

// lanes returns those of some names; without names, all of a kind.
func (q *queues) lanes(what waitsFor, names []string) (all []lane) {
	if len(names) == 0 {
		for l := range q.of {
			if l.what == what {
				all = append(all, l)
			}
		}
		slices.SortFunc(all, func(a, b lane) int { return cmp.Compare(a.name, b.name) })
	}
	for _, name := range names {
		all = append(all, lane{what, name})
	}
	if q.order == nil { // the same calls get the same order, so that a simulation can be repeated
		q.order = rand.New(rand.NewPCG(1, 2))
	}
	q.order.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] }) // none is always first
	return all
}

func (q *queues) push(l lane, w waiting) {
	if q.of == nil {
		q.of = make(map[lane]*queue)
	}
	if q.of[l] == nil {
		q.of[l] = new(queue)
	}
	heap.Push(q.of[l], w)
	q.places++
}

// pop takes the first out of a lane, which is not empty.
func (q *queues) pop(l lane) waiting {
	w, _ := heap.Pop(q.of[l]).(waiting)
	if len(*q.of[l]) == 0 {
		delete(q.of, l)
	}
	q.places--
	return w
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
