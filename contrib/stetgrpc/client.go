package stetgrpc

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/misuse"
	"github.com/stet-go/stet/internal/rpc"
	"github.com/stet-go/stet/stetclient"
)

// ClientOptions configure ClientInterceptor. The zero value is usable.
type ClientOptions struct {
	// Policy says how often and how fast attempts are made. Its waits come on top of
	// what the server asks for by RetryInfo.
	Policy stetclient.Policy
	// Methods are the unary methods whose calls get a key, and are retried: full methods
	// ("/shop.v1.Payments/Charge") or services ("shop.v1.Payments"). Default: all, apart
	// from those of gRPC's own services: health, reflection and channelz.
	Methods []string
}

// ClientInterceptor returns an interceptor that gives each call a key, the same for all of its
// attempts. It retries if no server was reached or the server broke off (UNAVAILABLE), if an
// attempt took longer than Policy.AttemptTimeout, if the first call is in flight, if nothing
// was executed, and if the outcome is unknown and the server says when to retry. A stored
// outcome is not requested again. The server must honour keys: by this package's Interceptor,
// by stetconnect, or as it documents.
//
// The key is that of WithKey, or of the outgoing metadata idempotency-key, or a new one. The
// error has the status of the last attempt, and ExecutionOf describes all of them. stet.KindOf
// distinguishes refusals, and is stet.KindFailed for an outcome. Streaming calls pass
// unchanged. Wrong options are errors of kind stet.KindInvalid.
func ClientInterceptor(o ClientOptions) (grpc.UnaryClientInterceptor, error) {
	for _, name := range o.Methods {
		if !rpc.IsMethod(name) && !rpc.IsService(name) {
			return nil, misuse.Errorf("stetgrpc: ClientOptions.Methods: %q is neither a full method, such as %q, nor a service", name, "/shop.v1.Payments/Charge")
		}
	}
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := stetclient.Retry(ended, o.Policy, func(context.Context) (struct{}, error) { return struct{}{}, nil }); stet.KindOf(err) == stet.KindInvalid {
		return nil, err
	}
	return func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		if len(o.Methods) > 0 && !rpc.Names(o.Methods, method) || len(o.Methods) == 0 && rpc.Builtin(rpc.ServiceOf(method)) {
			return invoker(ctx, method, req, reply, cc, opts...)
		}
		ctx, err := keyed(ctx)
		if err != nil {
			return err
		}
		_, err = stetclient.Retry(ctx, o.Policy, func(attempt context.Context) (struct{}, error) {
			var trailer metadata.MD
			all := slices.Concat(opts, []grpc.CallOption{grpc.Trailer(&trailer)})
			err := invoker(attempt, method, req, reply, cc, all...)
			late := attempt.Err() != nil || rpc.TimedOut(ctx, attempt, code.Code(status.Code(err)))
			return struct{}{}, judge(late, err, trailer)
		})
		return callErrorOf(ctx, err)
	}, nil
}

type keyKey struct{}

// WithKey returns a context whose calls have this key. Make it once for an intended
// operation, and use it for nothing else: a key has one request.
func WithKey(ctx context.Context, key string) context.Context {
	return context.WithValue(ctx, keyKey{}, key)
}

// keyed returns the context of a call that has a key.
func keyed(ctx context.Context) (context.Context, error) {
	md, _ := metadata.FromOutgoingContext(ctx)
	md = md.Copy()
	if key, ok := ctx.Value(keyKey{}).(string); ok {
		if given := md.Get(KeyMetadata); len(given) != 1 || given[0] != key && given[0] != rpc.Spelled(key) {
			md.Append(KeyMetadata, rpc.Spelled(key)) // another one is refused below
		}
	}
	key, c, detail := rpc.Key(md.Get)
	switch {
	case c != nil:
		return nil, &callError{status.FromProto(c.End(detail, 0).Status), stet.Error{Kind: stet.KindInvalid, Execution: stet.NotExecuted}}
	case key == "":
		md.Set(KeyMetadata, stet.NewKey())
	}
	return metadata.NewOutgoingContext(ctx, md), nil
}

// judge returns, for stetclient.Retry, the execution of a failed attempt, and whether to try
// again. late says that the attempt's context ended, or its deadline passed.
func judge(late bool, err error, trailer metadata.MD) error {
	if err == nil {
		return nil
	}
	st := status.Convert(err)
	said, ok := rpc.ReadStatus(st.Proto())
	retry := said.Retryable
	if own := trailer.Get(ExecutionMetadata); len(own) == 1 || !ok { // else it describes the call
		said.Execution = rpc.ParseExecution(strings.Join(own, ","))
		switch st.Code() {
		case codes.Unavailable:
			retry = true
		case codes.Canceled, codes.DeadlineExceeded:
			retry = late // Retry reads the caller's own context
		default:
			retry = said.After > 0
		}
		retry = retry && said.Execution != stet.Executed
	}
	if pushback := trailer.Get(rpc.PushbackName); len(pushback) == 1 {
		ms, err := strconv.Atoi(pushback[0])
		retry = retry && err == nil && ms >= 0
		said.After = max(said.After, time.Duration(ms)*time.Millisecond)
	}
	if !retry {
		if stands(trailer) {
			err = &stet.Error{Kind: stet.KindFailed, Execution: said.Execution, Cause: err}
		}
		return stetclient.Final(err, said.Execution)
	}
	return &stet.Error{Kind: stet.KindRetryable, Execution: said.Execution, RetryAfter: said.After, Cause: err}
}

// stands reports whether the trailer of a failure says that the failure is stored. A retry
// receives it again.
func stands(trailer metadata.MD) bool {
	return len(trailer.Get(ReplayedMetadata)) > 0 || len(trailer.Get(ExecutionMetadata)) > 0 && slices.Contains(trailer.Get(rpc.PushbackName), "-1")
}

// callError is the error of a call of the client interceptor.
type callError struct {
	st  *status.Status
	own stet.Error
}

// Error implements error.
func (e *callError) Error() string { return e.st.Err().Error() }

// GRPCStatus returns the status of the last attempt, for package status.
func (e *callError) GRPCStatus() *status.Status { return e.st }

// Unwrap returns the error for stet.KindOf, and what stetclient.Retry has returned.
func (e *callError) Unwrap() error { return &e.own }

// kinds are those of what servers refuse.
var kinds = map[string]stet.Kind{
	rpc.Mismatch.Reason: stet.KindMismatch, rpc.InFlight.Reason: stet.KindInFlight, rpc.OutcomeUnknown.Reason: stet.KindUnknown,
	rpc.ResultExpired.Reason: stet.KindExpired, rpc.ResultUnreadable.Reason: stet.KindDamaged, rpc.ResultForeign.Reason: stet.KindForeign,
	rpc.StoreUnavailable.Reason: stet.KindStore, rpc.KeyMissing.Reason: stet.KindInvalid, rpc.KeyInvalid.Reason: stet.KindInvalid,
	rpc.KeyRepeated.Reason: stet.KindInvalid, rpc.KeyMisplaced.Reason: stet.KindInvalid,
}

// callErrorOf is the caller's error for that of stetclient.Retry, which may be nil.
func callErrorOf(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	e := &callError{own: stet.Error{Execution: stet.ExecutionOf(err), Cause: err}}
	own, ok := errors.AsType[*stetclient.Error](err)
	var last interface{ GRPCStatus() *status.Status }
	switch {
	case ok && errors.As(own.Cause, &last):
		e.st, e.own.RetryAfter = last.GRPCStatus(), own.RetryAfter
	case ok && own.Reason == stetclient.ReasonContext:
		e.st = status.FromContextError(ctx.Err())
	default:
		e.st = status.New(codes.Internal, err.Error())
	}
	said, _ := rpc.ReadStatus(e.st.Proto())
	e.own.Kind = kinds[said.Reason]
	switch {
	case e.own.Kind != 0:
	case ok && stet.KindOf(own.Cause) == stet.KindFailed:
		e.own.Kind = stet.KindFailed
	case e.own.Execution == stet.NotExecuted:
		e.own.Kind = stet.KindRetryable
	case e.own.Execution == stet.Executed, said.Reason != "" && !said.Retryable:
		e.own.Kind = stet.KindFailed
	default:
		e.own.Kind = stet.KindUnknown
	}
	return e
}

// ExecutionOf answers "did it execute?" for the error of a call: of one through
// ClientInterceptor for all of its attempts, of any other by what the server said. It
// is stet.Executed for nil, and stet.MayHaveExecuted where nothing is known. Of an error
// of stet.Do it says what stet.ExecutionOf does.
func ExecutionOf(err error) stet.Execution {
	if err == nil {
		return stet.Executed
	}
	if own, ok := errors.AsType[*stet.Error](err); ok { // the outermost: below may be those of other operations
		return own.Execution
	}
	if st, ok := status.FromError(err); ok {
		if said, ok := rpc.ReadStatus(st.Proto()); ok {
			return said.Execution
		}
	}
	return stet.MayHaveExecuted
}
