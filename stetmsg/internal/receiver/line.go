package receiver

import (
	"context"
	"sync"
)

// Line has messages begun in the order in which they joined it, whichever of their
// goroutines comes first.
type Line struct {
	mu   sync.Mutex
	last chan struct{} // closed when the last to have joined has begun
}

// Join returns the context with which a message is to be handled.
func (l *Line) Join(ctx context.Context) context.Context {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := &Turn{Before: l.last, begun: make(chan struct{})}
	l.last = t.begun
	return context.WithValue(ctx, turnKey{}, t)
}

type turnKey struct{}

// Turn is a message's place in a line.
type Turn struct {
	Before <-chan struct{} // closed when the message before has begun; nil for the first
	begun  chan struct{}
	once   sync.Once
}

// TurnOf returns the turn of a message that has joined a line, or nil.
func TurnOf(ctx context.Context) *Turn {
	t, _ := ctx.Value(turnKey{}).(*Turn)
	return t
}

// Begun lets the next one begin. Calls after the first, of what a handler does with
// its context, mean nothing.
func (t *Turn) Begun() { t.once.Do(func() { close(t.begun) }) }
