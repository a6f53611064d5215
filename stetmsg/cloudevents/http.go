package cloudevents

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/misuse"
	"github.com/stet-go/stet/stetmsg"
	"github.com/stet-go/stet/store"
)

const (
	// DefaultMaxBody bounds the content of a request, in bytes.
	DefaultMaxBody = 1 << 20
	// patience is how long a sender waits for an unavailable store.
	patience = 2 * time.Second
	// retryLater is the least Retry-After.
	retryLater = time.Second
	// anyOrigin is a value of Options.Origins, and of WebHook-Allowed-Rate.
	anyOrigin = "*"
)

// Options configure a handler of events that come by HTTP. Scope is required.
type Options struct {
	// Scope returns the authenticated sender. The source of an event is not authenticated. 1 to store.MaxScope bytes. "" refuses the request with 403, an error
	// with 500. If a broker delivers the same events, Identity must have the same scope there.
	Scope func(*http.Request) (string, error)
	// Class returns the class of an event's operation, one of stet.Options.Classes. Another one, or
	// a panic, refuses the request with 500. Default: none.
	Class func(Event) string
	// MaxBody is the greatest content of a request in bytes. Default DefaultMaxBody.
	MaxBody int64
	// Origins are the senders that may deliver. They ask by OPTIONS (CloudEvents webhook
	// specification); "*" is any. Default: such requests are answered with 405.
	Origins []string
	// MaxAttempts is how often an event is tried in lease mode: see stetmsg.Options. In a
	// transaction the sender counts.
	MaxAttempts int
	// Backoff returns the Retry-After of the n-th attempt, from 1. Default: that of
	// stetmsg.
	Backoff func(n int) time.Duration
	// Observe, if set, is called with each decision. It must be quick and safe for
	// concurrent use.
	Observe func(context.Context, stetmsg.Decision)
	// ErrorLog receives errors, with the text of handlers' errors, never a key or data.
	// Default slog.Default().
	ErrorLog *slog.Logger
}

// delivery is an event, or a batch, while it is being handled.
type delivery struct {
	scope    string
	class    string
	envelope stetmsg.Envelope
}

func (d delivery) part(contentType string, body []byte) delivery {
	// A part has no headers: its attributes are in its body.
	return delivery{d.scope, "", stetmsg.Envelope{ContentType: contentType, Body: body, Header: func(string) (string, bool) { return "", false }}}
}

// Handler returns a handler for CloudEvents over HTTP: in binary mode, in structured mode
// (JSON), and in batches, in which each event is an operation. handle is called once for each
// event, with the decisions of stetmsg.New.
//
//	the event                                       response
//	handled, now or before                          204, when the outcome is durable
//	not executed: no effect, the store is down      503 and Retry-After
//	running elsewhere, or the outcome is not known  504 and Retry-After
//	it failed, now or before                        500, and the same for each delivery
//	another event under this source and id          422
//	no event; an attribute twice                    400
//	a format other than JSON                        415
//	too large                                       413
//	no scope                                        403
//
// A batch gets the response of the worst of its events. When it is delivered again, handled
// events do not run again. An event that also arrives from a broker, at a consumer with
// Identity, is the same operation and runs once. The end of the sender's connection does not
// end the context of handle.
//
// Wrong options are errors of kind stet.KindInvalid.
func Handler(engine *stet.Engine, o Options, handle func(ctx context.Context, ev Event) error) (http.Handler, error) {
	if handle == nil {
		return nil, misuse.Errorf("cloudevents: Handler needs a function that handles events")
	}
	c, err := stetmsg.New(engine, o.consumer(), func(ctx context.Context, d delivery) ([]byte, error) {
		ev, err := d.event()
		if err != nil {
			return nil, err
		}
		return nil, handle(ctx, ev)
	})
	if err != nil {
		return nil, err
	}
	return newReceiver(engine, c, o)
}

// HandlerTx is Handler for writes to the database of te: the handler's writes and the record
// of the event are one commit. An error rolls back, and the sender must deliver again.
func HandlerTx[Tx any](te *stet.TxEngine[Tx], o Options, handle func(ctx context.Context, tx Tx, ev Event) error) (http.Handler, error) {
	if handle == nil {
		return nil, misuse.Errorf("cloudevents: HandlerTx needs a function that handles events")
	}
	c, err := stetmsg.NewTx(te, o.consumer(), func(ctx context.Context, tx Tx, d delivery) ([]byte, error) {
		ev, err := d.event()
		if err != nil {
			return nil, err
		}
		return nil, handle(ctx, tx, ev)
	})
	if err != nil {
		return nil, err
	}
	return newReceiver(te.Engine(), c, o)
}

// consumer has the options of the consumer.
func (o Options) consumer() stetmsg.Options[delivery] {
	return stetmsg.Options[delivery]{
		Operation: operation, MaxAttempts: o.MaxAttempts, Backoff: o.Backoff, Observe: o.Observe, ErrorLog: o.ErrorLog,
	}
}

func operation(d delivery) (stet.Op, error) {
	op, err := Identity(d.scope)(d.envelope)
	op.Class = d.class
	return op, err
}

func (d delivery) event() (Event, error) {
	ev, ok, err := Read(d.envelope)
	if err == nil && !ok {
		err = errNone
	}
	return ev, err
}

var errNone = errors.New("cloudevents: the request is no event: it has neither ce-id in its header, nor the content type " + MediaType)

// receiver is the handler.
type receiver struct {
	engine   *stet.Engine
	consumer *stetmsg.Consumer[delivery]
	o        Options
}

func newReceiver(engine *stet.Engine, c *stetmsg.Consumer[delivery], o Options) (http.Handler, error) {
	switch {
	case o.Scope == nil:
		return nil, misuse.Errorf("cloudevents: Options.Scope is required: it returns the authenticated sender")
	case o.MaxBody < 0:
		return nil, misuse.Errorf("cloudevents: Options.MaxBody is negative: %d", o.MaxBody)
	}
	o.MaxBody = cmp.Or(o.MaxBody, DefaultMaxBody)
	return &receiver{engine, c, o}, nil
}

// ServeHTTP implements http.Handler.
func (h *receiver) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	switch {
	case r.Method == http.MethodOptions && len(h.o.Origins) > 0:
		h.preflight(w, r)
		return
	case r.Method != http.MethodPost:
		w.Header().Set("Allow", http.MethodPost)
		http.Error(w, "deliver events by POST", http.StatusMethodNotAllowed)
		return
	}
	scope, err := h.o.Scope(r)
	switch {
	case err != nil:
		h.log().ErrorContext(r.Context(), "cloudevents: Options.Scope failed", slog.Any("error", err))
		http.Error(w, "the scope of this event could not be determined; it was not handled", http.StatusInternalServerError)
		return
	case scope == "" || len(scope) > store.MaxScope:
		http.Error(w, "the scope of this event is unknown", http.StatusForbidden)
		return
	}
	d, status, err := h.read(w, r)
	if err != nil {
		http.Error(w, err.Error(), status)
		return
	}
	d.scope = scope
	events, err := parts(d)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if err := h.classify(events); err != nil {
		h.log().ErrorContext(r.Context(), "cloudevents: nothing was handled", slog.Any("error", err))
		http.Error(w, "the class of this event could not be determined; it was not handled", http.StatusInternalServerError)
		return
	}
	answer(w, h.decide(r.Context(), events))
}

var split = Split(func(d delivery) stetmsg.Envelope { return d.envelope }, delivery.part)

// parts returns the events of a request. If one is none, nothing is handled.
func parts(d delivery) ([]delivery, error) {
	events, err := split(d)
	for i, ev := range events {
		if _, err := ev.event(); err != nil && len(events) > 1 {
			return nil, fmt.Errorf("event %d of %d: %w", i+1, len(events), err)
		} else if err != nil {
			return nil, err
		}
	}
	return events, err
}

// classify sets the classes of events. After an error the sender must keep all of them.
func (h *receiver) classify(events []delivery) (err error) {
	if h.o.Class == nil {
		return nil
	}
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("Options.Class panicked: %v", v)
		}
	}()
	for i, d := range events {
		ev, err := d.event()
		if err != nil {
			return err
		}
		class := h.o.Class(ev)
		if _, ok := h.engine.Policy(class); !ok {
			return fmt.Errorf("Options.Class returned %q, which is not among stet.Options.Classes", class)
		}
		events[i].class = class
	}
	return nil
}

// weight orders decisions from the best to the worst.
func weight(d stetmsg.Decision) int {
	switch {
	case d.Action == stetmsg.Ack:
		return 1
	case d.Action == stetmsg.Retry:
		return 5
	case d.Reason == stetmsg.Unknown:
		return 4
	case d.Reason == stetmsg.Failed, d.Reason == stetmsg.Exhausted:
		return 3
	}
	return 2 // the event is invalid
}

// decide handles events, and returns the worst decision, which is the response for all of
// them.
func (h *receiver) decide(ctx context.Context, events []delivery) (worst stetmsg.Decision) {
	heaviest := 0
	for _, ev := range events {
		within, cancel := context.WithTimeout(ctx, patience) // a run that has begun continues
		d := h.consumer.Decide(within, ev, 0)
		cancel()
		after := max(worst.After, d.After)
		if weight(d) > heaviest {
			worst, heaviest = d, weight(d)
		}
		if worst.After = after; d.Reason == stetmsg.Stopped { // the sender has left, or the store cannot be used
			break
		}
	}
	return worst
}

func (h *receiver) log() *slog.Logger { return cmp.Or(h.o.ErrorLog, slog.Default()) }

// read reads a request; the status is that of an error.
func (h *receiver) read(w http.ResponseWriter, r *http.Request) (d delivery, status int, err error) {
	contentType := r.Header.Get("Content-Type")
	for name, vs := range r.Header {
		if (name == "Content-Type" || strings.HasPrefix(name, "Ce-")) && len(vs) > 1 {
			return d, http.StatusBadRequest, fmt.Errorf("the header field %s is there twice", name)
		}
	}
	if t := mediaType(contentType); strings.HasPrefix(t, "application/cloudevents") && t != MediaType && t != BatchMediaType {
		return d, http.StatusUnsupportedMediaType, fmt.Errorf("the format %.60q is not supported; send %s or %s", t, MediaType, BatchMediaType)
	}
	if coding := r.Header.Get("Content-Encoding"); coding != "" {
		w.Header().Set("Accept-Encoding", "identity")
		return d, http.StatusUnsupportedMediaType, errors.New("send the content without a Content-Encoding")
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, h.o.MaxBody))
	if err != nil {
		status = http.StatusBadRequest
		if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
			status = http.StatusRequestEntityTooLarge
		}
		return d, status, errors.New("the content could not be read, or is too large")
	}
	d.envelope = stetmsg.Envelope{
		Header: func(name string) (string, bool) {
			if !strings.HasPrefix(name, ofHTTP) { // the prefixes of other bindings mean nothing here
				return "", false
			}
			return r.Header.Get(name), len(r.Header.Values(name)) > 0
		},
		Names: func() (names []string) {
			for name := range maps.Keys(r.Header) {
				names = append(names, strings.ToLower(name))
			}
			return names
		},
		ContentType: contentType, Body: body,
	}
	return d, 0, nil
}

// answer sends the response for a decision.
func answer(w http.ResponseWriter, d stetmsg.Decision) {
	status, text := http.StatusGatewayTimeout, "it is being handled, or its outcome is not known; deliver it again later"
	switch {
	case d.Action == stetmsg.Ack:
		w.WriteHeader(http.StatusNoContent)
		return
	case d.Reason == stetmsg.Mismatch:
		status, text = http.StatusUnprocessableEntity, "another event has had this source and id"
	case d.Reason == stetmsg.Invalid:
		status, text = http.StatusBadRequest, d.Text()
	case d.Reason == stetmsg.Failed, d.Reason == stetmsg.Exhausted:
		status, text = http.StatusInternalServerError, "the event could not be handled"
	case d.Reason == stetmsg.NoEffect && harmless(d.Err), d.Reason == stetmsg.NotReady, d.Reason == stetmsg.Stopped:
		status, text = http.StatusServiceUnavailable, "it was not handled; deliver it again later"
	}
	if d.Action == stetmsg.Retry || status == http.StatusGatewayTimeout {
		after := max(d.After, retryLater)
		w.Header().Set("Retry-After", strconv.FormatInt(int64((after+time.Second-1)/time.Second), 10))
	}
	http.Error(w, text, status)
}

// harmless reports whether a run without a stored outcome had no effect. An error that is not
// the engine's comes from a handler that was rolled back.
func harmless(err error) bool {
	e, ok := errors.AsType[*stet.Error](err)
	return !ok || e.Execution == stet.NotExecuted
}

// preflight responds to a sender that asks whether it may deliver (CloudEvents HTTP 1.1 Web
// Hooks for Event Delivery 1.0.2, section 4).
func (h *receiver) preflight(w http.ResponseWriter, r *http.Request) {
	origin := r.Header.Get("WebHook-Request-Origin")
	w.Header().Set("Allow", "POST, OPTIONS")
	if origin == "" || !slices.Contains(h.o.Origins, anyOrigin) && !slices.ContainsFunc(h.o.Origins, func(o string) bool { return strings.EqualFold(o, origin) }) {
		w.WriteHeader(http.StatusNoContent) // not allowed
		return
	}
	w.Header().Set("WebHook-Allowed-Origin", origin)
	if r.Header.Get("WebHook-Request-Rate") != "" {
		w.Header().Set("WebHook-Allowed-Rate", anyOrigin)
	}
	w.WriteHeader(http.StatusOK)
}
