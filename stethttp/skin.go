package stethttp

import (
	"context"
	"log/slog"

	"github.com/stet-go/stet"
)

// Log returns where the middleware says what goes wrong, Options.ErrorLog or its default.
// Skins of frameworks, as stetgin, say there what is wrong with the wiring.
func (m *Middleware) Log() *slog.Logger { return m.log() }

// InTx reports whether ctx is that of a request which runs in a transaction of NewTx. Skins
// of frameworks whose handlers return errors ask it: such an error rolls back.
func InTx(ctx context.Context) bool { return ctx.Value(txType{}) != nil }

// NoRoute is for skins of frameworks that run their middleware for a request before they
// find that no handler is there for it. It says, in the context of the run, that nothing was
// executed, whatever the answer is, and that the key is free for another request: it may
// have been sent to a path with an error in it. Outside of a run it does nothing.
func NoRoute(ctx context.Context) {
	if run := stet.FromContext(ctx); run != nil {
		run.Declare(stet.NotExecuted, 0)
	}
	if c, ok := ctx.Value(callKey{}).(*callContext); ok {
		c.unrouted.Store(true)
	}
}
