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

	// Below: guarded by flights.mu.
	phase       phase
	fingerprint store.Fingerprint // of the leader; binding once running
	result      entry             // when over: what followers may share
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

// flights are the operations in flight in this process.
type flights struct {
	mu sync.Mutex
	m  map[store.ID]*flight
}

// join returns the flight of id, and whether the caller leads it.
func (fs *flights) join(id store.ID, fp store.Fingerprint, p *parts) (f *flight, leader bool) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if f := fs.m[id]; f != nil {
		return f, false
	}
	f = p.flightOf(id, fp)
	if fs.m == nil {
		fs.m = make(map[store.ID]*flight)
	}
	fs.m[id] = f
	return f, true
}

// turn says how far the leader has come.
func (fs *flights) turn(f *flight, to phase) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if f.phase < to {
		f.turn(to)
	}
}

// runs says that the leader runs an operation whose fingerprint it has only
// learned from the store.
func (fs *flights) runs(f *flight, fp store.Fingerprint) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	f.fingerprint = fp
	f.turn(running)
}

// runsHere reports whether a call of this process runs the operation.
func (fs *flights) runsHere(id store.ID) bool {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	f := fs.m[id]
	return f != nil && f.phase == running
}

// end says that the flight is over; en is shared with its followers if it may be.
func (fs *flights) end(f *flight, en entry) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if f.phase == over {
		return
	}
	f.result = en
	f.turn(over)
	if fs.m[f.id] == f {
		delete(fs.m, f.id)
	}
}

// turn changes the phase and wakes the followers. The caller holds flights.mu.
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
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if f.phase != over && f.changed == nil {
		f.changed = make(chan struct{})
	}
	return f.phase, f.fingerprint, f.result, f.changed
}
