package stethttp

import (
	"context"
	"log/slog"
)

// Log returns where the middleware says what goes wrong, Options.ErrorLog or its default.
// Skins of frameworks, as stetgin, say there what is wrong with the wiring.
func (m *Middleware) Log() *slog.Logger { return m.log() }

// InTx reports whether ctx is that of a request which runs in a transaction of NewTx. Skins
// of frameworks whose handlers return errors ask it: such an error rolls back.
func InTx(ctx context.Context) bool { return ctx.Value(txType{}) != nil }
