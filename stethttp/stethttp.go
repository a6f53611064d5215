// Package stethttp makes retries of HTTP requests safe: it runs the handler of
// a request with an Idempotency-Key once, and gives every retry the same
// response.
//
//	protected := stethttp.Must(stethttp.New(engine, stethttp.Options{Scope: account}))
//	mux.Handle("POST /payments", protected.Handler(payments))
//
// It follows draft-ietf-httpapi-idempotency-key-header-07. What it refuses, it
// refuses with a problem document (RFC 9457) of the types listed in
// docs/problems.md, which also say whether anything was executed.
//
// # What a handler notices
//
// The request's body was read before the handler is called, up to
// Options.MaxBody. The request's context is the run's: it does not end when the
// client leaves, but when the lease is lost or the policy's RunTimeout is used
// up. stet.FromContext finds the run in it: key, fence, attempt, and
// NothingHappened for a handler that knows that it has had no effect.
//
// The response is held back until its outcome is durable. A handler that
// flushes streams to the first caller, whose response then ends only once the
// outcome is durable; if it cannot be made so, the connection is cut, which on
// HTTP/1.0, where the end of the connection is the end of the response, looks
// like an end: there Flush does nothing. A response that is larger than the
// policy's MaxResult reaches the first caller whole, and leaves a tombstone
// that answers retries with 410. Hijack is refused: see Options.Skip.
//
// # Stored headers
//
// The stored copy has the headers that the handler set, without Date,
// Connection and the fields it names, Keep-Alive, TE, Transfer-Encoding,
// Upgrade, Proxy-* and, by default, Set-Cookie. Headers that middleware around
// this one had set before are not stored; it will set them on the replay.
//
// Compression belongs around this middleware, not between it and the handler.
// Where the handler encodes its content nevertheless, a retry that does not
// accept the stored content coding (RFC 9110, section 12.5.3) is answered with
// 406 and may ask again with the same key.
//
// # Operations that are run later
//
// An Async answers with 202 and leaves the run to a worker:
//
//	async := stethttp.Must(stethttp.NewAsync(protected, stethttp.AsyncOptions{StatusURL: "/operations/"}))
//	mux.Handle("POST /orders", async.Accept("orders.create", nil))
//	mux.Handle("/operations/", async.Status())
//
// The same key gets the same 202, and so the same status resource, for as long as
// the operation is kept. A request may ask for the outcome instead, and wait for
// it: see Async.Accept.
package stethttp

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"reflect"

	"github.com/stet-go/stet"
)

// Middleware protects handlers. It is safe for concurrent use, and may protect
// any number of handlers.
type Middleware struct {
	engine *stet.Engine
	o      Options
	// header is the canonical name of the key's header.
	header string
	filter headerFilter
	// panicked and invalid are the outcomes of handlers that ended without a
	// response that could be sent.
	panicked, invalid stet.Outcome
	// transact is nil without transactions.
	transact transactFunc
	// acceptTx is nil without transactions, and where the store keeps no work.
	acceptTx acceptFunc
}

// transactFunc is stet.RunTx with its transaction type tucked away.
type transactFunc func(context.Context, stet.Op, func(context.Context) (stet.Outcome, error)) (*stet.Run, error)

// New returns a middleware over engine, for handlers whose effects are outside
// of the engine's store. Wrong options are errors of kind stet.ErrInvalid, here
// and not at the first request.
func New(engine *stet.Engine, o Options) (*Middleware, error) {
	if engine == nil {
		return nil, invalid("New needs an engine; stet.New makes one")
	}
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	m := &Middleware{engine: engine, o: o, header: o.Header, filter: newHeaderFilter(o)}
	m.panicked = m.storedProblem(&handlerPanicked)
	m.invalid = m.storedProblem(&responseInvalid)
	return m, nil
}

// NewTx is New for handlers whose effects are writes to store, which must be
// the engine's: the handler gets its transaction from Tx, and its response
// leaves only after the commit. A response of 500 and above, one that
// Options.NotExecuted accepts, a panic and Run.NothingHappened roll back:
// nothing is stored, the response is passed on to this caller, and a retry
// runs again. Flush does nothing. A response that is larger than the policy's
// MaxResult leaves a tombstone, as in lease mode; one that is also larger than
// 16 MiB is rolled back and answered with 500. The handler must not end the
// transaction, and must have no effects outside of it.
func NewTx[T any](engine *stet.Engine, store stet.TxStore[T], o Options) (*Middleware, error) {
	if store == nil {
		return nil, invalid("NewTx needs the engine's store")
	}
	if engine != nil && reflect.TypeOf(store).Comparable() && engine.Store() != stet.Store(store) {
		return nil, invalid("NewTx needs the store that stet.New was given, not another one")
	}
	if o.FailOpen {
		return nil, invalid("Options.FailOpen: without the store there is no transaction to run in")
	}
	m, err := New(engine, o)
	if err != nil {
		return nil, err
	}
	m.transact = func(ctx context.Context, op stet.Op, fn func(context.Context) (stet.Outcome, error)) (*stet.Run, error) {
		return stet.RunTx(ctx, engine, store, op, func(ctx context.Context, tx T) (stet.Outcome, error) {
			return fn(context.WithValue(ctx, txKey[T]{}, tx))
		})
	}
	if ws, ok := store.(stet.WorkTxStore[T]); ok {
		m.acceptTx = acceptIn(engine, ws)
	}
	return m, nil
}

// Must returns v, or panics if err is not nil. It is for variables and for
// wiring that cannot go on without.
func Must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

type txKey[T any] struct{}

// Tx returns the transaction of a request that NewTx protects. It panics where
// there is none of type T: on routes that are not protected by a NewTx for T,
// and for requests that it passed through, because of their method or for want
// of a key where it is optional; stet.FromContext is nil for those.
func Tx[T any](ctx context.Context) T {
	tx, ok := ctx.Value(txKey[T]{}).(T)
	if !ok {
		panic(fmt.Sprintf("stethttp: no transaction of type %v in this context: is the route protected by NewTx, and the request by a key?", reflect.TypeFor[T]()))
	}
	return tx
}

// Handler protects next. As m.Handler it has the shape that routers expect of
// middleware.
func (m *Middleware) Handler(next http.Handler) http.Handler {
	if next == nil {
		panic("stethttp: Handler needs a handler")
	}
	return &guard{m: m, next: next}
}

func (m *Middleware) log() *slog.Logger {
	if m.o.ErrorLog != nil {
		return m.o.ErrorLog
	}
	return slog.Default()
}

func invalid(format string, args ...any) error {
	return &stet.Error{Kind: stet.ErrInvalid, Execution: stet.NotExecuted, Cause: fmt.Errorf("stethttp: "+format, args...)}
}
