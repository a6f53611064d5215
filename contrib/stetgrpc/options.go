package stetgrpc

import (
	"context"
	"log/slog"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/stet-go/stet/internal/misuse"
	"github.com/stet-go/stet/internal/rpc"
	"github.com/stet-go/stet/store"
)

// KeyMetadata is the name of the request metadata that carries the key. As in HTTP, a key
// has 1 to 255 bytes of visible ASCII, and may be in double quotes (a structured field
// string, RFC 9651), which are not part of it.
const KeyMetadata = rpc.KeyName

// ReplayedMetadata is the name of the metadata that is "true" on replays: of the header
// of a success, of the trailer of a failure.
const ReplayedMetadata = rpc.ReplayedName

// ExecutionMetadata is the trailing metadata of a handler's own failure: whether the operation
// was executed, as the text of a stet.Execution. The interceptor's own errors have it in an
// ErrorInfo.
const ExecutionMetadata = rpc.ExecutedName

// retryAfter is the RetryInfo of refusals that a later call may not get, unless more is known.
const retryAfter = time.Second

// Call is a unary call.
type Call struct {
	Method  string // full: "/shop.v1.Payments/Charge"
	Request any    // as the handler gets it; not to be changed
}

// Options configure an Interceptor. Scope is required; the zero value of every other
// field stands for its default.
type Options struct {
	// Scope returns the owner of the key: a tenant, a principal, an API account, as
	// authentication has established it, for example by an earlier interceptor. 1 to
	// store.MaxScope bytes. If it returns "", the call is refused with PERMISSION_DENIED
	// (SCOPE_MISSING). An error that is a gRPC status is returned unchanged; any other is
	// logged, and the call gets INTERNAL (SCOPE_FAILED). None of it executes anything. Use
	// SingleTenant for a service with one tenant.
	Scope func(context.Context, *Call) (string, error)
	// Class returns the name of a policy in stet.Options.Classes. Default "", the policy
	// without a class.
	Class func(context.Context, *Call) string
	// Name returns a name of the operation for people and verifiers (stet.Op.Name). It is
	// stored unencrypted. Default: the full method.
	Name func(context.Context, *Call) string
	// Ref returns the service's own reference (stet.Op.Ref), such as an order ID. Default:
	// none.
	Ref func(context.Context, *Call) string
	// Fingerprint replaces the fingerprint of a call. Use the same function in another adapter
	// that shares its operations. An error refuses the call with INVALID_ARGUMENT. Default:
	// the digest of the full method and the request in deterministic form. It refuses requests
	// that are no protocol buffers, and requests with fields that the server does not know,
	// because another version of it may order them differently.
	Fingerprint func(context.Context, *Call) (store.Fingerprint, error)

	// Methods are the protected unary methods: full methods ("/shop.v1.Payments/Charge") or
	// services ("shop.v1.Payments"). A call of another method passes without a key; with a key
	// it is refused with FAILED_PRECONDITION (METHOD_UNPROTECTED). Default: all, except
	// Unprotected and gRPC's own services: health, reflection and channelz.
	Methods []string
	// Unprotected are unary methods and services, named as in Methods, whose calls pass with
	// or without a key.
	Unprotected []string
	// Streams are the streaming methods, by their full names, that pass unprotected, because a
	// stream cannot be replayed. Check and Stream refuse other streaming methods of a
	// protected service. A streaming call with a key is always refused.
	Streams []string
	// Optional passes calls without a key to the handler, unprotected. By default they are
	// refused with INVALID_ARGUMENT (KEY_MISSING).
	Optional bool

	// Wait is how long a duplicate of a running call waits for its outcome, before it is
	// refused with ABORTED (IN_FLIGHT); at most nine tenths of the call's remaining time. At
	// most store.MaxWait. Default: that of the policy.
	Wait time.Duration
	// NotExecuted reports that a status of the handler, other than OK, says "nothing was
	// executed". It is returned but not stored, and a retry runs again. Any other status is an
	// outcome, which every retry gets; in a transaction it is rolled back. Default: the
	// function NotExecuted.
	NotExecuted func(*status.Status) bool
	// ErrorLog receives errors, never keys or messages. Default slog.Default().
	ErrorLog *slog.Logger
}

// SingleTenant is the Options.Scope of a service whose keys are all of one tenant.
func SingleTenant(context.Context, *Call) (string, error) { return "single-tenant", nil }

// NotExecuted is the default of Options.NotExecuted, and what stethttp says of gRPC: it
// is true for UNAUTHENTICATED and PERMISSION_DENIED, which by their definitions come
// before an execution. A handler that passes on such a status of a service further down,
// after an effect of its own, needs its own function. It is false for UNAVAILABLE and
// RESOURCE_EXHAUSTED, which also come after one: a handler says so by an error that is
// stet.Retryable.
//
// It is false where stet's ErrorInfo says that the status is another operation's.
func NotExecuted(st *status.Status) bool {
	if _, other := rpc.ReadStatus(st.Proto()); other {
		return false
	}
	return st.Code() == codes.Unauthenticated || st.Code() == codes.PermissionDenied
}

// withDefaults returns checked options with their defaults filled in.
func (o Options) withDefaults() (Options, error) {
	if o.Scope == nil {
		return o, misuse.Errorf("stetgrpc: Options.Scope is required, so that no caller gets the response of another; SingleTenant is for services with one tenant")
	}
	if err := o.rules().Check(); err != nil {
		return o, err
	}
	if o.Wait < 0 || o.Wait > store.MaxWait {
		return o, misuse.Errorf("stetgrpc: Options.Wait is %v; it must be 0 to %v", o.Wait, store.MaxWait)
	}
	if o.NotExecuted == nil {
		o.NotExecuted = NotExecuted
	}
	return o, nil
}

func (o *Options) rules() rpc.Rules {
	return rpc.Rules{Package: "stetgrpc", Option: "Methods", Protected: o.Methods, Unprotected: o.Unprotected, Streams: o.Streams}
}
