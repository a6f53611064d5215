package stet

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/stet-go/stet/observe"
	"github.com/stet-go/stet/store"
)

// inFlight is an operation that a call of this process is claiming or running. Duplicates in
// the same process follow that call instead of sending claims. Many calls with one key
// therefore cost one claim.
type inFlight struct {
	id store.ID

	// inFlightCalls.mu guards the fields below.
	phase       phase
	fingerprint store.Fingerprint // of the leader; final once running
	followed    bool              // another call follows
	result      *entry            // once over: the result for followers; nil without followers
	changed     chan struct{}     // closed at the next change of phase; nil without waiting calls
	run         *Run              // in lease mode, until it has ended or its lease is lost
	renewed     time.Time         // when the last successful renewal was sent
}

type phase uint8

const (
	entering phase = iota // the leader is claiming
	running               // the leader runs the operation
	over                  // settled, released, refused or lost
)

// entry is the result of a claim.
type entry struct {
	rec     store.Record
	granted bool // this call runs the operation, or has run it in a transaction
	shared  bool // followers may get rec or err
	refuses bool // followers get rec only if their fingerprint differs
	err     error
}

// inFlightCalls are the operations in flight in this process.
type inFlightCalls struct {
	mu sync.Mutex
	m  map[store.ID]*inFlight
}

// join returns the operation in flight of id, and whether the caller leads it.
func (fs *inFlightCalls) join(id store.ID, fp store.Fingerprint) (f *inFlight, leader bool) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if f := fs.m[id]; f != nil {
		f.followed = true
		return f, false
	}
	f = &inFlight{id: id, fingerprint: fp}
	if fs.m == nil {
		fs.m = make(map[store.ID]*inFlight)
	}
	fs.m[id] = f
	return f, true
}

// startTx sets the phase to running for a leader in a transaction, which has no lease.
func (fs *inFlightCalls) startTx(f *inFlight) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if f.phase < running {
		f.setPhase(running)
	}
}

// startRun sets the phase to running for a leader in lease mode. renewed is when its last
// renewal was sent. The leader may have read the fingerprint from the store.
func (fs *inFlightCalls) startRun(f *inFlight, r *Run, renewed time.Time) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	f.run, f.renewed, f.fingerprint = r, renewed, r.rec.Fingerprint
	f.setPhase(running)
}

// renewed sets when a renewal of the lease was sent.
func (fs *inFlightCalls) renewed(f *inFlight, sent time.Time) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	f.renewed = sent
}

// lose removes the run, so that its lease is no longer renewed. It reports whether there was
// one.
func (fs *inFlightCalls) lose(f *inFlight) bool {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	had := f.run != nil
	f.run = nil
	return had
}

// leased calls do for each run in lease mode, with the time when its last renewal was sent. It
// holds mu during the calls.
func (fs *inFlightCalls) leased(do func(r *Run, renewed time.Time)) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	for _, f := range fs.m {
		if f.run != nil {
			do(f.run, f.renewed)
		}
	}
}

// runsHere reports whether a call of this process runs the operation.
func (fs *inFlightCalls) runsHere(id store.ID) bool {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	f := fs.m[id]
	return f != nil && f.phase == running
}

// end sets the phase to over. Followers get en if en.shared is set.
func (fs *inFlightCalls) end(f *inFlight, en entry) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	f.run = nil
	if f.phase == over {
		return
	}
	if f.followed {
		shared := en // without followers, no allocation
		f.result = &shared
	}
	f.setPhase(over)
	if fs.m[f.id] == f {
		delete(fs.m, f.id)
	}
}

// setPhase wakes the followers. The caller holds inFlightCalls.mu.
func (f *inFlight) setPhase(to phase) {
	f.phase = to
	if f.changed != nil {
		close(f.changed)
		f.changed = nil
	}
}

// state returns the phase, fingerprint and result, and a channel that is closed when the phase
// changes.
func (fs *inFlightCalls) state(f *inFlight) (ph phase, fp store.Fingerprint, en entry, changed <-chan struct{}) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if f.phase != over && f.changed == nil {
		f.changed = make(chan struct{})
	}
	if f.result != nil {
		en = *f.result
	}
	return f.phase, f.fingerprint, en, f.changed
}

// errTryAgain means that the end of the followed call says nothing about this call.
var errTryAgain = errors.New("try again")

// tryEnter leads the call, or follows it until it runs or is over.
func (e *Engine) tryEnter(ctx context.Context, t *request, f *inFlight, leader bool, lead func(*inFlight) (entry, error)) (en entry, err error) {
	if !leader {
		return e.follow(ctx, t, f)
	}
	inside := false
	defer func() { // also if lead panics
		if inside {
			return
		}
		e.inFlight.end(f, en.share(err))
	}()
	en, err = lead(f)
	inside = err == nil && en.granted
	return en, err
}

// share returns the entry for the followers.
func (en entry) share(err error) entry {
	switch KindOf(err) {
	case 0:
		en.shared = err == nil && en.rec.State != store.None
	case KindStore, KindDamaged:
		// Followers get the error, too. Calling a failing store one after the other would not
		// help.
		en.err, en.shared = err, true
	case KindMismatch:
		// The record rejects every other fingerprint. A transaction of another process may not
		// show its fingerprint.
		en.refuses, en.shared = true, en.rec.State != store.None && (en.rec.Fence != 0 || en.rec.Fingerprint != (store.Fingerprint{}))
	}
	return en
}

// follow waits until the leader runs or is over. The time limit is 1.5 × StoreTimeout or the
// caller's Wait, whichever is longer, for all calls that this call follows.
func (e *Engine) follow(ctx context.Context, t *request, f *inFlight) (entry, error) {
	refuse := func(cause error) (entry, error) { // this call has sent nothing
		rec := store.Record{ID: f.id, State: store.Running}
		e.observe(ctx, t.event(observe.InFlight, rec, cause))
		return entry{}, &Error{Kind: KindInFlight, Execution: MayHaveExecuted, RetryAfter: retryAfter, Cause: cause}
	}
	if t.followUntil.IsZero() {
		t.followUntil = time.Now().Add(max(e.o.StoreTimeout+e.o.StoreTimeout/2, time.Until(t.deadline)))
	}
	bound := time.NewTimer(time.Until(t.followUntil))
	defer bound.Stop()
	if e.waiting.followers.Add(1) > followersPerWaiter*int64(e.o.MaxWaiters) {
		e.waiting.followers.Add(-1)
		return refuse(errors.New("too many calls at a time"))
	}
	defer e.waiting.followers.Add(-1)
	for {
		ph, fp, shared, changed := e.inFlight.state(f)
		switch {
		case ph == running:
			return entry{rec: store.Record{ID: f.id, State: store.Running, Fingerprint: fp}}, nil
		case ph == over && shared.refuses && shared.rec.Fingerprint == t.req.Fingerprint:
			return entry{}, errTryAgain // only the leader's request was rejected
		case ph == over && shared.rec.InTx && shared.rec.Fingerprint != t.req.Fingerprint:
			return entry{}, errTryAgain // the store has compared only the leader's fingerprint
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
