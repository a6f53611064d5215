package stet

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"github.com/stet-go/stet/codec"
	"github.com/stet-go/stet/internal/coding"
	"github.com/stet-go/stet/store"
)

// Outcome is how an operation ended. It explains itself: what has stored it need
// not be what reads it. The zero Outcome is a success without a result. Do and workers
// store a value as its JSON in Body, and a failure as its text.
type Outcome struct {
	// Failed says that the operation failed; every retry gets the same failure.
	Failed bool
	// Gone marks an outcome without its result: it was too large to be kept, or it
	// has expired. The operation still never runs again.
	Gone bool
	// Reason says why it failed.
	Reason store.Reason
	// Adapter is what can replay it exactly.
	Adapter store.Adapter
	// Status is as in HTTP, 0 where there is none.
	Status int
	// Type is the media type of Body, "" where it is not known.
	Type string
	// Header and Trailer are those of a response. They are stored in the order of their
	// names, and the values of a name that is there twice under one. There are at most
	// MaxFields fields and values.
	Header, Trailer []store.Field
	// Body is what retries get, byte for byte.
	Body []byte
	// Trace is the W3C traceparent of the run, "" for none. It is left out where the
	// outcome would be larger than Policy.MaxResult with it.
	Trace string

	policy *Policy // that reads it, if it has codecs of its own
}

const textType = "text/plain; charset=utf-8"

// outcomeOf returns the outcome that Do stores for what its function returned, and the
// error that its caller gets then, if any.
func (p *Policy) outcomeOf(v any) (Outcome, error) {
	mediaType, b, err := coding.Encode(p.Values, v)
	if err != nil {
		// The effect has happened; only its result cannot be kept.
		return Outcome{Gone: true}, &Error{Kind: KindExpired, Execution: Executed, Cause: err}
	}
	return Outcome{Adapter: store.AdapterGo, Status: 200, Type: mediaType, Body: b}, nil
}

// failure is the outcome of an operation that failed with err.
func (p *Policy) failure(err error) Outcome {
	if err == ErrCancelled { //nolint:errorlint // what wraps it has words of its own
		return Outcome{Failed: true, Reason: store.ReasonCancelled}
	}
	out := Outcome{Failed: true, Adapter: store.AdapterGo, Status: 500, Type: textType, Body: []byte(err.Error()), Trailer: coding.ErrorField(p.Errors, err)}
	if out.size() > p.MaxResult { // as in fit: the first caller gets what is stored
		out.Trailer = nil
	}
	return out
}

// readBy returns the outcome, which Decode then reads with the policy's codecs.
func (o Outcome) readBy(p *Policy) Outcome {
	if o.policy = nil; p.Values != codec.JSON() || p.Errors != nil {
		o.policy = p
	}
	return o
}

// reasons are the causes of failures that no handler has worded.
var reasons = map[store.Reason]error{
	store.ReasonPanicked:  errors.New("the handler panicked"),
	store.ReasonTimedOut:  ErrRunTimeout,
	store.ReasonCancelled: ErrCancelled,
	store.ReasonExhausted: errors.New("it was tried as often as is allowed, and no run came to an end"),
	store.ReasonResolved:  errors.New("it was resolved as failed"),
}

// Decode stores the value of a completed outcome in what v points to, or nothing where
// there is none: a body that is JSON, or, of an outcome that an engine has returned, what
// Policy.Values reads. The error of a failed one is of kind
// KindFailed: with its text, or by its reason. Other errors are of kind KindExpired, or
// KindForeign, where the outcome is another adapter's and cannot be told as a value.
func (o Outcome) Decode(v any) error {
	p := cmp.Or(o.policy, &defaultPolicy)
	switch {
	case o.Gone:
		return &Error{Kind: KindExpired, Execution: o.execution()}
	case o.Failed:
		return &Error{Kind: KindFailed, Execution: o.execution(), Cause: o.cause(p)}
	case o.Status >= 400:
		return &Error{Kind: KindFailed, Execution: Executed, Cause: fmt.Errorf("the outcome has the status %d", o.Status)}
	case len(o.Body) == 0 && (o.Type == "" || o.policy == nil):
		return nil
	}
	switch err := coding.Decode(p.Values, o.Type, o.Body, v); {
	case err == nil, len(o.Body) == 0 && errors.Is(err, codec.ErrUnsupported):
		return nil
	case errors.Is(err, codec.ErrUnsupported):
		return &Error{Kind: KindForeign, Execution: Executed, Cause: fmt.Errorf("the result is %s of the face %s", o.Type, o.Adapter)}
	default:
		return &Error{Kind: KindForeign, Execution: Executed, Cause: err}
	}
}

// cause is the error that a failed outcome tells of.
func (o Outcome) cause(p *Policy) error {
	switch {
	case !o.Reason.Returned():
		return reasons[o.Reason]
	case o.Adapter == store.AdapterGRPC:
		return coding.StatusOf(o.Trailer).Error(p.Errors)
	case o.Status == 0 && o.Type == "" && len(o.Body) == 0:
		return errors.New("nothing was said of how")
	case o.Adapter != store.AdapterHTTP && (o.Type == "" || strings.HasPrefix(o.Type, "text/")):
		return coding.Error(p.Errors, string(o.Body), o.Trailer)
	}
	return fmt.Errorf("the outcome has the status %d", o.Status)
}

// execution answers "did it execute?" for an outcome of an operation that was begun. A
// failed run may have had its effect before it failed.
func (o Outcome) execution() Execution {
	switch {
	case o.Reason == store.ReasonNoEffect:
		return NotExecuted
	case o.Failed:
		return MayHaveExecuted
	}
	return Executed
}

func (o Outcome) state() store.State {
	if o.Failed {
		return store.Failed
	}
	return store.Completed
}
