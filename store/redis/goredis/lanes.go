package goredis

import (
	"context"
	"sync"

	"github.com/redis/go-redis/v9"
)

// lanes bound the connections of each server that commands may block at the same time
// to half of its pool. The others are for callers who are answered at once: heartbeats.
type lanes struct {
	mu sync.Mutex
	of map[string]chan struct{} // by the server's address
}

// enter waits for one of a server's. The caller calls leave.
func (l *lanes) enter(ctx context.Context, server *redis.Client) (leave func(), err error) {
	o := server.Options()
	l.mu.Lock()
	lane, ok := l.of[o.Addr]
	if !ok {
		if l.of == nil {
			l.of = make(map[string]chan struct{})
		}
		lane = make(chan struct{}, max(o.PoolSize/2, 1))
		l.of[o.Addr] = lane
	}
	l.mu.Unlock()
	select {
	case lane <- struct{}{}:
		return func() { <-lane }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
