package stethttp

import (
	"context"
	"net/http"
	"slices"
	"sync/atomic"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/misuse"
)

// Responses selects the responses of a handler that are stored, and the fate of the key for
// the others. docs/responses.md compares the values. It does not apply to a handler that
// panics, returns no response, or declares its effect (stet.Run.Declare), and under
// stet.Policy.Outside.
type Responses string

const (
	// StoreOutcomes is the default. It stores every response that may follow an effect: a 2xx,
	// but also a 400, a 422 or a 500. It does not store the responses of Options.NotExecuted,
	// by default 401, 403, 407, 425, 429, and 503 with Retry-After; the key stays bound to its
	// request, which runs again. In a transaction, the responses of Options.Failed are not
	// stored either, because they roll it back.
	StoreOutcomes Responses = ""
	// StoreAll stores every response of a handler. In a transaction a response for which
	// Options.Failed is true rolls back, and is then stored in a transaction of its own.
	// Return responses that must not be stored, such as 429 or 503, in middleware around this
	// one. Options.NotExecuted must be nil.
	StoreAll Responses = "store-all"
	// StoreExecuted is what Stripe documents: a response is stored if the endpoint has
	// begun to execute, a 500 too, and not if the request was refused before. Refused are
	// the responses for which Options.NotExecuted is true, by default those of
	// StoreExecuted.NotExecuted, which has 400 and 422 for requests that are not valid. The
	// key is then free: a corrected request may use it.
	//
	// A handler that can respond so after an effect must call Executing before the effect:
	// otherwise a corrected request is executed as well.
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
// 412, which are outcomes.
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

// responses checks Options.Responses, and sets NotExecuted.
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

// again returns whether a released key is free for another request.
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

// Executing states that the handler with the context ctx begins to execute. From now on every
// response is an outcome, and Options.NotExecuted is not called. Call it after validation,
// before the first effect. Under StoreExecuted it keeps a 422 after an effect from freeing the
// key. Outside a protected handler it does nothing.
func Executing(ctx context.Context) {
	if c, ok := ctx.Value(callKey{}).(*callContext); ok {
		c.executing.Store(true)
	}
}
