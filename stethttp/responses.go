package stethttp

import (
	"context"
	"net/http"
	"slices"
	"sync/atomic"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/misuse"
)

// Responses says which responses of a handler are stored, to be replayed, and what
// becomes of a key whose response is not. docs/responses.md compares them. A handler that
// panics, that answers nothing, or that declares what it has done (stet.Run.Declare) is
// not judged by its response, and under stet.Policy.Outside the service alone decides.
type Responses string

const (
	// StoreOutcomes is the default. Stored is what may come after an effect, whatever it
	// says: a 2xx, but also a 400, a 422 or a 500. Not stored is what comes before one:
	// the responses for which Options.NotExecuted is true, by default 401, 403, 407, 425,
	// 429, and 503 with Retry-After; the key stays bound to its request, which runs again.
	// In a transaction, responses for which Options.Failed is true are not stored either, as
	// they have rolled it back.
	StoreOutcomes Responses = ""
	// StoreAll stores every response of a handler. In a transaction a response for which
	// Options.Failed is true rolls back, and is then stored in a transaction of its own.
	// What must not stay so for as long as results are kept, as 429 or 503, belongs in
	// middleware around this one. Options.NotExecuted must be nil.
	StoreAll Responses = "store-all"
	// StoreExecuted is what Stripe documents: a response is stored if the endpoint has
	// begun to execute, a 500 too, and not if the request was refused before. Refused are
	// the responses for which Options.NotExecuted is true, by default those of
	// StoreExecuted.NotExecuted, which has 400 and 422 for requests that are not valid. The
	// key is then free: a corrected request may use it.
	//
	// A handler that answers so after an effect must say so with Executing, before the
	// effect: otherwise a corrected request is executed as well.
	StoreExecuted Responses = "store-executed"
)

// refusals are the statuses by which a service says that a request is not acceptable unchanged.
var refusals = []int{
	http.StatusBadRequest, http.StatusMethodNotAllowed, http.StatusLengthRequired, http.StatusRequestEntityTooLarge,
	http.StatusRequestURITooLong, http.StatusUnsupportedMediaType, http.StatusUnprocessableEntity, http.StatusRequestHeaderFieldsTooLarge,
}

// NotExecuted is the default of Options.NotExecuted: never true of StoreAll; the function
// NotExecuted of StoreOutcomes; and of StoreExecuted also true for 400, 405, 411, 413, 414,
// 415, 422 and 431, and the gRPC status invalid argument. It is false for 402, 404, 409 and
// 412: they tell what the service found when it looked, which is an outcome.
func (p Responses) NotExecuted(status int, header http.Header) bool {
	switch p {
	case StoreAll:
		return false
	case StoreExecuted:
		if slices.Contains(refusals, status) || header.Get("Grpc-Status") == "3" {
			return true
		}
	}
	return NotExecuted(status, header)
}

// responses checks Options.Responses, and fills in what follows from it.
func (o *Options) responses() error {
	switch o.Responses {
	case StoreOutcomes, StoreExecuted:
	case StoreAll:
		if o.NotExecuted != nil {
			return misuse.Errorf("stethttp: Options.NotExecuted says that some responses are not stored, and Responses is StoreAll; leave out one of them")
		}
	default:
		return misuse.Errorf("stethttp: Options.Responses is %q; it is StoreOutcomes (%q), StoreAll (%q) or StoreExecuted (%q)",
			o.Responses, StoreOutcomes, StoreAll, StoreExecuted)
	}
	if o.NotExecuted == nil {
		o.NotExecuted = o.Responses.NotExecuted
	}
	return nil
}

// again says what becomes of a key whose run is released.
func (c *call) again(error) stet.Again {
	return stet.Again{Forget: c.m.o.Responses == StoreExecuted || c.ctx != nil && c.ctx.unrouted.Load()}
}

// callContext is the context of one call of a handler.
type callContext struct {
	context.Context
	executing atomic.Bool
	unrouted  atomic.Bool           // see NoRoute
	returned  atomic.Pointer[error] // see Returned
}

type callKey struct{}

// Value implements context.Context.
func (c *callContext) Value(key any) any {
	if _, ok := key.(callKey); ok {
		return c
	}
	return c.Context.Value(key)
}

// Executing says that the handler, whose context is ctx, begins to execute: whatever it
// answers from now on is an outcome, and Options.NotExecuted is not asked. Call it when the
// request is valid, before the first effect. It prevents that a 422 which comes after an
// effect frees the key, under StoreExecuted. Outside of a protected handler it does nothing.
func Executing(ctx context.Context) {
	if c, ok := ctx.Value(callKey{}).(*callContext); ok {
		c.executing.Store(true)
	}
}
