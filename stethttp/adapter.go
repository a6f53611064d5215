package stethttp

import (
	"context"
	"errors"
	"log/slog"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/again"
)

// Log returns Options.ErrorLog or its default. Adapters of frameworks, such as stetgin, log
// faults of the wiring there.
func (m *Middleware) Log() *slog.Logger { return m.log() }

// InTx reports whether ctx is that of a request which runs in a transaction of NewTx.
func InTx(ctx context.Context) bool { return adapter.In(ctx) }

// NoRoute is for adapters of frameworks that run middleware before they find that a request has no
// handler. It states that nothing was executed, and frees the key for another request, because
// the path may have been wrong. ctx is the run's context; outside a run it does nothing.
func NoRoute(ctx context.Context) {
	if run := stet.FromContext(ctx); run != nil {
		run.Declare(stet.NotExecuted, 0)
	}
	if c, ok := ctx.Value(callKey{}).(*callContext); ok {
		c.unrouted.Store(true)
	}
}

// Returned is for adapters of frameworks whose handlers return errors, and for handlers of
// frameworks without an adapter, such as huma. ctx is the run's context. Call it before or
// after the response to err is written. It rolls a transaction back. By default a response of
// 3xx or 4xx that Options.NotExecuted does not except is stored after the rollback, in a
// second transaction; after any other response a retry runs again.
//
// A marked error (stet.Retryable, Repeatable, Permanent) counts as such. An error of the run's
// ended context makes the outcome unknown, as in stet.Lease.Do. For other errors the response
// decides. Outside a run it does nothing.
func Returned(ctx context.Context, err error) {
	if c, ok := ctx.Value(callKey{}).(*callContext); ok && err != nil {
		c.returned.Store(&err)
	}
}

// failure is an error that a handler has returned.
type failure struct {
	error // nil for none
	again.Marks
	ended bool // it is that of the run's context
}

// counts returns the error if it decides the end of a lease; otherwise the response decides.
func (f failure) counts() error {
	if f.Any() || f.ended {
		return f.error
	}
	return nil
}

// failure returns the error of the handler's last call.
func (c *call) failure() (f failure) {
	if c.ctx == nil {
		return f
	}
	if err := c.ctx.returned.Load(); err != nil {
		cause := context.Cause(c.ctx)
		f.error, f.Marks = *err, again.MarksOf(*err)
		f.ended = cause != nil && (errors.Is(*err, cause) || errors.Is(*err, context.Canceled) || errors.Is(*err, context.DeadlineExceeded))
	}
	return f
}
