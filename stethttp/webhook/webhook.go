// Package webhook receives webhooks, which senders deliver at least once and
// again for days, and handles each delivery once.
//
//	handler, err := webhook.New(engine, webhook.Options{
//		Endpoint: "billing",
//		Verifier: webhook.Stripe(secret),
//	}, func(ctx context.Context, d webhook.Delivery) error { … })
//
// A delivery is verified first and looked up afterwards: nobody learns anything,
// or fills the store, without a signature. It is acknowledged (200) only when its
// outcome is durable.
//
//	what                                         answer
//	new, and handled                             200
//	handled before                               200, without running the handler
//	being handled right now                      503 and Retry-After
//	the handler had no effect (ErrRetryable)     503 and Retry-After; runs again
//	the handler failed                           500, now and for each delivery
//	nobody knows whether it was handled          503 and Retry-After, until resolved
//	the store cannot be used                     503 and Retry-After
//	headers missing or malformed                 400
//	forged, or signed too long ago               401
//	another body under an ID that was used       422
//	body too large                               413
//
// No answer is 409 or 410: some senders take the one for final, and the other
// for the wish to hear nothing any more.
package webhook

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"reflect"
	"time"

	"github.com/stet-go/stet"
)

// DefaultMaxBody bounds the body of a delivery, in bytes.
const DefaultMaxBody = 1 << 20

// retryLater is when a sender is asked to come again.
const retryLater = "5"

// Delivery is a webhook that was verified.
type Delivery struct {
	ID     string      // the sender's, the same in each delivery of a message
	Header http.Header // of the request
	Body   []byte      // as it was signed
}

// Options configure a handler of webhooks. Endpoint and Verifier are required.
type Options struct {
	// Endpoint is the scope of the IDs: one sender's account. The same ID from
	// another endpoint is another message. 1 to stet.MaxScope bytes.
	Endpoint string
	// Verifier checks the signature.
	Verifier Verifier
	// Class names the policy, one of stet.Options.Classes; Policy is made for
	// it. Its Retention.Result and Retention.Tombstone must be as long as the
	// sender goes on delivering (Verifier.Horizon), or a message that has failed
	// would be acknowledged, and an old one be new again.
	Class string
	// MaxBody is the greatest body in bytes. Default DefaultMaxBody.
	MaxBody int64
	// Clock tells how old a signature is. Default time.Now.
	Clock func() time.Time
	// ErrorLog gets what goes wrong, never a body or an ID. Default
	// slog.Default().
	ErrorLog *slog.Logger
}

// Policy returns a policy for webhooks: outcomes are kept for 7 days, and what
// was handled is remembered for 30; both are longer than any sender here goes on
// delivering.
func Policy() stet.Policy {
	return stet.Policy{Retention: stet.Retention{Result: 7 * 24 * time.Hour, Tombstone: 30 * 24 * time.Hour}}
}

// New returns a handler of webhooks that calls handle at most once for each
// message. Its context does not end when the sender hangs up. An error of handle
// is the message's outcome, because an effect may have happened before it: use
// an error that wraps stet.ErrRetryable where none did, and the next delivery is
// handled anew. A panic is an error and goes on.
//
// Wrong options are errors of kind stet.ErrInvalid.
func New(engine *stet.Engine, o Options, handle func(context.Context, Delivery) error) (http.Handler, error) {
	return newHandler(engine, o, handle != nil, func(ctx context.Context, op stet.Op, d Delivery) error {
		_, err := stet.Do(ctx, engine, op, func(ctx context.Context) (struct{}, error) { return struct{}{}, handle(ctx, d) })
		return err
	})
}

// NewTx is New with the writes of handle and the memory of the message in one
// transaction of store, which must be the engine's. Any error of handle rolls
// back, and the next delivery is handled anew.
func NewTx[Tx any](engine *stet.Engine, store stet.TxStore[Tx], o Options, handle func(context.Context, Tx, Delivery) error) (http.Handler, error) {
	if engine != nil && (store == nil || reflect.TypeOf(store).Comparable() && engine.Store() != stet.Store(store)) {
		return nil, invalid("NewTx needs the store that stet.New was given")
	}
	return newHandler(engine, o, handle != nil, func(ctx context.Context, op stet.Op, d Delivery) error {
		_, err := stet.DoTx(ctx, engine, store, op, func(ctx context.Context, tx Tx) (struct{}, error) { return struct{}{}, handle(ctx, tx, d) })
		return err
	})
}

type handler struct {
	o  Options
	do func(context.Context, stet.Op, Delivery) error
}

func newHandler(engine *stet.Engine, o Options, handles bool, do func(context.Context, stet.Op, Delivery) error) (http.Handler, error) {
	switch {
	case engine == nil:
		return nil, invalid("an engine is needed; stet.New makes one")
	case !handles:
		return nil, invalid("a function that handles deliveries is needed")
	case o.Endpoint == "" || len(o.Endpoint) > stet.MaxScope:
		return nil, invalid("Options.Endpoint has %d bytes; it must have 1 to %d", len(o.Endpoint), stet.MaxScope)
	case o.Verifier == nil:
		return nil, invalid("Options.Verifier is required: an ID that anybody can make up proves nothing")
	case o.MaxBody < 0:
		return nil, invalid("Options.MaxBody is negative: %d", o.MaxBody)
	}
	if v, ok := o.Verifier.(interface{ ready() error }); ok {
		if err := v.ready(); err != nil {
			return nil, invalid("Options.Verifier: %w", err)
		}
	}
	policy, ok := engine.Policy(o.Class)
	if !ok {
		return nil, invalid("Options.Class %q is not among stet.Options.Classes", o.Class)
	}
	// The result alone tells a failure from a success: without it, a delivery of
	// a message that has failed would be acknowledged.
	if horizon, keep := o.Verifier.Horizon(), policy.Retention; min(keep.Result, keep.Tombstone) < horizon {
		return nil, invalid("the policy of class %q keeps results for %v and remembers messages for %v, and the sender delivers again for %v; make both as long, as webhook.Policy does for the senders here",
			o.Class, keep.Result, keep.Tombstone, horizon)
	}
	if o.MaxBody == 0 {
		o.MaxBody = DefaultMaxBody
	}
	if o.Clock == nil {
		o.Clock = time.Now
	}
	if o.ErrorLog == nil {
		o.ErrorLog = slog.Default()
	}
	return &handler{o, do}, nil
}

// ServeHTTP implements http.Handler.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		http.Error(w, "webhooks are POSTed", http.StatusMethodNotAllowed)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, h.o.MaxBody))
	if err != nil {
		status := http.StatusBadRequest
		if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
			status = http.StatusRequestEntityTooLarge
		}
		http.Error(w, "the body could not be read, or is too large", status)
		return
	}
	id, content, err := h.o.Verifier.Verify(r.Header, body, h.o.Clock())
	if err != nil {
		h.o.ErrorLog.WarnContext(r.Context(), "webhook: a delivery was refused", slog.String("endpoint", h.o.Endpoint), slog.Any("error", err))
		status := http.StatusUnauthorized
		if errors.Is(err, ErrMalformed) {
			status = http.StatusBadRequest
		}
		http.Error(w, err.Error(), status)
		return
	}
	op := stet.Op{Scope: h.o.Endpoint, Key: id, Fingerprint: stet.NewFingerprint(content), Class: h.o.Class}
	h.answer(w, r, h.do(r.Context(), op, Delivery{ID: id, Header: r.Header, Body: bytes.Clone(body)}))
}

// answer says to the sender what became of a delivery. What was executed is
// acknowledged, even if nobody knows any more what it came to.
func (h *handler) answer(w http.ResponseWriter, r *http.Request, err error) {
	// What the engine says is the outermost error; those inside it may be of
	// another operation, which the handler called.
	var kind error
	if e, ok := errors.AsType[*stet.Error](err); ok {
		kind = e.Kind
	}
	switch {
	case err == nil:
		w.WriteHeader(http.StatusOK)
		return
	case kind == stet.ErrMismatch: //nolint:errorlint // a kind is one of the sentinels
		http.Error(w, "this ID was used for another message", http.StatusUnprocessableEntity)
	case kind == stet.ErrFailed: //nolint:errorlint // see above
		http.Error(w, "the message could not be handled", http.StatusInternalServerError)
	case stet.ExecutionOf(err) == stet.Executed:
		w.WriteHeader(http.StatusOK)
		return
	default:
		w.Header().Set("Retry-After", retryLater)
		http.Error(w, "deliver it again later", http.StatusServiceUnavailable)
	}
	if kind != stet.ErrInFlight { //nolint:errorlint // see above
		h.o.ErrorLog.ErrorContext(r.Context(), "webhook: a delivery was not acknowledged", slog.String("endpoint", h.o.Endpoint), slog.Any("error", err))
	}
}

func invalid(format string, args ...any) error {
	return &stet.Error{Kind: stet.ErrInvalid, Execution: stet.NotExecuted, Cause: fmt.Errorf("webhook: "+format, args...)}
}
