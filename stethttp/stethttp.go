// Package stethttp makes retries of HTTP requests safe: it runs the handler of
// a request with an Idempotency-Key once, and gives every retry the same
// response.
//
//	protected := stethttp.Must(stethttp.New(engine, stethttp.Options{Scope: account}))
//	mux.Handle("POST /payments", protected.Handler(payments))
//
// It follows draft-ietf-httpapi-idempotency-key-header-07. Refusals are problem documents
// (RFC 9457) of the types in docs/problems.md. They say whether anything was executed.
//
// # Differences for a handler
//
// The request's body is read before the handler is called, up to Options.MaxBody. The
// request's context is the run's. It does not end when the client leaves, but when the lease
// is lost or the policy's RunTimeout has passed. stet.FromContext returns the run: its key,
// fence and attempt, and Declare(stet.NotExecuted, 0) for a handler that had no effect.
//
// The response is held back until its outcome is durable. A handler that calls Flush streams
// to the first caller; the response then ends after the outcome is durable, or the connection
// is closed. Flush does nothing if a closed connection would look like the end of the response
// (HTTP/1.0, "Transfer-Encoding: identity"), and for responses without a body. The first caller
// receives a response larger than the policy's MaxResult whole; it leaves a tombstone, and
// retries get 410 (result-expired). If it must be held back because its length was not
// declared, and is larger than 16 MiB, the first caller gets the same 410. Hijack is refused:
// see Options.Skip.
//
// A client is disconnected if it reads nothing of a stream for 30 seconds, or delays the
// handler for half of the policy's RunTimeout in total (waits below a second do not count). The
// handler continues, and a retry gets the outcome. A server's WriteTimeout, or a write deadline
// of the handler, replaces these limits.
//
// A handler that returns without a response has no outcome: the client gets 500
// (response-missing), see Advanced.AllowEmpty.
//
// # Middleware around this one
//
// Outer middleware, Options.Scope, Class and Skip must not read the body, also not by
// http.Request's ParseForm or FormValue: different requests would have the same fingerprint.
// Such requests are refused with 500 (misconfigured) and logged. Code that must read the body
// has to set http.Request.Body to the whole body again.
//
// Place compression and CORS around this middleware, so that they also apply to its refusals.
// If the handler encodes its content itself, a retry that does not accept the stored content
// coding (RFC 9110, section 12.5.3) gets 406, and can be repeated with the same key. Stored
// Access-Control-* fields are replayed to the origin that they allow.
//
// # Stored headers
//
// The stored copy has the header as the handler wrote it, without Date, Connection and
// the fields it names, Keep-Alive, TE, Transfer-Encoding, Upgrade, Proxy-* and, by
// default, Set-Cookie. Fields that outer middleware had set before are not stored,
// because it will set them on the replay too; a field that the handler has removed is
// removed from the replay as well. Fields that outer middleware adds when the response
// begins are never stored.
//
// # Asynchronous operations
//
// An Async responds with 202 and a worker runs the operation:
//
//	async := stethttp.Must(stethttp.NewAsync(protected, stethttp.AsyncOptions{StatusURL: "/operations/"}))
//	mux.Handle("POST /orders", async.Accept("orders.create", nil))
//	mux.Handle("/operations/", async.Status())
//
// The same key gets the same 202 and the same status resource for as long as the
// operation is stored. A request can also wait for the outcome: see Async.Accept.
package stethttp

import (
	"cmp"
	"context"
	"log/slog"
	"net/http"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/intx"
	"github.com/stet-go/stet/internal/misuse"
	"github.com/stet-go/stet/store"
)

// Middleware protects handlers. It is safe for concurrent use, and may protect
// any number of handlers.
type Middleware struct {
	engine *stet.Engine
	o      Options
	// header is the canonical name of the key's header.
	header string
	// pointer is that to the key in the body; nil if keys are in the header only.
	pointer []string
	// refPointer is that to the reference; nil for none.
	refPointer []string
	filter     headerFilter
	// marks are the header fields that say something of a call, and not of its outcome.
	marks []string
	// notExecutedLater is NotExecuted for operations that a worker runs.
	notExecutedLater func(status int, header http.Header) bool
	// invalid is the outcome of handlers that ended without a
	// response that could be sent.
	invalid stet.Outcome
	// transact is nil without transactions.
	transact intx.Run
	// acceptTx is nil without transactions, and if the store does not store work.
	acceptTx acceptFunc
}

// adapter finds the transactions of this package.
const adapter intx.Adapter = "stethttp"

// New returns a middleware over engine, for handlers whose effects are outside
// of the engine's store. Wrong options are errors of kind stet.KindInvalid, here
// and not at the first request.
func New(engine *stet.Engine, o Options) (*Middleware, error) {
	if engine == nil {
		return nil, misuse.Errorf("stethttp: New needs an engine; stet.New makes one")
	}
	m := &Middleware{notExecutedLater: o.NotExecuted}
	if o.NotExecuted == nil {
		m.notExecutedLater = NotExecuted
	}
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	m.engine, m.o, m.header, m.filter, m.marks = engine, o, o.Header, newHeaderFilter(o), []string{o.ReplayedHeader, executionHeader, expiresHeader}
	if m.refPointer, err = parsePointer("RefPointer", o.RefPointer); err != nil {
		return nil, err
	}
	if m.pointer, err = parsePointer("KeyPolicy.Pointer", o.KeyPolicy.Pointer); err != nil {
		return nil, err
	}
	m.invalid = m.asResponse(&responseInvalid, "")
	return m, nil
}

// TxMiddleware is a Middleware whose handlers write in a transaction of type Tx.
type TxMiddleware[Tx any] struct {
	*Middleware
}

// NewTx is New for handlers that write to the database of te. Tx gives the handler its
// transaction, and the response is sent after the commit. A response for which Options.Failed
// or NotExecuted is true, a panic, Run.Declare and a return without a response roll the
// transaction back: nothing is stored, this caller gets the response, and a retry runs again.
//
// If the commit finds that another transaction wrote the record in the meantime, the handler
// may be called again for the same request, with a new transaction, the body from its
// beginning and a new response. Flush does nothing. A response larger than the policy's
// MaxResult leaves a tombstone, as in lease mode; above 16 MiB it is rolled back and the
// client gets 500. The handler must not end the transaction, and must have no effects outside
// of it.
func NewTx[T any](te *stet.TxEngine[T], o Options) (*TxMiddleware[T], error) {
	switch {
	case te == nil:
		return nil, misuse.Errorf("stethttp: NewTx needs the result of stet.WithTx")
	case o.FailOpen:
		return nil, misuse.Errorf("stethttp: Options.FailOpen: without the store there is no transaction to run in")
	}
	m, err := New(te.Engine(), o)
	if err != nil {
		return nil, err
	}
	m.transact = intx.RunOf(te, adapter)
	if _, ok := store.As[store.WorkTxStore[T]](te.Store()); ok {
		m.acceptTx = acceptIn(te)
	}
	return &TxMiddleware[T]{m}, nil
}

// HandleTx protects next, which gets its transaction as an argument. So it needs a key,
// whatever Options.Optional says: a request without one is refused with 400 (key-missing).
// A request that passes through unprotected, because of its method or of Options.Skip, has
// no transaction: it is refused with 500 (misconfigured), and Options.ErrorLog says why.
func (m *TxMiddleware[T]) HandleTx(next func(http.ResponseWriter, *http.Request, T)) http.Handler {
	if next == nil {
		panic("stethttp: HandleTx needs a handler")
	}
	return m.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !InTx(r.Context()) {
			m.refuseWithoutTx(w, r)
			return
		}
		next(w, r, Tx[T](r.Context()))
	}))
}

// refuseWithoutTx refuses a request that has come to a handler of HandleTx unprotected.
func (m *Middleware) refuseWithoutTx(w http.ResponseWriter, r *http.Request) {
	if m.protects(r.Method) && (m.o.Skip == nil || !m.o.Skip(r)) {
		m.refuse(w, &keyMissing, "", 0)
		return
	}
	m.log().ErrorContext(r.Context(), "stethttp: a request reached a handler of HandleTx unprotected, without a transaction; nothing was executed. "+
		"Its method is not among Options.Methods, or Options.Skip let it pass: give such requests to another handler", slog.String("method", r.Method))
	m.refuse(w, &misconfigured, "", 0)
}

// Must returns v, or panics if err is not nil. It is for variables and for
// wiring that cannot continue without.
func Must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// Tx returns the transaction of a request that NewTx protects. It panics where there is
// none of type T: on routes that no NewTx for T protects, and for requests that it
// passed through because of their method or because an optional key was missing. For
// those stet.FromContext returns nil.
func Tx[T any](ctx context.Context) T {
	return intx.Of[T](ctx, adapter, "route protected by NewTx, and the request by a key?")
}

// Handler protects next. As m.Handler it has the shape that routers expect of
// middleware.
func (m *Middleware) Handler(next http.Handler) http.Handler {
	if next == nil {
		panic("stethttp: Handler needs a handler")
	}
	return &guard{m: m, next: next, wrong: miswired(next)}
}

// Engine returns the engine that the middleware was made with.
func (m *Middleware) Engine() *stet.Engine { return m.engine }

func (m *Middleware) log() *slog.Logger {
	return cmp.Or(m.o.ErrorLog, slog.Default())
}
