package redis

import "time"

// LookEvery sets how often a watcher looks by itself, before there is one: so rarely that
// only a message can wake it, for instance.
func (s *Store) LookEvery(d time.Duration) { s.watchers.glance = d }
