package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"slices"

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
