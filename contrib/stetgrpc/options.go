package stetgrpc

import (
	"context"
	"log/slog"
	"slices"
	"strings"
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
	for _, list := range []struct {
		name     string
		names    []string
		services bool
	}{{"Methods", o.Methods, true}, {"Unprotected", o.Unprotected, true}, {"Streams", o.Streams, false}} {
		for _, name := range list.names {
			if !isMethod(name) && (!list.services || !isService(name)) {
				return o, misuse.Errorf("stetgrpc: Options.%s: %q is not a full method, such as %q%s", list.name, name, "/shop.v1.Payments/Charge",
					map[bool]string{true: `, nor a service, such as "shop.v1.Payments"`}[list.services])
			}
		}
	}
	for _, name := range o.Unprotected {
		if slices.Contains(o.Methods, name) {
			return o, misuse.Errorf("stetgrpc: Options: %q is in Methods and in Unprotected", name)
		}
	}
	if o.Wait < 0 || o.Wait > store.MaxWait {
		return o, misuse.Errorf("stetgrpc: Options.Wait is %v; it must be 0 to %v", o.Wait, store.MaxWait)
	}
	if o.NotExecuted == nil {
		o.NotExecuted = NotExecuted
	}
	return o, nil
}

func isMethod(name string) bool {
	service, method, ok := strings.Cut(strings.TrimPrefix(name, "/"), "/")
	return ok && name[0] == '/' && isService(service) && method != "" && !strings.Contains(method, "/")
}

func isService(name string) bool { return name != "" && !strings.ContainsAny(name, "/ ") }

// serviceOf returns the service of a full method.
func serviceOf(method string) string {
	service, _, _ := strings.Cut(strings.TrimPrefix(method, "/"), "/")
	return service
}

// rule is what becomes of the calls of a method.
type rule uint8

const (
	protected rule = iota
	passes         // with a key or without
	keyless        // it passes without a key
)

// names reports whether a list names a method, or its service.
func names(list []string, method string) bool {
	return slices.Contains(list, method) || slices.Contains(list, serviceOf(method))
}

// rule returns what becomes of the unary calls of a method. A method's own name counts
// more than that of its service.
func (o *Options) rule(method string) rule {
	switch {
	case slices.Contains(o.Methods, method):
		return protected
	case names(o.Unprotected, method):
		return passes
	case names(o.Methods, method):
		return protected
	case rpc.Builtin(serviceOf(method)):
		return passes
	case len(o.Methods) == 0:
		return protected
	}
	return keyless
}

// stream reports whether a streaming method may be called. Where one method of a service is
// protected, its others are looked at, too.
func (o *Options) stream(method string) bool {
	service := serviceOf(method)
	switch {
	case slices.Contains(o.Streams, method):
		return true
	case slices.ContainsFunc(o.Methods, func(name string) bool { return name == service || serviceOf(name) == service && isMethod(name) }):
		return false
	case rpc.Builtin(service), len(o.Methods) > 0:
		return true
	}
	return slices.Contains(o.Unprotected, service)
}
