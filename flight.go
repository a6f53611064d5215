package stet

import (
	"sync"

	"github.com/stet-go/stet/store"
)

// flight is one operation that a call of this process is entering or running.
// Duplicates in the same process follow it instead of asking the store: a herd
// on one key costs one claim.
type flight struct {
	id store.ID

	// Below: guarded by the mu of its part.
	phase       phase
	fingerprint store.Fingerprint // of the leader; binding once running
	followed    bool              // another call has found it
	result      *entry            // when over: what followers may share; nil without any
	changed     chan struct{}     // closed at the next change of phase; nil if no caller waits
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
type flights struct {
	parts [64]flightPart
}

// flightPart has the flights whose IDs end alike.
type flightPart struct {
	mu sync.Mutex
	m  map[store.ID]*flight
	_  [48]byte // a cache line for each
}

// of returns the part of an ID.
func (fs *flights) of(id store.ID) *flightPart {
	return &fs.parts[int(id[len(id)-1])%len(fs.parts)]
}

// join returns the flight of id, and whether the caller leads it.
func (fs *flights) join(id store.ID, fp store.Fingerprint, p *parts) (f *flight, leader bool) {
	part := fs.of(id)
	part.mu.Lock()
	defer part.mu.Unlock()
	if f := part.m[id]; f != nil {
		f.followed = true
		return f, false
	}
	f = p.flightOf(id, fp)
	if part.m == nil {
		part.m = make(map[store.ID]*flight)
	}
	part.m[id] = f
	return f, true
}

// turn says how far the leader has come.
func (fs *flights) turn(f *flight, to phase) {
	part := fs.of(f.id)
	part.mu.Lock()
	defer part.mu.Unlock()
	if f.phase < to {
		f.turn(to)
	}
}

// runs says that the leader runs an operation whose fingerprint it has only
// learned from the store.
func (fs *flights) runs(f *flight, fp store.Fingerprint) {
	part := fs.of(f.id)
	part.mu.Lock()
	defer part.mu.Unlock()
	f.fingerprint = fp
	f.turn(running)
}

// runsHere reports whether a call of this process runs the operation.
func (fs *flights) runsHere(id store.ID) bool {
	part := fs.of(id)
	part.mu.Lock()
	defer part.mu.Unlock()
	f := part.m[id]
	return f != nil && f.phase == running
}

// end says that the flight is over; en is shared with its followers if it may be.
func (fs *flights) end(f *flight, en entry) {
	part := fs.of(f.id)
	part.mu.Lock()
	defer part.mu.Unlock()
	if f.phase == over {
		return
	}
	if f.followed {
		shared := en // without followers none is made on the heap
		f.result = &shared
	}
	f.turn(over)
	if part.m[f.id] == f {
		delete(part.m, f.id)
	}
}

// turn changes the phase and wakes the followers. The caller holds the mu of its part.
func (f *flight) turn(to phase) {
	f.phase = to
	if f.changed != nil {
		close(f.changed)
		f.changed = nil
	}
}

// look returns the flight's phase, its fingerprint and result, and a channel
// that is closed when the phase changes.
func (fs *flights) look(f *flight) (ph phase, fp store.Fingerprint, en entry, changed <-chan struct{}) {
	part := fs.of(f.id)
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
