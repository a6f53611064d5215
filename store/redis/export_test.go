package redis

import "time"

// LookEvery sets how often a watcher looks by itself, before there is one: so rarely that
// only a message can wake it, for instance.
func (s *Store) LookEvery(d time.Duration) { s.watchers.glance = d }

// Share has claims and settlements share scripts as soon as more than few are under way, and
// at most so many scripts be under way, and so many that are full. It is called before the
// first of them.
func (s *Store) Share(few, lanes, full int) {
	s.sharing.few, s.sharing.lanes, s.sharing.full = few, lanes, full
}

// Shares reports whether calls can share scripts.
func (s *Store) Shares() bool { return s.sharing != nil && !s.sharing.off.Load() }

// Gathered returns how many calls wait for the next shared script.
func (s *Store) Gathered() int {
	s.sharing.mu.Lock()
	defer s.sharing.mu.Unlock()
	return s.sharing.gather.Len()
}

// SharedScript is the digest of the script that calls share.
var SharedScript = sharedScript.digest
