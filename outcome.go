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

// Outcome is the result of an operation. Any adapter can read it, not only the adapter that
// stored it. The zero Outcome is a success without a result. Do and workers store a value as
// JSON in Body, and a failure as its text.
type Outcome struct {
	// Failed says that the operation failed. Every retry gets the same failure.
	Failed bool
	// Gone says that the result was discarded, because it was too large or has expired. The
	// operation does not run again.
	Gone bool
	// Reason is the cause of a failure.
	Reason store.Reason
	// Adapter is the adapter that stored the outcome, and that can replay it exactly.
	Adapter store.Adapter
	// Status is an HTTP status, or 0 if there is none.
	Status int
	// Type is the media type of Body, or "" if it is unknown.
	Type string
	// Header and Trailer are the fields of a response. They are stored sorted by name, and each
	// name once, with all its values. Together they have at most MaxFields fields and values
	// (4096).
	Header, Trailer []store.Field
	// Body is returned to retries byte for byte.
	Body []byte
	// Trace is the W3C traceparent of the run, or "" for none. It is dropped if the outcome
	// would be larger than Policy.MaxResult with it.
	Trace string

	policy *Policy // for Decode, if it has codecs
}

const textType = "text/plain; charset=utf-8"

// outcomeOf returns the outcome that Do stores for its function's value. The error is for the
// caller of Do, if the value cannot be encoded.
func (p *Policy) outcomeOf(v any) (Outcome, error) {
	mediaType, b, err := coding.Encode(p.Values, v)
	if err != nil {
		// The effect has happened, so only the result is discarded.
		return Outcome{Gone: true}, &Error{Kind: KindExpired, Execution: Executed, Cause: err}
	}
	return Outcome{Adapter: store.AdapterGo, Status: 200, Type: mediaType, Body: b}, nil
}

// failure returns the outcome of an operation that failed with err.
func (p *Policy) failure(err error) Outcome {
	if err == ErrCancelled { //nolint:errorlint // what wraps it has words of its own
		return Outcome{Failed: true, Reason: store.ReasonCancelled}
	}
	out := Outcome{Failed: true, Adapter: store.AdapterGo, Status: 500, Type: textType, Body: []byte(err.Error()), Trailer: coding.ErrorField(p.Errors, err)}
	if out.size() > p.MaxResult { // as in fit, so that the first caller gets the stored error
		out.Trailer = nil
	}
	return out
}

// readBy returns the outcome with the policy whose codecs Decode must use.
func (o Outcome) readBy(p *Policy) Outcome {
	if o.policy = nil; p.Values != codec.JSON() || p.Errors != nil {
		o.policy = p
	}
	return o
}

// reasons are the errors of failures that no handler returned.
var reasons = map[store.Reason]error{
	store.ReasonPanicked:  errors.New("the handler panicked"),
	store.ReasonTimedOut:  ErrRunTimeout,
	store.ReasonCancelled: ErrCancelled,
	store.ReasonExhausted: errors.New("it was tried as often as is allowed, and no run came to an end"),
	store.ReasonResolved:  errors.New("it was resolved as failed"),
}

// Decode stores the value of a completed outcome in the variable that v points to. It decodes a
// JSON body. For an outcome that an engine returned, it decodes with Policy.Values. If the
// outcome has no value, it leaves v unchanged.
//
// If the operation failed, the error is of KindFailed, with the stored text or the text of its
// Reason. Other errors are of KindExpired, or of KindForeign if the outcome was stored by
// another adapter and cannot be converted to this type.
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
		return &Error{Kind: KindForeign, Execution: Executed, Cause: fmt.Errorf("the result is %s of the adapter %s", o.Type, o.Adapter)}
	default:
		return &Error{Kind: KindForeign, Execution: Executed, Cause: err}
	}
}

// cause returns the stored error of a failed outcome.
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

// execution answers "did it execute?" for an outcome of an operation that has run. A failed run
// may have had its effect before it failed.
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
