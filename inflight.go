package stet

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/stet-go/stet/observe"
	"github.com/stet-go/stet/store"
)

// flight is one operation that a call of this process is entering or running.
// Duplicates in the same process follow it instead of asking the store: a herd
// on one key costs one claim.
type inFlight struct {
	id store.ID

	// Below: guarded by the mu of its part.
	phase       phase
	fingerprint store.Fingerprint // of the leader; binding once running
	followed    bool              // another call has found it
	result      *entry            // when over: what followers may share; nil without any
	changed     chan struct{}     // closed at the next change of phase; nil if no caller waits
	run         *Run              // under a lease, which the keeper renews; nil once it has ended or is lost
	renewed     time.Time         // when the last successful renewal of the lease was sent
}

type phase uint8

const (
	entering phase = iota // the leader is asking the store
	running               // the leader runs the operation
	over                  // settled, released, refused or lost
)

// entry is the result of a try to enter.
type entry struct {
	rec     store.Record
	granted bool // this call runs, or in a transaction has run, the operation
	shared  bool // rec, or err, may be told to followers
	refuses bool // rec only to those with another fingerprint
	err     error
}

// flights are the operations in flight in this process, in parts, lest calls with
// different keys wait for each other.
type inFlightCalls struct {
	shards [64]inFlightShard
}

// flightPart has the flights whose IDs end alike.
type inFlightShard struct {
	mu sync.Mutex
	m  map[store.ID]*inFlight
	_  [48]byte // a cache line for each
}

// of returns the part of an ID.
func (fs *inFlightCalls) shard(id store.ID) *inFlightShard {
	return &fs.shards[int(id[len(id)-1])%len(fs.shards)]
}

// join returns the flight of id, and whether the caller leads it.
func (fs *inFlightCalls) join(id store.ID, fp store.Fingerprint) (f *inFlight, leader bool) {
	part := fs.shard(id)
	part.mu.Lock()
	defer part.mu.Unlock()
	if f := part.m[id]; f != nil {
		f.followed = true
		return f, false
	}
	f = &inFlight{id: id, fingerprint: fp}
	if part.m == nil {
		part.m = make(map[store.ID]*inFlight)
	}
	part.m[id] = f
	return f, true
}

// transacts says that the leader runs the operation in a transaction, without a lease.
func (fs *inFlightCalls) startTx(f *inFlight) {
	part := fs.shard(f.id)
	part.mu.Lock()
	defer part.mu.Unlock()
	if f.phase < running {
		f.setPhase(running)
	}
}

// runs says that the leader runs the operation under a lease, whose last renewal was sent
// at renewed. It may have learned the fingerprint from the store.
func (fs *inFlightCalls) startRun(f *inFlight, r *Run, renewed time.Time) {
	part := fs.shard(f.id)
	part.mu.Lock()
	defer part.mu.Unlock()
	f.run, f.renewed, f.fingerprint = r, renewed, r.rec.Fingerprint
	f.setPhase(running)
}

// renewed says when a renewal of the flight's lease was sent.
func (fs *inFlightCalls) renewed(f *inFlight, sent time.Time) {
	part := fs.shard(f.id)
	part.mu.Lock()
	defer part.mu.Unlock()
	f.renewed = sent
}

// lose takes the run from the keeper, and reports whether it had it.
func (fs *inFlightCalls) lose(f *inFlight) bool {
	part := fs.shard(f.id)
	part.mu.Lock()
	defer part.mu.Unlock()
	had := f.run != nil
	f.run = nil
	return had
}

// leased calls do for each run that the keeper watches, with the time when the last
// renewal of its lease was sent. The mu of its part is held.
func (fs *inFlightCalls) leased(do func(r *Run, renewed time.Time)) {
	for i := range fs.shards {
		part := &fs.shards[i]
		part.mu.Lock()
		for _, f := range part.m {
			if f.run != nil {
				do(f.run, f.renewed)
			}
		}
		part.mu.Unlock()
	}
}

// runsHere reports whether a call of this process runs the operation.
func (fs *inFlightCalls) runsHere(id store.ID) bool {
	part := fs.shard(id)
	part.mu.Lock()
	defer part.mu.Unlock()
	f := part.m[id]
	return f != nil && f.phase == running
}

// end says that the flight is over; en is shared with its followers if it may be.
func (fs *inFlightCalls) end(f *inFlight, en entry) {
	part := fs.shard(f.id)
	part.mu.Lock()
	defer part.mu.Unlock()
	f.run = nil
	if f.phase == over {
		return
	}
	if f.followed {
		shared := en // without followers none is made on the heap
		f.result = &shared
	}
	f.setPhase(over)
	if part.m[f.id] == f {
		delete(part.m, f.id)
	}
}

// turn changes the phase and wakes the followers. The caller holds the mu of its part.
func (f *inFlight) setPhase(to phase) {
	f.phase = to
	if f.changed != nil {
		close(f.changed)
		f.changed = nil
	}
}

// look returns the flight's phase, its fingerprint and result, and a channel
// that is closed when the phase changes.
func (fs *inFlightCalls) state(f *inFlight) (ph phase, fp store.Fingerprint, en entry, changed <-chan struct{}) {
	part := fs.shard(f.id)
	part.mu.Lock()
	defer part.mu.Unlock()
	if f.phase != over && f.changed == nil {
		f.changed = make(chan struct{})
	}
	if f.result != nil {
		en = *f.result
	}
	return f.phase, f.fingerprint, en, f.changed
}

// errTryAgain: the flight that was followed ended in a way that says nothing
// about this call.
var errTryAgain = errors.New("try again")

// tryEnter leads the flight, or follows it past its entering.
func (e *Engine) tryEnter(ctx context.Context, t *request, f *inFlight, leader bool, lead func(*inFlight) (entry, error)) (en entry, err error) {
	if !leader {
		return e.follow(ctx, t, f)
	}
	inside := false
	defer func() { // also when lead panics
		if inside {
			return
		}
		e.inFlight.end(f, en.share(err))
	}()
	en, err = lead(f)
	inside = err == nil && en.granted
	return en, err
}

// share makes of the entry what the followers of the flight may be told.
func (en entry) share(err error) entry {
	switch KindOf(err) {
	case 0:
		en.shared = err == nil && en.rec.State != store.None
	case KindStore, KindDamaged:
		// It failed for the followers, too: taking turns at a store that hangs
		// would not help.
		en.err, en.shared = err, true
	case KindMismatch:
		// The record refuses all that ask for something else. A transaction of another
		// process need not say what it asks for.
		en.refuses, en.shared = true, en.rec.State != store.None && (en.rec.Fence != 0 || en.rec.Fingerprint != (store.Fingerprint{}))
	}
	return en
}

// follow waits until the flight's leader has entered, for as long as a store
// call may take or the caller wants to wait, in all that a call follows.
func (e *Engine) follow(ctx context.Context, t *request, f *inFlight) (entry, error) {
	refuse := func(cause error) (entry, error) { // nothing was done on behalf of this call
		rec := store.Record{ID: f.id, State: store.Running}
		e.observe(ctx, t.event(observe.InFlight, rec, cause))
		return entry{}, &Error{Kind: KindInFlight, Execution: MayHaveExecuted, RetryAfter: retryAfter, Cause: cause}
	}
	if t.followUntil.IsZero() {
		t.followUntil = time.Now().Add(max(e.o.StoreTimeout+e.o.StoreTimeout/2, time.Until(t.deadline)))
	}
	bound := time.NewTimer(time.Until(t.followUntil))
	defer bound.Stop()
	if e.followers.Add(1) > followersPerWaiter*int64(e.o.MaxWaiters) {
		e.followers.Add(-1)
		return refuse(errors.New("too many calls at a time"))
	}
	defer e.followers.Add(-1)
	for {
		ph, fp, shared, changed := e.inFlight.state(f)
		switch {
		case ph == running:
			return entry{rec: store.Record{ID: f.id, State: store.Running, Fingerprint: fp}}, nil
		case ph == over && shared.refuses && shared.rec.Fingerprint == t.req.Fingerprint:
			return entry{}, errTryAgain // it was the leader's request that does not stand
		case ph == over && shared.shared:
			shared.granted = false
			return shared, shared.err
		case ph == over:
			return entry{}, errTryAgain
		}
		select {
		case <-changed:
		case <-bound.C:
			return refuse(nil)
		case <-e.ctx.Done():
			return refuse(ErrClosed)
		case <-ctx.Done():
			return refuse(context.Cause(ctx))
		}
	}
}
