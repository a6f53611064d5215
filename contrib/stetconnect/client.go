package stetconnect

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"net"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/code"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/rpc"
	"github.com/stet-go/stet/stetclient"
)

// ClientOptions configure the interceptor of NewClient. The zero value is usable.
type ClientOptions struct {
	// Policy says how often and how fast attempts are made.
	Policy stetclient.Policy
	// Skip passes a call unchanged, with one attempt, if it returns true. Calls of procedures
	// that the service does not protect must not have a key.
	Skip func(context.Context, connect.AnyRequest) bool
}

// NewClient returns an interceptor for clients of services that honour keys: with package
// stetconnect or stetgrpc, or another implementation of the header Idempotency-Key. Each unary
// call is one operation: it gets a random key, or that of WithKey or of the request's header,
// and all its attempts have it. An attempt is repeated if it got no response, or a response that may
// change: in flight, outcome unknown, store unavailable, or the code unavailable; also if it
// took longer than Policy.AttemptTimeout. The waits have full jitter, on top of RetryInfo and
// Retry-After.
//
// An error that is the operation's outcome, or says itself whether it was executed, is
// returned unchanged. Any other is an *stetclient.Error, which has the key for a later retry,
// and in which connect.CodeOf and errors.As find the last attempt's error. ExecutionOf works
// for both.
//
// Streams, and procedures that their schema declares free of side effects, pass with one
// attempt and without a key. The interceptor should be the innermost of all that change the
// request: interceptors behind it see each attempt. Wrong options are errors of kind
// stet.KindInvalid.
func NewClient(o ClientOptions) (connect.Interceptor, error) {
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := stetclient.Retry(ended, o.Policy, func(context.Context) (struct{}, error) { return struct{}{}, nil })
	if stet.KindOf(err) == stet.KindInvalid {
		return nil, err
	}
	return &client{o}, nil
}

type client struct{ o ClientOptions }

type keyOf struct{}

// WithKey returns a context whose calls use key, 1 to 255 bytes of visible ASCII, instead of a
// random one. It is for callers that store their keys, or derive them with stet.DeriveKey. Use
// one context for one operation.
func WithKey(ctx context.Context, key string) context.Context {
	return context.WithValue(ctx, keyOf{}, key)
}

// WrapUnary implements connect.Interceptor.
func (k *client) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		spec := req.Spec()
		chosen, has := ctx.Value(keyOf{}).(string)
		keyed := has || len(req.Header()[KeyHeader]) > 0
		switch {
		case !spec.IsClient:
			return nil, errorOf(req.Peer(), rpc.Misconfigured.End(errOnHandler, 0), nil)
		case k.o.Skip != nil && k.o.Skip(ctx, req), spec.IdempotencyLevel == connect.IdempotencyNoSideEffects && !keyed:
			return next(ctx, req)
		}
		before := req.Header().Clone()
		defer restore(req.Header(), before) // the request may be used for another call
		if has {
			req.Header()[KeyHeader] = append(req.Header()[KeyHeader], rpc.Spelled(chosen))
		} else if !keyed {
			req.Header().Set(KeyHeader, stet.NewKey())
		}
		key, wrong, detail := rpc.Key(req.Header().Values)
		if wrong != nil {
			return nil, errorOf(req.Peer(), wrong.End(cmp.Or(detail, wrong.Text)+"; nothing was sent", 0), nil)
		}
		return k.series(ctx, req, next, key)
	}
}

// series makes the attempts of one operation.
func (k *client) series(ctx context.Context, req connect.AnyRequest, next connect.UnaryFunc, key string) (connect.AnyResponse, error) {
	header := req.Header().Clone()
	var last error
	res, err := stetclient.Retry(ctx, k.o.Policy, func(attempt context.Context) (connect.AnyResponse, error) {
		restore(req.Header(), maps.Clone(header)) // each attempt adds to it
		var connected atomic.Bool
		traced := httptrace.WithClientTrace(attempt, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { connected.Store(true) }})
		var res connect.AnyResponse
		if res, last = next(traced, req); last != nil {
			late := rpc.TimedOut(ctx, attempt, code.Code(connect.CodeOf(last)))
			return nil, judge(last, !connected.Load(), late)
		}
		return res, nil
	})
	if err == nil {
		return res, nil
	}
	ended, ok := errors.AsType[*stetclient.Error](err)
	if !ok {
		return nil, err
	}
	if ended.Reason == stetclient.ReasonFinal && last != nil && ended.Execution == ExecutionOf(last) {
		return nil, last
	}
	ended.Key = key
	return nil, ended
}

const errOnHandler = "stetconnect.NewClient makes interceptors for clients, and this one was given to a handler; stetconnect.New makes those for handlers"

// WrapStreamingHandler implements connect.Interceptor. It panics: the interceptor is one
// for clients.
func (k *client) WrapStreamingHandler(connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	panic(errOnHandler)
}

// WrapStreamingClient implements connect.Interceptor: streams pass through.
func (k *client) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

// attempted is the error of an attempt that must be repeated.
type attempted struct {
	says *stet.Error
	err  error
}

// Error implements error.
func (a *attempted) Error() string { return a.err.Error() }

// Unwrap returns both.
func (a *attempted) Unwrap() []error { return []error{a.says, a.err} }

// judge is the error of an attempt as stetclient.Retry understands it. unconnected says
// that net/http had no connection; that alone is no proof, as not only net/http may have
// sent it. late says that the attempt's own deadline passed.
func judge(err error, unconnected, late bool) error {
	v := verdictOf(err, late)
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" && unconnected {
		v.Execution = stet.NotExecuted
	}
	if !v.Retry {
		return stetclient.Final(err, v.Execution)
	}
	kind := stet.KindUnknown
	if v.Execution == stet.NotExecuted {
		kind = stet.KindRetryable
	}
	return &attempted{&stet.Error{Kind: kind, Execution: v.Execution, RetryAfter: v.After}, err}
}

// verdictOf says what the error of one attempt means. late says that the attempt's own
// deadline passed.
func verdictOf(err error, late bool) stetclient.Resolution {
	shared, ok := errors.AsType[*connect.Error](err)
	if !ok || shared == nil {
		return stetclient.Resolution{}
	}
	e := new(*shared) // Meta writes to it
	v := stetclient.Resolution{After: retryAfter(e.Meta().Get("Retry-After"))}
	said, refused := rpc.ReadStatus(statusOf(e))
	v.After = max(v.After, said.After)
	executed, has := e.Meta()[http.CanonicalHeaderKey(rpc.ExecutedName)]
	replayed := e.Meta().Get(ReplayedHeader) == "true"
	switch {
	case refused:
		v.Execution, v.Retry = said.Execution, said.Retryable && !replayed
	case has && len(executed) == 1:
		v.Execution = rpc.ParseExecution(executed[0])
		v.Retry = !replayed && v.Execution == stet.NotExecuted && (e.Code() == connect.CodeUnavailable || said.After > 0)
	case replayed:
		v.Execution = stet.Executed
	case !connect.IsWireError(e):
		v.Retry = unanswered(e.Code())
	case e.Code() == connect.CodeUnauthenticated, e.Code() == connect.CodePermissionDenied:
		v.Execution = stet.NotExecuted
	default:
		v.Retry = late || e.Code() == connect.CodeUnavailable
	}
	return v
}

// unanswered reports whether a code that the client has made up stands for an answer that
// did not come, and not for a call that cannot be sent, or an answer that cannot be read.
func unanswered(code connect.Code) bool {
	switch code {
	case connect.CodeUnavailable, connect.CodeUnknown, connect.CodeInternal, connect.CodeDeadlineExceeded, connect.CodeCanceled, connect.CodeAborted:
		return true
	}
	return false
}

const maxSeconds = 1 << 31 // of Retry-After; more are as good as permanently

// retryAfter is the wait that Retry-After asks for in seconds; 0 if it does not.
func retryAfter(value string) time.Duration {
	seconds, err := strconv.ParseUint(strings.TrimSpace(value), 10, 64)
	if err != nil {
		return 0
	}
	return time.Duration(min(seconds, maxSeconds)) * time.Second
}

// ExecutionOf answers "did it execute?" for the error of a call, with or without the
// interceptor of NewClient. It goes by what stet says in the error: without that, the
// operation may have executed, unless the code is unauthenticated or permission_denied. A
// nil error is that of an operation that was executed.
func ExecutionOf(err error) stet.Execution {
	if err == nil {
		return stet.Executed
	}
	if own, ok := errors.AsType[*stet.Error](err); ok { // the outermost: below may be those of other operations
		return own.Execution
	}
	if e, ok := errors.AsType[*connect.Error](err); ok && e != nil {
		return verdictOf(err, false).Execution
	}
	return stet.ExecutionOf(err)
}
