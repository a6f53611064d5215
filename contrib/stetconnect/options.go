package stetconnect

import (
	"context"
	"log/slog"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/stet-go/stet/internal/misuse"
	"github.com/stet-go/stet/internal/rpc"
	"github.com/stet-go/stet/store"
)

const (
	// KeyHeader is the request header that carries the key, in all three protocols.
	KeyHeader = "Idempotency-Key"
	// ReplayedHeader is the response header that is "true" on replays. Of an error it
	// is in its metadata.
	ReplayedHeader = "Idempotent-Replayed"
	// ProblemBase is the prefix of problem types; the name of the problem follows.
	ProblemBase = "https://github.com/stet-go/stet/blob/main/docs/problems.md#"
)

// Options configure an Interceptor. Scope is required; the zero value of every other
// field stands for its default.
type Options struct {
	// Scope returns the owner of the key: a tenant, a principal, an API account, as
	// authentication has established it. 1 to store.MaxScope bytes. If it returns "", the call
	// is refused with permission_denied (scope-missing). A *connect.Error is returned
	// unchanged; any other error is logged, and the call gets internal (scope-failed). None of
	// it executes anything. Use SingleTenant for a service with one tenant.
	Scope func(context.Context, connect.AnyRequest) (string, error)
	// Class returns the name of a policy in stet.Options.Classes. Default "", the policy
	// without a class.
	Class func(context.Context, connect.AnyRequest) string
	// Name returns a name of the operation for people and verifiers (stet.Op.Name). It is
	// stored unencrypted, and shortened by store.LabelText. Default: the procedure.
	Name func(context.Context, connect.AnyRequest) string
	// Ref returns the service's own reference (stet.Op.Ref), such as an order ID. It is
	// stored, and shortened like Name. Default: none.
	Ref func(context.Context, connect.AnyRequest) string
	// Fingerprint replaces the fingerprint of a call. Its error refuses the call with
	// invalid_argument and its text. Default: the procedure and the message in protobuf's
	// deterministic form, so that binary and JSON requests, and those of package stetgrpc,
	// match. It refuses messages with fields that this program does not know, and requests
	// that are not protobuf.
	Fingerprint func(context.Context, connect.AnyRequest) (store.Fingerprint, error)

	// Procedures are the protected unary procedures ("/acme.v1.Payments/Charge") or services
	// ("acme.v1.Payments"). A call of another procedure passes without a key; with a key it is
	// refused with failed_precondition (method-unprotected). Default: all, except Unprotected
	// and gRPC's own services: health, reflection and channelz.
	Procedures []string
	// Unprotected are unary procedures and services, named as in Procedures, whose calls pass
	// with or without a key.
	Unprotected []string
	// Streams are the streaming procedures, by their full names, that pass unprotected,
	// because a stream cannot be replayed. Other streaming procedures of a protected service
	// are refused at their first call, or by Check. A streaming call with a key is
	// always refused.
	Streams []string
	// Optional passes calls without a key to the handler, unprotected. By default they are
	// refused with invalid_argument (key-missing), unless their schema declares that they have
	// no side effects (idempotency_level = NO_SIDE_EFFECTS, as for calls by GET). With a key
	// these are protected too.
	Optional bool

	// NotExecuted reports that an error of a handler says "nothing was executed". It is
	// returned but not stored, and a retry runs again. Default: the function NotExecuted.
	NotExecuted func(*connect.Error) bool
	// Wait is how long a duplicate of a running call waits for its outcome, before it is
	// refused with aborted (in-flight); at most nine tenths of the call's remaining time. At
	// most store.MaxWait. Default: that of the policy.
	Wait time.Duration
	// ErrorLog receives errors, never keys or messages. Default slog.Default().
	ErrorLog *slog.Logger
}

// retryPause is the delay for retries of refusals that a later call may not get, unless more
// is known.
const retryPause = time.Second

// SingleTenant is the Options.Scope of a service whose keys are all of one tenant.
func SingleTenant(context.Context, connect.AnyRequest) (string, error) { return "single-tenant", nil }

// NotExecuted is the default of Options.NotExecuted: it is true for unauthenticated and
// permission_denied, which come before an execution. It is false for unavailable and
// resource_exhausted, which also come after one: a handler says so by an error that is
// stet.Retryable. It is false where stet's details say that the error is another
// operation's, which the handler called.
func NotExecuted(err *connect.Error) bool {
	if _, other := rpc.ReadStatus(statusOf(err)); other {
		return false
	}
	return err.Code() == connect.CodeUnauthenticated || err.Code() == connect.CodePermissionDenied
}

// withDefaults returns checked options with their defaults filled in.
func (o Options) withDefaults() (Options, error) {
	if o.Scope == nil {
		return o, misuse.Errorf("stetconnect: Options.Scope is required, so that no caller gets the response of another; SingleTenant is for services with one tenant")
	}
	if o.Wait < 0 || o.Wait > store.MaxWait {
		return o, misuse.Errorf("stetconnect: Options.Wait is %v; it must be 0 to %v", o.Wait, store.MaxWait)
	}
	if o.NotExecuted == nil {
		o.NotExecuted = NotExecuted
	}
	return o, o.rules().Check()
}

func (o *Options) rules() rpc.Rules {
	return rpc.Rules{Package: "stetconnect", Option: "Procedures", Protected: o.Procedures, Unprotected: o.Unprotected, Streams: o.Streams}
}

// Check compares the names in Options with the services of the handlers. Call it when the
// program starts. It refuses a streaming procedure of a protected service that Options.Streams
// does not name, and a name that is in none of the services. The error is of kind
// stet.KindInvalid, and has all faults.
func (i *Interceptor) Check(services ...protoreflect.ServiceDescriptor) error {
	known, streaming := make(map[string]bool), make(map[string]bool)
	for _, service := range services {
		if service == nil {
			return misuse.Errorf("stetconnect: Check needs descriptors that are not nil")
		}
		known[string(service.FullName())] = true
		for n := range service.Methods().Len() {
			m := service.Methods().Get(n)
			streaming["/"+string(service.FullName())+"/"+string(m.Name())] = m.IsStreamingClient() || m.IsStreamingServer()
		}
	}
	return i.o.rules().Match(streaming, known)
}
