package redis

import "time"

// LookEvery sets the interval at which a watcher polls, before the first watcher. With a long
// interval only a message can wake a watcher.
func (s *Store) LookEvery(d time.Duration) { s.watchers.every = d }
