// Package memory is the reference store. Its records end with the process: it is for tests, for
// development, and for services whose operations may be forgotten at a restart.
package memory

import (
	"context"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/internal/rules"
)

// DefaultMaxRecords is the default of Options.MaxRecords.
const DefaultMaxRecords = 1_000_000

// Options configure a Store. The zero value is usable.
type Options struct {
	// MaxRecords is how many records the store holds at most. Above it new claims fail and
	// nothing is executed. Default DefaultMaxRecords.
	MaxRecords int
	// Clock is the store's clock. It must be safe for concurrent use. Default time.Now.
	Clock func() time.Time
}

// Store is a store.WorkStore, store.OutboxStore, store.Watcher, store.Sweeper, store.Browser and
// store.HistoryStore in memory.
type Store struct {
	o     Options
	start time.Time // instants are relative to it, by the monotonic clock

	shards [64]shard    // by ID, so that operations do not wait for each other
	n      atomic.Int64 // entries held
	fence  atomic.Int64 // of the last claim of any key, also of deleted records

	waits     sync.Mutex // guards queues; taken last
	queues    queues
	cluttered atomic.Bool // many of their places are outdated

	sweeping sync.Mutex // taken first
	swept    int        // the shard at which the next sweep begins
}

// shard has the entries whose IDs end alike.
type shard struct {
	mu        sync.Mutex
	index     map[store.ID]int                  // of the entries
	chunks    [][]entry                         // see at: few large objects, for the garbage collector
	n         int                               // entries held
	cursor    int                               // of the sweep
	histories map[store.ID][]store.HistoryEntry // nil if there are none
	_         [64]byte                          // so that no two locks share a cache line
}

// shard returns the shard of an ID.
func (s *Store) shard(id store.ID) *shard { return &s.shards[int(id[len(id)-1])%len(s.shards)] }

// chunk is how many entries are allocated together.
const chunk = 32

// instant is a time on the store's clock, since its start.
type instant = time.Duration

// never is later than every instant.
const never instant = math.MaxInt64

// entry is a record.
type entry struct {
	id, scope   store.ID
	fingerprint store.Fingerprint
	label       store.Label
	state       store.State
	claimed
	ending
	times
	work    *work         // nil if there is none
	changed chan struct{} // closed when the record stops running; nil if no caller watches
}

// claimed is the last claim of an operation.
type claimed struct {
	owner   store.Owner
	attempt int
	fence   int64
	outside bool // see store.ClaimRequest; false unless it runs
}

// ending is how an operation ended.
type ending struct {
	result store.Result
	gone   bool
	ended  bool // settled, released or abandoned, at the instant settled
}

// times are those of a record. leaseEnd of an accepted operation is when it can be taken.
type times struct {
	leaseEnd, claimedAt, settled, expires, forget instant
}

// New returns an empty store. It panics if o.MaxRecords is negative.
func New(o Options) *Store {
	if o.MaxRecords < 0 {
		panic(fmt.Sprintf("memory: Options.MaxRecords is negative: %d", o.MaxRecords))
	}
	if o.MaxRecords == 0 {
		o.MaxRecords = DefaultMaxRecords
	}
	if o.Clock == nil {
		o.Clock = time.Now
	}
	return &Store{o: o, start: o.Clock()}
}

func (s *Store) now() instant { return s.o.Clock().Sub(s.start) }

// after is now + d, or the last instant before never if the sum overflows.
func after(now instant, d time.Duration) instant {
	const last = never - 1
	if d > 0 && now > last-d {
		return last
	}
	return now + d
}

// at returns the entry at a place. The caller holds sh.mu. The pointer is valid until the next
// removal.
func (sh *shard) at(i int) *entry { return &sh.chunks[i/chunk][i%chunk] }

// Claim implements store.Store.
func (s *Store) Claim(ctx context.Context, req store.ClaimRequest) (store.Record, error) {
	return s.acquire(ctx, req, func(e *entry, now instant) { s.grant(e, req, now) })
}

// acquire returns the record of req. It calls begin first if a run can begin.
func (s *Store) acquire(ctx context.Context, req store.ClaimRequest, begin func(*entry, instant)) (store.Record, error) {
	if err := ctx.Err(); err != nil {
		return store.Record{}, err
	}
	defer s.compact()
	sh := s.shard(req.ID)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	now := s.now()
	rec := store.Record{ID: req.ID}
	e := s.current(req.ID, now)
	if e != nil {
		rec = s.record(e, now)
	}
	change, err := rules.OnClaim(rec, req)
	if err != nil || change == rules.None {
		return rec, err
	}
	if change == rules.MarkUnknown {
		s.markUnknown(e, now)
	}
	if e == nil {
		if s.n.Add(1) > int64(s.o.MaxRecords) {
			s.n.Add(-1)
			return store.Record{}, s.full()
		}
		e = sh.add(req)
	}
	if change == rules.Grant || e.state == store.Retryable {
		begin(e, now)
	}
	return s.record(e, now), nil
}

// add adds an entry for req. The caller holds sh.mu.
func (sh *shard) add(req store.ClaimRequest) *entry {
	if sh.n == len(sh.chunks)*chunk {
		sh.chunks = append(sh.chunks, make([]entry, chunk))
	}
	if sh.index == nil {
		sh.index = make(map[store.ID]int)
	}
	sh.index[req.ID] = sh.n
	e := sh.at(sh.n)
	sh.n++
	*e = entry{id: req.ID, scope: req.Scope, fingerprint: req.Fingerprint}
	return e
}

// full is the error of a new claim at the limit.
func (s *Store) full() error {
	return fmt.Errorf("memory: %w: %d records are held, the limit of Options.MaxRecords", store.ErrNotDone, s.o.MaxRecords)
}

// grant makes e run under req. The caller holds its shard's mu.
func (s *Store) grant(e *entry, req store.ClaimRequest, now instant) {
	e.to(store.VerbClaim)
	e.attempt++
	e.leaseEnd = after(now, req.Lease)
	e.label = req.Label
	s.assign(e, req.Owner, now)
	e.outside = req.Outside
}

// Outside implements store.OutsideStore.
func (s *Store) Outside() {}

// assign gives e an owner and a new fence. The caller holds its shard's mu.
func (s *Store) assign(e *entry, owner store.Owner, now instant) {
	e.fence = s.fence.Add(1)
	e.owner = owner
	e.claimedAt = now
	e.ended, e.outside, e.expires, e.forget = false, false, never, never
}

// retention is how long an abandoned claim without effect is remembered.
const retention = 24 * time.Hour

// markUnknown ends a run with an expired lease. Its record becomes unknown; accepted if the run may be
// repeated; retryable if the run cannot have had an effect. The caller holds its shard's mu.
func (s *Store) markUnknown(e *entry, now instant) {
	switch {
	case e.repeatable():
		e.to(store.VerbReturn)
		e.leaseEnd = now // it is due already
	case e.outside:
		e.to(store.VerbRelease)
		e.forget = after(now, retention)
	default:
		e.to(store.VerbMarkUnknown)
	}
	e.ended, e.settled = true, now
}

// to changes the state of e. The caller has checked that the transition exists, and holds its
// shard's mu.
func (e *entry) to(verb store.Verb) {
	next, ok := e.state.Next(verb)
	if !ok {
		panic(fmt.Sprintf("memory: state %v has no transition %v", e.state, verb))
	}
	e.state = next
	if e.changed != nil {
		close(e.changed)
		e.changed = nil
	}
}

// current returns the record of id, or nil if there is none or it is past its
// ForgetAt. The caller holds its shard's mu.
func (s *Store) current(id store.ID, now instant) *entry {
	sh := s.shard(id)
	i, ok := sh.index[id]
	if !ok {
		return nil
	}
	e := sh.at(i)
	if now >= e.forget {
		s.remove(sh, i)
		return nil
	}
	if now >= e.expires {
		e.result, e.gone = store.Result{}, true
	}
	return e
}

// remove deletes the entry at place i and moves the last entry there. The caller holds sh.mu.
func (s *Store) remove(sh *shard, i int) {
	delete(sh.index, sh.at(i).id)
	delete(sh.histories, sh.at(i).id)
	s.n.Add(-1)
	sh.n--
	if last := sh.at(sh.n); i != sh.n {
		*sh.at(i) = *last
		sh.index[last.id] = i
	}
	*sh.at(sh.n) = entry{}
	if free := len(sh.chunks)*chunk - sh.n; free >= 2*chunk {
		sh.chunks[len(sh.chunks)-1] = nil
		sh.chunks = sh.chunks[:len(sh.chunks)-1]
	}
}

// record returns the record at now. The caller holds its shard's mu.
func (s *Store) record(e *entry, now instant) store.Record {
	r := store.Record{ID: e.id, Scope: e.scope, Label: e.label, State: e.state, Fingerprint: e.fingerprint, Owner: e.owner, Fence: e.fence,
		Attempt: e.attempt, Result: e.result, Gone: e.gone, ClaimedAt: s.start.Add(e.claimedAt)}
	if e.state == store.Running {
		r.LeaseLeft = e.leaseEnd - now
	}
	if e.ended {
		r.SettledAt = s.start.Add(e.settled)
	}
	if e.expires != never {
		r.ExpiresAt = s.start.Add(e.expires)
	}
	if e.forget != never {
		r.ForgetAt = s.start.Add(e.forget)
	}
	return r
}

// Read implements store.Store.
func (s *Store) Read(ctx context.Context, id store.ID) (store.Record, error) {
	return s.view(ctx, id, func(e *entry, now instant) store.Record {
		r := s.record(e, now)
		r.Cancelling = e.work != nil && e.work.cancelling
		return r
	})
}

// view returns the result of show for the record of id, if there is one.
func (s *Store) view(ctx context.Context, id store.ID, show func(*entry, instant) store.Record) (store.Record, error) {
	if err := ctx.Err(); err != nil {
		return store.Record{}, err
	}
	defer s.compact()
	sh := s.shard(id)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	now := s.now()
	e := s.current(id, now)
	if e == nil {
		return store.Record{ID: id}, nil
	}
	return show(e, now), nil
}

// change calls do with the record of c, if the rule permits. do gets the change.
func (s *Store) change(ctx context.Context, c store.Claim, rule func(store.Record, time.Time) (rules.Change, error), do func(*entry, rules.Change, instant)) (store.Record, error) {
	if err := ctx.Err(); err != nil {
		return store.Record{}, err
	}
	defer s.compact()
	sh := s.shard(c.ID)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	now := s.now()
	e := s.current(c.ID, now)
	if e == nil {
		return store.Record{}, store.ErrFenced
	}
	change, err := rule(s.whole(e, now), s.start.Add(now))
	if err != nil {
		return store.Record{}, err
	}
	if change != rules.None {
		do(e, change, now)
	}
	return s.whole(e, now), nil
}

// Extend implements store.Store.
func (s *Store) Extend(ctx context.Context, claims []store.Claim, lease time.Duration) (lost []store.Claim, err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	defer s.compact()
	for _, c := range claims {
		if !s.extend(c, lease) {
			lost = append(lost, c)
		}
	}
	return lost, nil
}

// extend renews one lease. It returns false if the lease is lost.
func (s *Store) extend(c store.Claim, lease time.Duration) bool {
	sh := s.shard(c.ID)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	now := s.now()
	e := s.current(c.ID, now)
	if e == nil || e.fence != c.Fence || e.state != store.Running {
		return false
	}
	e.leaseEnd = after(now, lease)
	if e.repeatable() && e.leaseEnd > e.work.due {
		s.wait(e, e.leaseEnd)
	}
	return true
}

// Settle implements store.Store.
func (s *Store) Settle(ctx context.Context, c store.Claim, out store.Settlement, keep store.Retention) error {
	verb := store.VerbComplete
	if out.State == store.Failed {
		verb = store.VerbFail
	}
	rule := func(rec store.Record, now time.Time) (rules.Change, error) { return rules.OnSettle(rec, c, out, now) }
	_, err := s.change(ctx, c, rule, func(e *entry, _ rules.Change, now instant) { s.settle(e, verb, out, keep, now) })
	return err
}

// settle gives e its outcome. The caller holds its shard's mu.
func (s *Store) settle(e *entry, verb store.Verb, out store.Settlement, keep store.Retention, now instant) {
	e.to(verb)
	e.result, e.gone = out.Result, out.Gone
	e.ended, e.settled, e.expires, e.forget = true, now, after(now, keep.Result), after(now, keep.Tombstone)
	e.work = nil
	if out.Outbox != nil {
		e.work, e.forget = &work{what: out.Outbox}, never
		s.wait(e, now)
	}
}

// Release implements store.Store.
func (s *Store) Release(ctx context.Context, c store.Claim, keep store.Retention) error {
	rule := func(rec store.Record, _ time.Time) (rules.Change, error) { return rules.OnRelease(rec, c) }
	_, err := s.change(ctx, c, rule, func(e *entry, change rules.Change, now instant) {
		if change == rules.Return {
			s.requeue(e, now, 0)
			return
		}
		e.to(store.VerbRelease)
		e.ended, e.settled, e.forget = true, now, after(now, keep.Result)
	})
	return err
}

// Watch implements store.Watcher.
func (s *Store) Watch(ctx context.Context, id store.ID, fence int64) error {
	sh := s.shard(id)
	for {
		sh.mu.Lock()
		now := s.now()
		e := s.current(id, now)
		if e == nil || e.state != store.Running || e.fence != fence || now >= e.leaseEnd {
			sh.mu.Unlock()
			return nil
		}
		if e.changed == nil {
			e.changed = make(chan struct{})
		}
		changed, left := e.changed, e.leaseEnd-now
		sh.mu.Unlock()

		lapse := time.NewTimer(left) // then the record is read again: a heartbeat may have renewed it
		select {
		case <-changed:
		case <-lapse.C:
		case <-ctx.Done():
		}
		lapse.Stop()
		if err := ctx.Err(); err != nil {
			return err
		}
	}
}

// Sweep implements store.Sweeper. Each call reads up to limit records; the next continues there.
func (s *Store) Sweep(ctx context.Context, limit int) (store.Swept, error) {
	var swept store.Swept
	if err := ctx.Err(); err != nil {
		return swept, err
	}
	defer s.compact()
	s.sweeping.Lock()
	defer s.sweeping.Unlock()
	for ; s.swept < len(s.shards); s.swept++ {
		limit -= s.sweep(&s.shards[s.swept], limit, &swept)
		if limit <= 0 {
			swept.More = true
			return swept, nil
		}
	}
	s.swept = 0
	return swept, nil
}

// sweep continues in a shard and returns how many records it has read. These are fewer than
// limit only at the end of the shard.
func (s *Store) sweep(sh *shard, limit int, swept *store.Swept) (looked int) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	now := s.now()
	for ; looked < limit; looked++ {
		if sh.cursor >= sh.n {
			sh.cursor = 0
			return looked
		}
		e := sh.at(sh.cursor)
		wasGone := e.gone
		if s.current(e.id, now) == nil {
			swept.Purged++ // the last record is now at the cursor
			continue
		}
		if e.gone && !wasGone {
			swept.Expired++
		}
		if e.state == store.Running && now >= e.leaseEnd {
			if s.markUnknown(e, now); e.state == store.Unknown {
				swept.MarkedUnknown++
			}
		}
		sh.cursor++
	}
	return looked
}

// Len returns how many records the store holds.
func (s *Store) Len() int { return int(s.n.Load()) }
