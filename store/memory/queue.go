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

// Due implements store.WorkStore.
func (s *Store) Due(ctx context.Context, limit int, again time.Duration, names ...string) ([]store.Record, error) {
	return s.due(ctx, toRun, limit, again, names)
}

// DueMessages implements store.OutboxStore.
func (s *Store) DueMessages(ctx context.Context, limit int, again time.Duration) ([]store.Record, error) {
	return s.due(ctx, toSend, limit, again, nil)
}

// due returns records that are due in queues of that kind, and makes them due again later.
func (s *Store) due(ctx context.Context, what waitsFor, limit int, again time.Duration, names []string) ([]store.Record, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	defer s.all()()
	if s.cluttered.Load() {
		s.compactLocked()
	}
	now := s.now()
	type found struct {
		store.Record
		due instant
	}
	var all []found
	for keys := s.queues.keys(what, names); len(keys) > 0 && len(all) < limit; {
		left := keys[:0] // the queues take turns while they have something due
		for _, k := range keys {
			if len(all) == limit {
				break
			}
			e := s.first(k, now)
			if e == nil {
				continue
			}
			rec := s.whole(e, now)
			rec.Notes, rec.Cancelling = store.Notes{}, false
			all = append(all, found{rec, e.work.due})
			s.wait(e, after(now, again))
			left = append(left, k)
		}
		keys = left
	}
	slices.SortStableFunc(all, func(a, b found) int { return cmp.Compare(a.due, b.due) })
	var recs []store.Record
	for _, f := range all {
		recs = append(recs, f.Record)
	}
	return recs, nil
}

// all locks all shards and returns the function that unlocks them.
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

// first removes the first due record from a queue; nil if none is due. The caller holds the mu
// of all shards.
func (s *Store) first(k queueKey, now instant) *entry {
	for q := s.queues.of[k]; q != nil && (*q)[0].due <= now; q = s.queues.of[k] {
		place := s.queues.pop(k)
		e := s.current(place.id, now)
		if e != nil && e.work != nil && e.work.due == place.due && e.queueKey() == k {
			return e
		}
	}
	return nil
}

// waiting is a place in a queue. It is outdated if its record is now due at another time.
type waiting struct {
	due instant
	id  store.ID
}

// wait makes e due. The caller holds its shard's mu.
func (s *Store) wait(e *entry, due instant) {
	e.work.due = due
	s.waits.Lock()
	defer s.waits.Unlock()
	s.queues.push(e.queueKey(), waiting{due, e.id})
	s.cluttered.Store(s.queues.places > 2*s.Len()+maxOutdated)
}

// maxOutdated is how many outdated places stay.
const maxOutdated = 256

// compact removes outdated places once there are many. Otherwise each is removed when it is due.
// The caller holds no lock.
func (s *Store) compact() {
	if s.cluttered.Load() {
		defer s.all()()
		s.compactLocked()
	}
}

// compactLocked is compact for a caller that holds the mu of all shards.
func (s *Store) compactLocked() {
	was := s.queues.of
	s.queues = queues{order: s.queues.order}
	for k, q := range was {
		for _, w := range *q {
			sh := s.shard(w.id)
			if i, ok := sh.index[w.id]; ok && sh.at(i).work != nil && sh.at(i).work.due == w.due && sh.at(i).queueKey() == k {
				s.queues.push(k, w)
			}
		}
	}
	s.cluttered.Store(false)
}

// waitsFor is a kind of queue.
type waitsFor uint8

const (
	toRun waitsFor = iota
	toSend
)

// queueKey identifies a queue.
type queueKey struct {
	what waitsFor
	name string // "" for messages
}

// queueKey returns the key of the queue that e waits in.
func (e *entry) queueKey() queueKey {
	if e.state.Settled() {
		return queueKey{what: toSend}
	}
	return queueKey{name: e.label.Name}
}

// queues are all queues that are not empty.
type queues struct {
	of     map[queueKey]*queue
	places int        // in all of them
	order  *rand.Rand // in which queues are read
}

// keys returns the keys for some names; without names, all of a kind.
func (q *queues) keys(what waitsFor, names []string) (all []queueKey) {
	if len(names) == 0 {
		for k := range q.of {
			if k.what == what {
				all = append(all, k)
			}
		}
		slices.SortFunc(all, func(a, b queueKey) int { return cmp.Compare(a.name, b.name) })
	}
	for _, name := range names {
		all = append(all, queueKey{what, name})
	}
	if q.order == nil { // the same calls get the same order, so that a simulation can be repeated
		q.order = rand.New(rand.NewPCG(1, 2))
	}
	q.order.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] }) // none is always first
	return all
}

func (q *queues) push(k queueKey, w waiting) {
	if q.of == nil {
		q.of = make(map[queueKey]*queue)
	}
	if q.of[k] == nil {
		q.of[k] = new(queue)
	}
	heap.Push(q.of[k], w)
	q.places++
}

// pop removes the first place of a queue, which is not empty.
func (q *queues) pop(k queueKey) waiting {
	w, _ := heap.Pop(q.of[k]).(waiting)
	if len(*q.of[k]) == 0 {
		delete(q.of, k)
	}
	q.places--
	return w
}

// queue is a heap of places, by the time when they are due.
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
