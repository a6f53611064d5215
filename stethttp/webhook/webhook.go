// Package webhook receives webhooks, which senders deliver at least once and
// again for days, and handles each delivery once.
//
//	handler, err := webhook.New(engine, webhook.Options{
//		Endpoint: "billing",
//		Verifier: webhook.Stripe(secret),
//	}, func(ctx context.Context, d webhook.Delivery) error { … })
//
// A delivery is verified before it is read: without a valid signature, a caller
// learns nothing and stores nothing. It is acknowledged (200) only when its outcome is
// durable.
//
//	what                                         answer
//	new, and handled                             200
//	handled before                               200, without running the handler
//	being handled right now                      504 and Retry-After
//	the handler had no effect (stet.Retryable)   503 and Retry-After; runs again
//	the handler failed                           500, now and for each delivery
//	it may have been handled                     504 and Retry-After, until resolved
//	the store cannot be used: not handled        503 and Retry-After
//	headers missing or malformed                 400
//	forged, or signed too long ago               401
//	another body under an ID that was used       422; after a 503, it is handled (see Policy)
//	body too large                               413
//
// No answer is 409 or 410: some senders never deliver again after a 409, and remove the
// endpoint after a 410.
package webhook

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/misuse"
	"github.com/stet-go/stet/store"
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
	// another endpoint is another message. 1 to store.MaxScope bytes.
	Endpoint string
	// Verifier checks the signature.
	Verifier Verifier
	// Class names the policy, one of stet.Options.Classes; Policy is made for
	// it. Its Retention.Result and Retention.Tombstone must be as long as the
	// sender continues delivering (Verifier.Horizon), or a message that has failed
	// would be acknowledged, and an old one be new again.
	Class string
	// MaxBody is the greatest body in bytes. Default DefaultMaxBody.
	MaxBody int64
	// ErrorLog gets what goes wrong, never a body or an ID. Default
	// slog.Default().
	ErrorLog *slog.Logger
}

// Policy returns a policy for webhooks. Outcomes are stored for 7 days, and keys for 30:
// longer than any sender here repeats a delivery. ForgetReleased is set, so that after a
// delivery without effect the next one may have another body, for example with a new time of
// sending.
func Policy() stet.Policy {
	return stet.Policy{Retention: store.Retention{Result: 7 * 24 * time.Hour, Tombstone: 30 * 24 * time.Hour}, ForgetReleased: true}
}

// New returns a handler of webhooks that calls handle at most once for each
// message. Its context does not end when the sender hangs up. An error of handle
// is the message's outcome, because an effect may have happened before it: use
// an error that is stet.Retryable where none did, and the next delivery is
// handled anew. A panic is an error and continues.
//
// Wrong options are errors of kind stet.KindInvalid.
func New(engine *stet.Engine, o Options, handle func(context.Context, Delivery) error) (http.Handler, error) {
	return newHandler(engine, o, handle != nil, func(ctx context.Context, op stet.Op, d Delivery) error {
		_, err := stet.Do(ctx, engine, op, func(ctx context.Context) (struct{}, error) { return struct{}{}, handle(ctx, d) })
		return err
	})
}

// NewTx is New with the writes of handle and the memory of the message in one
// transaction. Any error of handle rolls
// back, and the next delivery is handled anew.
func NewTx[Tx any](te *stet.TxEngine[Tx], o Options, handle func(context.Context, Tx, Delivery) error) (http.Handler, error) {
	if te == nil {
		return nil, misuse.Errorf("webhook: NewTx needs the result of stet.WithTx")
	}
	return newHandler(te.Engine(), o, handle != nil, func(ctx context.Context, op stet.Op, d Delivery) error {
		_, err := stet.DoTx(ctx, te, op, func(ctx context.Context, tx Tx) (struct{}, error) { return struct{}{}, handle(ctx, tx, d) })
		return err
	})
}

type handler struct {
	o   Options
	do  func(context.Context, stet.Op, Delivery) error
	now func() time.Time // when signatures are checked
}

func newHandler(engine *stet.Engine, o Options, handles bool, do func(context.Context, stet.Op, Delivery) error) (http.Handler, error) {
	switch {
	case engine == nil:
		return nil, misuse.Errorf("webhook: an engine is needed; stet.New makes one")
	case !handles:
		return nil, misuse.Errorf("webhook: a function that handles deliveries is needed")
	case o.Endpoint == "" || len(o.Endpoint) > store.MaxScope:
		return nil, misuse.Errorf("webhook: Options.Endpoint has %d bytes; it must have 1 to %d", len(o.Endpoint), store.MaxScope)
	case o.Verifier == nil:
		return nil, misuse.Errorf("webhook: Options.Verifier is required: without a signature, anyone can make up an ID")
	case o.MaxBody < 0:
		return nil, misuse.Errorf("webhook: Options.MaxBody is negative: %d", o.MaxBody)
	}
	if v, ok := o.Verifier.(interface{ ready() error }); ok {
		if err := v.ready(); err != nil {
			return nil, misuse.Errorf("webhook: Options.Verifier: %w", err)
		}
	}
	policy, ok := engine.Policy(o.Class)
	if !ok {
		return nil, misuse.Errorf("webhook: Options.Class %q is not among stet.Options.Classes", o.Class)
	}
	// The result alone tells a failure from a success: without it, a delivery of
	// a message that has failed would be acknowledged.
	if horizon, keep := o.Verifier.Horizon(), policy.Retention; min(keep.Result, keep.Tombstone) < horizon {
		return nil, misuse.Errorf("webhook: the policy of class %q keeps results for %v and remembers messages for %v, and the sender delivers again for %v; make both as long, as webhook.Policy does for the senders here",
			o.Class, keep.Result, keep.Tombstone, horizon)
	}
	if o.MaxBody == 0 {
		o.MaxBody = DefaultMaxBody
	}
	if o.ErrorLog == nil {
		o.ErrorLog = slog.Default()
	}
	return &handler{o, do, time.Now}, nil
}

// ServeHTTP implements http.Handler.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		http.Error(w, "send webhooks by POST", http.StatusMethodNotAllowed)
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
	id, content, err := h.o.Verifier.Verify(r.Header, body, h.now())
	if err != nil {
		h.o.ErrorLog.WarnContext(r.Context(), "webhook: a delivery was refused", slog.String("endpoint", h.o.Endpoint), slog.Any("error", err))
		status := http.StatusUnauthorized
		if errors.Is(err, ErrMalformed) {
			status = http.StatusBadRequest
		}
		http.Error(w, err.Error(), status)
		return
	}
	op := stet.Op{Scope: h.o.Endpoint, Key: id, Fingerprint: stet.NewFingerprint(content), Class: h.o.Class, Name: store.LabelText("webhook " + h.o.Endpoint)}
	h.answer(w, r, h.do(r.Context(), op, Delivery{ID: id, Header: r.Header, Body: bytes.Clone(body)}))
}

// answer sends the outcome of a delivery. An executed delivery is acknowledged, also if its
// result was discarded.
func (h *handler) answer(w http.ResponseWriter, r *http.Request, err error) {
	// What the engine says is the outermost error; those inside it may be of
	// another operation, which the handler called.
	kind := stet.KindOf(err)
	switch {
	case err == nil:
		w.WriteHeader(http.StatusOK)
		return
	case kind == stet.KindMismatch:
		http.Error(w, "this ID was used for another message", http.StatusUnprocessableEntity)
	case kind == stet.KindFailed, kind == stet.KindExpired && stet.ExecutionOf(err) != stet.Executed: // it has failed, and the rest is not kept
		http.Error(w, "the message could not be handled", http.StatusInternalServerError)
	case stet.ExecutionOf(err) == stet.Executed:
		w.WriteHeader(http.StatusOK)
		return
	case stet.ExecutionOf(err) == stet.NotExecuted:
		w.Header().Set("Retry-After", retryLater)
		http.Error(w, "deliver it again later", http.StatusServiceUnavailable)
	default: // a 503 would say that nothing was executed
		w.Header().Set("Retry-After", retryLater)
		http.Error(w, "the message is being handled, or its outcome is unknown; deliver it again later", http.StatusGatewayTimeout)
	}
	if kind != stet.KindInFlight {
		h.o.ErrorLog.ErrorContext(r.Context(), "webhook: a delivery was not acknowledged", slog.String("endpoint", h.o.Endpoint), slog.Any("error", err))
	}
}
