package stetgrpc_test

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/contrib/stetgrpc"
	"github.com/stet-go/stet/internal/rpc"
	"github.com/stet-go/stet/stetclient"
)

var quick = stetclient.Policy{Base: time.Millisecond, Cap: time.Millisecond, MaxAttempts: 5}

func client(t testing.TB, o stetgrpc.ClientOptions) grpc.DialOption {
	t.Helper()
	if o.Policy == (stetclient.Policy{}) {
		o.Policy = quick
	}
	return grpc.WithChainUnaryInterceptor(stetgrpc.Must(stetgrpc.ClientInterceptor(o)))
}

// charges makes a call through a client's interceptors, and returns its error unchanged.
func (b *bench) charges(ctx context.Context, amount string) (string, error) {
	v := new(wrapperspb.StringValue)
	err := b.conn.Invoke(ctx, charge, wrapperspb.String(amount), v)
	return v.GetValue(), err
}

func TestCallHasOneKeyAndIsRetriedUntilItsOutcome(t *testing.T) {
	var keys []string
	b := newBench(t, stetgrpc.Options{Ref: func(ctx context.Context, _ *stetgrpc.Call) string {
		md, _ := metadata.FromIncomingContext(ctx)
		keys = append(keys, md.Get(key)...)
		return ""
	}}, stet.Options{}, client(t, stetgrpc.ClientOptions{}))
	b.i.SetRetryAfter(time.Millisecond)
	b.charge = func(context.Context, string) (proto.Message, error) {
		switch b.runs.Load() {
		case 1:
			return nil, stet.Retryable(errors.New("busy"))
		case 2:
			return nil, stet.Retryable(status.Error(codes.Unavailable, "busy"))
		}
		return wrapperspb.String("one"), nil
	}
	if v, err := b.charges(t.Context(), "1"); v != "one" || err != nil {
		t.Error(v, err)
	}
	if len(keys) != 3 || len(slices.Compact(keys)) != 1 {
		t.Errorf("keys: %v", keys)
	}
	if v, err := b.charges(t.Context(), "1"); v != "one" || err != nil || len(keys) != 4 || keys[3] == keys[0] {
		t.Errorf("another call: %v %v %v", v, err, keys)
	}
	b.wantRuns(4)
}

func TestTheKeyIsTheCallers(t *testing.T) {
	b := newBench(t, stetgrpc.Options{}, stet.Options{}, client(t, stetgrpc.ClientOptions{}))
	ctx := stetgrpc.WithKey(t.Context(), "k")
	for _, ctx := range []context.Context{ctx, metadata.AppendToOutgoingContext(t.Context(), key, "k"), metadata.AppendToOutgoingContext(ctx, key, "k")} {
		if v, err := b.charges(ctx, "1"); v != "charged 1" || err != nil {
			t.Error(v, err)
		}
	}
	b.wantRuns(1)
	comma := stetgrpc.WithKey(t.Context(), `a,"b`) // which would look like two
	for _, ctx := range []context.Context{comma, metadata.AppendToOutgoingContext(comma, key, `"a,\"b"`), metadata.AppendToOutgoingContext(t.Context(), key, `"a,\"b"`)} {
		if v, err := b.charges(ctx, "1"); v != "charged 1" || err != nil {
			t.Error(v, err)
		}
	}
	b.wantRuns(2)
	for _, ctx := range []context.Context{metadata.AppendToOutgoingContext(ctx, key, "other"), stetgrpc.WithKey(t.Context(), "a b"), stetgrpc.WithKey(t.Context(), strings.Repeat("k", 256)),
		metadata.AppendToOutgoingContext(t.Context(), "x-idempotency-key", "k")} {
		if _, err := b.charges(ctx, "1"); status.Code(err) != codes.InvalidArgument || stetgrpc.ExecutionOf(err) != stet.NotExecuted {
			t.Error(err)
		}
	}
	b.wantRuns(2)
}

func TestFinalOutcomeIsNotRequestedAgain(t *testing.T) {
	for name, c := range map[string]struct {
		err       error
		execution stet.Execution
	}{
		"unavailable":     {status.Error(codes.Unavailable, "no"), stet.Executed},
		"deadline":        {status.Error(codes.DeadlineExceeded, "no"), stet.Executed},
		"not found":       {status.Error(codes.NotFound, "no"), stet.Executed},
		"declined":        {stet.Permanent(status.Error(codes.FailedPrecondition, "no")), stet.Executed},
		"denied":          {status.Error(codes.PermissionDenied, "no"), stet.NotExecuted},
		"released":        {stet.Retryable(status.Error(codes.OutOfRange, "no")), stet.NotExecuted},
		"unauthenticated": {status.Error(codes.Unauthenticated, "no"), stet.NotExecuted},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, stetgrpc.Options{}, stet.Options{}, client(t, stetgrpc.ClientOptions{}))
			b.charge = func(context.Context, string) (proto.Message, error) { return nil, c.err }
			_, err := b.charges(t.Context(), "1")
			want, _ := status.FromError(c.err)
			if errors.Unwrap(c.err) != nil {
				want, _ = status.FromError(errors.Unwrap(c.err))
			}
			if got, ok := status.FromError(err); !ok || got.Code() != want.Code() || got.Message() != "no" || stetgrpc.ExecutionOf(err) != c.execution || stet.ExecutionOf(err) != c.execution ||
				(stet.KindOf(err) == stet.KindFailed) != (c.execution == stet.Executed) {
				t.Errorf("%v: %v, %v", err, stetgrpc.ExecutionOf(err), stet.KindOf(err))
			}
			b.wantRuns(1)
		})
	}
}

func TestClientGivesUpWithTheKnownState(t *testing.T) {
	b := newBench(t, stetgrpc.Options{}, stet.Options{}, client(t, stetgrpc.ClientOptions{}))
	b.i.SetRetryAfter(time.Millisecond)
	b.charge = func(context.Context, string) (proto.Message, error) { return nil, stet.Retryable(errors.New("busy")) }
	_, err := b.charges(t.Context(), "1")
	if status.Code(err) != codes.Unavailable || stetgrpc.ExecutionOf(err) != stet.NotExecuted {
		t.Errorf("%v: %v", err, stetgrpc.ExecutionOf(err))
	}
	if own, ok := errors.AsType[*stetclient.Error](err); !ok || own.Reason != stetclient.ReasonAttempts || own.Attempts != 5 {
		t.Errorf("%v", own)
	}
	b.wantRuns(5)

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := b.charges(ended, "1"); status.Code(err) != codes.Canceled || stetgrpc.ExecutionOf(err) != stet.NotExecuted {
		t.Error(err)
	}
	b.wantRuns(5)
	if stetgrpc.ExecutionOf(nil) != stet.Executed || stetgrpc.ExecutionOf(errors.New("x")) != stet.MayHaveExecuted || stetgrpc.ExecutionOf(status.Error(codes.Unavailable, "")) != stet.MayHaveExecuted {
		t.Error("ExecutionOf")
	}
}

func TestCallPastItsDeadlineMayHaveExecuted(t *testing.T) {
	b := newBench(t, stetgrpc.Options{}, stet.Options{}, client(t, stetgrpc.ClientOptions{}))
	finish := make(chan struct{})
	b.charge = func(context.Context, string) (proto.Message, error) { <-finish; return wrapperspb.String("one"), nil }
	ctx, cancel := context.WithTimeout(stetgrpc.WithKey(t.Context(), "k"), 50*time.Millisecond)
	defer cancel()
	if _, err := b.charges(ctx, "1"); status.Code(err) != codes.DeadlineExceeded || stetgrpc.ExecutionOf(err) != stet.MayHaveExecuted {
		t.Error(err)
	}
	close(finish)
}

func TestAnAttemptThatTakesTooLongIsMadeAgain(t *testing.T) {
	b := newBench(t, stetgrpc.Options{}, stet.Options{},
		client(t, stetgrpc.ClientOptions{Policy: stetclient.Policy{AttemptTimeout: 100 * time.Millisecond, Base: time.Millisecond, Cap: time.Millisecond, MaxAttempts: 1000}}))
	b.i.SetRetryAfter(time.Millisecond)
	first := make(chan struct{}, 1)
	first <- struct{}{}
	b.charge = func(context.Context, string) (proto.Message, error) {
		<-time.After(300 * time.Millisecond)
		return wrapperspb.String("one"), nil
	}
	if v, err := b.charges(t.Context(), "1"); v != "one" || err != nil {
		t.Error(v, err)
	}
	b.wantRuns(1)
}

// TestAttemptTimeout_ServerTimerFirst: the server's copy of the attempt's deadline ends the
// attempt while the context of the client has not ended.
func TestAttemptTimeout_ServerTimerFirst(t *testing.T) {
	for name, c := range map[string]struct {
		attempt, caller time.Duration
		code            codes.Code
		calls           int
	}{
		"own deadline":               {time.Hour, 0, codes.DeadlineExceeded, 2},
		"earlier than the caller's":  {time.Hour, 2 * time.Hour, codes.DeadlineExceeded, 2},
		"the caller's":               {2 * time.Hour, time.Hour, codes.DeadlineExceeded, 1},
		"no deadline":                {0, 0, codes.DeadlineExceeded, 1},
		"cancelled before a timeout": {time.Hour, 0, codes.Canceled, 1},
	} {
		t.Run(name, func(t *testing.T) {
			policy := quick
			policy.AttemptTimeout = c.attempt
			i := stetgrpc.Must(stetgrpc.ClientInterceptor(stetgrpc.ClientOptions{Policy: policy}))
			ctx := t.Context()
			if c.caller > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, c.caller)
				defer cancel()
			}
			calls := 0
			err := i(ctx, charge, nil, nil, nil, func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error {
				if calls++; calls > 1 {
					return nil
				}
				return status.Error(c.code, "stream terminated by RST_STREAM with error code: CANCEL")
			})
			if calls != c.calls || (err == nil) != (c.calls == 2) {
				t.Errorf("%d attempts, %v; want %d", calls, err, c.calls)
			}
		})
	}
}

// TestConnectionsThatBreakCostNothing: over TCP, through a proxy that cuts each
// connection after the request, before its answer, for a few times.
func TestConnectionsThatBreakCostNothing(t *testing.T) {
	b := newBench(t, stetgrpc.Options{Wait: time.Minute}, stet.Options{})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var cuts atomic.Int64
	s := grpc.NewServer(append(b.i.ServerOptions(), grpc.ChainUnaryInterceptor())...)
	s.RegisterService(unaryDesc(), b.payments)
	done := make(chan struct{})
	conns := make(chan net.Conn, 100)
	go func() { defer close(done); _ = s.Serve(noting{l, conns}) }()
	defer func() { s.Stop(); <-done }()
	b.charge = func(context.Context, string) (proto.Message, error) {
		if cuts.Add(1) == 1 {
			_ = (<-conns).Close()
		}
		return wrapperspb.String("one"), nil
	}
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		client(t, stetgrpc.ClientOptions{Policy: stetclient.Policy{Base: 10 * time.Millisecond, Cap: 100 * time.Millisecond, MaxAttempts: 1000}}))
	b.i.SetRetryAfter(time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	b.conn = conn
	if v, err := b.charges(t.Context(), "1"); v != "one" || err != nil {
		t.Error(v, err)
	}
	b.wantRuns(1)
}

// noting tells the connections that it accepts.
type noting struct {
	net.Listener
	conns chan net.Conn
}

func (n noting) Accept() (net.Conn, error) {
	c, err := n.Listener.Accept()
	if err == nil {
		n.conns <- c
	}
	return c, err
}

// TestStatusOfAnotherOperationDoesNotDescribeThisOne: the handler has had its effect, and
// passes on what a service further down has refused.
func TestStatusOfAnotherOperationDoesNotDescribeThisOne(t *testing.T) {
	for _, c := range []rpc.Condition{rpc.StoreUnavailable, rpc.ScopeMissing, rpc.InFlight, rpc.Mismatch} {
		b := newBench(t, stetgrpc.Options{}, stet.Options{}, client(t, stetgrpc.ClientOptions{}))
		b.charge = func(context.Context, string) (proto.Message, error) {
			return nil, status.FromProto(c.End("further down", time.Millisecond).Status).Err()
		}
		ctx := stetgrpc.WithKey(t.Context(), "k")
		for range 2 {
			_, err := b.charges(ctx, "1")
			bare := status.Convert(err).Err() // as a client without the interceptor has it
			if status.Code(err) != codes.Code(c.Code) || stetgrpc.ExecutionOf(err) != stet.Executed || stetgrpc.ExecutionOf(bare) != stet.Executed || stet.KindOf(err) != stet.KindFailed {
				t.Errorf("%s: %v, %v, %v", c.Reason, err, stetgrpc.ExecutionOf(err), stet.KindOf(err))
			}
		}
		b.wantRuns(1)
	}
}

func TestRefusalsHaveTheirKindAtTheClient(t *testing.T) {
	b := newBench(t, stetgrpc.Options{}, stet.Options{}, client(t, stetgrpc.ClientOptions{}))
	ctx := stetgrpc.WithKey(t.Context(), "k")
	_, first := b.charges(ctx, "1")
	if _, err := b.charges(ctx, "2"); first != nil || stet.KindOf(err) != stet.KindMismatch || stet.ExecutionOf(err) != stet.NotExecuted {
		t.Error(first, err, stet.KindOf(err))
	}
	ended, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("a cause of its own"))
	if _, err := b.charges(ended, "1"); status.Code(err) != codes.Canceled || stet.KindOf(err) != stet.KindRetryable {
		t.Error(err, stet.KindOf(err))
	}
}

// TestStoredRefusalIsKindFailed: nothing was executed, and a retry receives the refusal again.
func TestStoredRefusalIsKindFailed(t *testing.T) {
	soon := status.FromProto(rpc.InFlight.End("", time.Millisecond).Status)
	for name, c := range map[string]struct {
		err  error
		kind stet.Kind
		runs int64
	}{
		"stored":                {stet.Permanent(status.Error(codes.Unavailable, "closed")), stet.KindFailed, 1},
		"stored, passed on":     {stet.Permanent(soon.Err()), stet.KindFailed, 1},
		"not stored":            {status.Error(codes.PermissionDenied, "no"), stet.KindRetryable, 2},
		"not stored, passed on": {status.FromProto(rpc.ScopeMissing.End("", 0).Status).Err(), stet.KindRetryable, 2},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, stetgrpc.Options{}, stet.Options{}, client(t, stetgrpc.ClientOptions{}))
			b.charge = func(ctx context.Context, _ string) (proto.Message, error) {
				stet.FromContext(ctx).Declare(stet.NotExecuted, 0)
				return nil, c.err
			}
			for range 2 {
				if _, err := b.charges(stetgrpc.WithKey(t.Context(), "k"), "1"); stet.KindOf(err) != c.kind || stetgrpc.ExecutionOf(err) != stet.NotExecuted {
					t.Errorf("%v: %v, %v; want %v, not executed", err, stet.KindOf(err), stetgrpc.ExecutionOf(err), c.kind)
				}
			}
			b.wantRuns(c.runs)
			w := posted(gateway(b), `"1"`, "Idempotency-Key", "k")
			if w.Header().Get("Retry-After") != "" {
				t.Errorf("the gateway asks for a retry: %v", w.Header())
			}
		})
	}
}

func TestOtherMethodsPassWithoutAKey(t *testing.T) {
	b := newBench(t, stetgrpc.Options{}, stet.Options{}, client(t, stetgrpc.ClientOptions{Methods: []string{"other.Service"}}))
	if _, err := b.charges(t.Context(), "1"); status.Code(err) != codes.InvalidArgument || !strings.Contains(answer{st: status.Convert(err)}.code(), rpc.KeyMissing.Reason) {
		t.Error(err)
	}
}

func TestWrongClientOptionsAreRefused(t *testing.T) {
	for _, o := range []stetgrpc.ClientOptions{{Methods: []string{"a/b"}}, {Policy: stetclient.Policy{MaxAttempts: -1}}} {
		if _, err := stetgrpc.ClientInterceptor(o); stet.KindOf(err) != stet.KindInvalid {
			t.Error(err)
		}
	}
}
