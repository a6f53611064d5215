// Package again has the error of a handler that says how its operation is run again.
package again

import (
	"errors"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
)

// How says how an operation is run again that would wait for backoff.
type How func(backoff time.Duration) stet.Again

type marked struct {
	error
	how How
}

// Unwrap is for errors.Is and errors.As.
func (m *marked) Unwrap() error { return m.error }

// Mark marks an error as stet.Retryable, with how. Mark(nil, how) is nil.
func Mark(err error, how How) error {
	if err == nil {
		return nil
	}
	return &marked{stet.Retryable(err), how}
}

// Of returns what an error says, within bounds, and whether it says something.
func Of(err error, backoff func() time.Duration) (a stet.Again, ok bool) {
	own, ok := errors.AsType[*marked](err)
	if !ok {
		return a, false
	}
	a = own.how(backoff())
	a.After, a.Failed = min(max(a.After, 0), store.MaxDelay), nil
	return a, true
}
