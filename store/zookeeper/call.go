package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/go-zookeeper/zk"

	"github.com/stet-go/stet/store"
)

// call returns what do returns, or the error of ctx when it ends first. The request may then still
// be sent.
func call[T any](ctx context.Context, s *Store, do func() (T, error)) (v T, err error) {
	if ctx.Err() != nil {
		return v, fmt.Errorf("%w: %w", store.ErrNotDone, context.Cause(ctx))
	}
	if s.closed.Load() {
		return v, errClosed
	}
	type reply struct {
		v   T
		err error
	}
	done := make(chan reply, 1)
	go func() { // ends with the connection
		v, err := do()
		done <- reply{v, err}
	}()
	select {
	case r := <-done:
		return r.v, r.err
	case <-ctx.Done():
		return v, context.Cause(ctx)
	}
}

// conflict reports whether the server refused a write because the record has changed.
func conflict(err error) bool {
	return errors.Is(err, zk.ErrNodeExists) || errors.Is(err, zk.ErrBadVersion) || errors.Is(err, zk.ErrNoNode)
}

// noEffect reports whether a request that failed had no effect: the server refused it, or it was
// never sent.
func noEffect(err error) bool {
	return conflict(err) || slices.ContainsFunc([]error{zk.ErrNoServer, zk.ErrNoAuth, zk.ErrInvalidACL, zk.ErrSessionMoved, store.ErrNotDone},
		func(refused error) bool { return errors.Is(err, refused) })
}

// undone is an error of a call that had no effect.
func undone(err error) error {
	if errors.Is(err, store.ErrNotDone) {
		return err
	}
	return fmt.Errorf("%w: %w", store.ErrNotDone, err)
}

// together is how many requests about different records one call sends at a time.
const together = 32

// each calls do for 0 to n-1, together at a time.
func each(n int, do func(int)) {
	var wg sync.WaitGroup
	turns := make(chan struct{}, together)
	for i := range n {
		turns <- struct{}{}
		wg.Go(func() {
			defer func() { <-turns }()
			do(i)
		})
	}
	wg.Wait()
}

// damage is the records of a call that could not be reached or read.
type damage struct {
	mu     sync.Mutex
	claims []store.Claim
	cause  error
}

func (d *damage) add(c store.Claim, cause error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.claims = append(d.claims, c)
	if d.cause == nil {
		d.cause = cause
	}
}

// err is nil if there are none.
func (d *damage) err() error {
	if len(d.claims) == 0 {
		return nil
	}
	return &store.PartialError{Claims: d.claims, Cause: d.cause}
}
