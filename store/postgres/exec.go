package postgres

import (
	"context"
	"math/rand/v2"
	"time"
)

const (
	execTries   = 4
	execBackoff = 5 * time.Millisecond
)

// exec has calls executed in one transaction, on a connection of the store's
// own. make makes them, and forgets what the rows of a try before have said.
// Lost races and connections are tried again, which is harmless: every call
// may be repeated.
func (s *Store) exec(ctx context.Context, make func() []call) (err error) {
	for try, pause := 1, execBackoff; ; try, pause = try+1, 4*pause {
		if err = s.execOnce(ctx, make()); err == nil || try == execTries || !transient(err) || s.closed.Load() {
			return err
		}
		if ctx.Err() != nil || !sleep(ctx, pause/2+rand.N(pause)) {
			return err
		}
	}
}

func (s *Store) execOnce(ctx context.Context, calls []call) error {
	c, err := s.own.Acquire(ctx)
	if err != nil {
		return err
	}
	defer c.Release()
	return s.send(ctx, c, calls...)
}

// alone has calls executed like exec, with a token of lane, which bounds how
// many connections that use takes.
func (s *Store) alone(ctx context.Context, lane chan struct{}, make func() []call) error {
	select {
	case lane <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-lane }()
	if s.closed.Load() {
		return errClosed
	}
	return s.exec(ctx, make)
}

// sleep waits for d and reports whether ctx is still alive.
func sleep(ctx context.Context, d time.Duration) bool {
	pause, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	<-pause.Done()
	return ctx.Err() == nil
}
