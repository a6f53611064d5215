package stetgrpc_test

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/contrib/stetgrpc"
	"github.com/stet-go/stet/internal/coding"
	"github.com/stet-go/stet/internal/rpc"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/stetclient"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

// another is what a stet-protected service says of an operation of its own.
func another() error { return status.FromProto(rpc.StoreUnavailable.End("", 0).Status).Err() }

// TestStatusPassedOnByDoDoesNotDescribeIt: the function of Do called another service, which did not
// execute its operation; but Do's may have had an effect before, and its failure stands.
func TestStatusPassedOnByDoDoesNotDescribeIt(t *testing.T) {
	b := known(t, stet.Options{Policy: stet.Policy{Errors: stetgrpc.Errors()}})
	_, err := stet.Do(t.Context(), b.engine, op("1"), func(context.Context) (string, error) { return "", another() })
	if x := stetgrpc.ExecutionOf(err); x != stet.MayHaveExecuted {
		t.Errorf("of Do's own error: %v", x)
	}
	b.want(b.call("1", key, "k"), "Unavailable PASSED_ON may have executed")
	b.wantRuns(0)
}

// TestPassedOnStatusOfAStoredRefusalIsConsistent: another service, which stet protects too, is
// still executing its operation. The handler returns that status, and it is stored.
func TestPassedOnStatusOfAStoredRefusalIsConsistent(t *testing.T) {
	below := status.FromProto(rpc.InFlight.End("", time.Second).Status).Err()
	for name, c := range map[string]struct {
		tx, declares bool
		err          error
		want         string
	}{
		"lease":                                {false, false, below, "executed"},
		"lease, declared not executed":         {false, true, stet.Permanent(below), "not executed"},
		"transaction":                          {true, false, stet.Permanent(below), "not executed"},
		"transaction with an effect elsewhere": {true, false, stet.Permanent(stet.Repeatable(below)), "executed"},
	} {
		t.Run(name, func(t *testing.T) {
			fails := func(ctx context.Context, _ string) (proto.Message, error) {
				if c.declares {
					stet.FromContext(ctx).Declare(stet.NotExecuted, 0)
				}
				return nil, c.err
			}
			var b *bench
			if c.tx {
				l := newLedger(t, stetgrpc.Options{})
				l.pays(fails)
				b = l.bench
			} else {
				b = newBench(t, stetgrpc.Options{}, stet.Options{})
				b.charge = fails
			}
			first := b.call("1", key, "k")
			b.want(first, "Aborted PASSED_ON "+c.want)
			said, _ := rpc.ReadStatus(first.st.Proto())
			if got := first.trailer.Get(stetgrpc.ExecutionMetadata); said.Retryable || len(got) != 1 || got[0] != c.want {
				t.Errorf("retryable %v, executed %v", said.Retryable, got)
			}
			if raw := status.Convert(below).Proto().GetDetails(); !proto.Equal(&spb.Status{Details: raw}, &spb.Status{Details: first.st.Proto().GetDetails()[1:]}) {
				t.Errorf("got %v behind PASSED_ON; want %v", first.st.Proto().GetDetails()[1:], raw)
			}
			for range 10 { // the order of a map differs
				b.same(first, b.call("1", key, "k"))
			}
			b.wantRuns(1)
			stored, err := b.engine.Lookup(t.Context(), b.engine.ID("single-tenant", "k"))
			if err != nil {
				t.Fatal(err)
			}
			want, err := proto.Marshal(status.Convert(below).Proto())
			if err != nil {
				t.Fatal(err)
			}
			if got := coding.StatusOf(stored.Outcome.Trailer).Whole; !bytes.Equal(got, want) {
				t.Errorf("stored %q; want the handler's status, %q", got, want)
			}
		})
	}
}

// TestPassedOnStatusOfAReleasedRunIsRetryable: nothing is stored, and a retry runs again.
func TestPassedOnStatusOfAReleasedRunIsRetryable(t *testing.T) {
	b := newBench(t, stetgrpc.Options{}, stet.Options{})
	b.charge = func(context.Context, string) (proto.Message, error) {
		return nil, stet.Retryable(status.FromProto(rpc.Mismatch.End("", 0).Status).Err())
	}
	for range 2 {
		a := b.call("1", key, "k")
		b.want(a, "FailedPrecondition PASSED_ON not executed")
		if said, _ := rpc.ReadStatus(a.st.Proto()); !said.Retryable {
			t.Errorf("not retryable: %v", a.st.Proto())
		}
	}
	b.wantRuns(2)
}

// TestAnErrorOfDoIsOfItsOwnOperation: the error of the call further down is inside of it.
func TestAnErrorOfDoIsOfItsOwnOperation(t *testing.T) {
	down := newBench(t, stetgrpc.Options{}, stet.Options{}, client(t, stetgrpc.ClientOptions{}))
	_ = down.engine.Close()
	e := stettest.Engine(t, memory.New(memory.Options{}), stet.Options{})
	_, err := stet.Do(t.Context(), e, op("1"), func(ctx context.Context) (string, error) { return down.charges(ctx, "1") })
	if x := stetgrpc.ExecutionOf(err); x != stet.MayHaveExecuted {
		t.Errorf("%v: %v", err, x)
	}
}

// TestADenialOfAnotherOperationIsNoReasonToRunAgain: the handler has charged, and then called
// a service that did not take its last attempt.
func TestADenialOfAnotherOperationIsNoReasonToRunAgain(t *testing.T) {
	denied := status.Error(codes.PermissionDenied, "denied")
	for name, err := range map[string]error{
		"stet's":                         status.FromProto(rpc.ScopeMissing.End("", 0).Status).Err(),
		"after an attempt that was lost": &stetclient.Error{Info: stetclient.Info{Execution: stet.MayHaveExecuted}, Cause: denied},
	} {
		b := newBench(t, stetgrpc.Options{}, stet.Options{})
		b.charge = func(context.Context, string) (proto.Message, error) { return nil, err }
		for range 2 {
			if a := b.call("1", key, "k"); a.st.Code() != codes.PermissionDenied || a.trailer.Get(stetgrpc.ExecutionMetadata)[0] != "executed" {
				t.Errorf("%s: %v, %v", name, a.st, a.trailer.Get(stetgrpc.ExecutionMetadata))
			}
		}
		b.wantRuns(1)
	}
}

// TestAnErrorOfScopeExecutedNothing, even if it describes an operation of a service that
// Scope has asked.
func TestAnErrorOfScopeExecutedNothing(t *testing.T) {
	b := newBench(t, stetgrpc.Options{Scope: func(context.Context, *stetgrpc.Call) (string, error) {
		return "", status.FromProto(rpc.ResultExpired.End("", 0).Status).Err()
	}}, stet.Options{})
	a := b.call("1", key, "k")
	if x := stetgrpc.ExecutionOf(a.st.Err()); x != stet.NotExecuted || a.st.Code() != codes.FailedPrecondition {
		t.Errorf("%v: %v", a.st, x)
	}
	b.wantRuns(0)
}

// TestPassedOnMetadataDoesNotDescribeThisCall: a handler that hands on what a service
// further down sent with its answer.
func TestPassedOnMetadataDoesNotDescribeThisCall(t *testing.T) {
	for name, c := range map[string]struct {
		says, want string
		err        error
		execution  stet.Execution
	}{
		"plain, released":  {"executed", "Unavailable NOT_EXECUTED not executed", stet.Retryable(errors.New("busy")), stet.NotExecuted},
		"status, released": {"executed", "ResourceExhausted", stet.Retryable(status.Error(codes.ResourceExhausted, "")), stet.NotExecuted},
		"status, stored":   {"not executed", "ResourceExhausted", status.Error(codes.ResourceExhausted, ""), stet.Executed},
		"success":          {"not executed", "charged", nil, stet.Executed},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, stetgrpc.Options{}, stet.Options{}, client(t, stetgrpc.ClientOptions{Policy: stetclient.Policy{MaxAttempts: 1, Base: time.Millisecond}}))
			b.charge = func(ctx context.Context, _ string) (proto.Message, error) {
				_ = grpc.SetHeader(ctx, metadata.Pairs(stetgrpc.ReplayedMetadata, "true", stetgrpc.ExecutionMetadata, c.says))
				_ = grpc.SetTrailer(ctx, metadata.Pairs(stetgrpc.ReplayedMetadata, "true", stetgrpc.ExecutionMetadata, c.says))
				return wrapperspb.String("charged"), c.err
			}
			a := b.call("1", key, "k")
			b.want(a, c.want)
			for _, md := range []metadata.MD{a.header, a.trailer} {
				if len(md.Get(stetgrpc.ReplayedMetadata)) > 0 || len(md.Get(stetgrpc.ExecutionMetadata)) > 0 && md.Get(stetgrpc.ExecutionMetadata)[0] == c.says {
					t.Errorf("it has the metadata of another call: %v", md)
				}
			}
			if _, err := b.charges(stetgrpc.WithKey(t.Context(), "l"), "1"); stetgrpc.ExecutionOf(err) != c.execution {
				t.Errorf("%v: %v", err, stetgrpc.ExecutionOf(err))
			}
		})
	}
}

// TestAFingerprintThatIsZeroIsRefused: all requests would be alike.
func TestAFingerprintThatIsZeroIsRefused(t *testing.T) {
	b := newBench(t, stetgrpc.Options{Fingerprint: func(context.Context, *stetgrpc.Call) (store.Fingerprint, error) { return store.Fingerprint{}, nil }}, stet.Options{})
	b.want(b.call("1", key, "k"), "Internal MISCONFIGURED not executed")
	b.wantRuns(0)
	if !strings.Contains(b.log.String(), "zero Fingerprint") {
		t.Error(b.log)
	}
}

// TestThroughAGatewayAnOutcomeIsNotTakenForNothing: a 429, a 403, and a 503 with
// Retry-After say by themselves that nothing was executed.
func TestThroughAGatewayAnOutcomeIsNotTakenForNothing(t *testing.T) {
	soon, err := status.New(codes.Unavailable, "closed").WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(time.Second)})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		err       error
		status    int
		execution stet.Execution
		runs      int64
	}{
		"429":                       {status.Error(codes.ResourceExhausted, "no money left"), 429, stet.Executed, 1},
		"403":                       {stet.Permanent(status.Error(codes.PermissionDenied, "not any more")), 403, stet.Executed, 1},
		"503, with a time to retry": {soon.Err(), 503, stet.Executed, 1},
		"403, released":             {status.Error(codes.PermissionDenied, "no"), 403, stet.NotExecuted, 1},
		"429, released":             {stet.Retryable(status.Error(codes.ResourceExhausted, "later")), 429, stet.NotExecuted, 2},
		"409":                       {stet.Repeatable(errors.New("busy")), 409, stet.MayHaveExecuted, 2},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, stetgrpc.Options{}, stet.Options{})
			b.i.SetRetryAfter(time.Millisecond)
			b.charge = func(context.Context, string) (proto.Message, error) { return nil, c.err }
			srv := httptest.NewServer(gateway(b))
			defer srv.Close()
			tr, err := stetclient.New(nil, stetclient.Options{Policy: stetclient.Policy{Base: time.Millisecond, Cap: time.Millisecond, MaxAttempts: 2}})
			if err != nil {
				t.Fatal(err)
			}
			defer tr.CloseIdleConnections()
			res, err := (&http.Client{Transport: tr}).Post(srv.URL+"/v1/charge", "application/json", strings.NewReader(`"1"`))
			var info stetclient.Info
			if own, ok := errors.AsType[*stetclient.Error](err); ok {
				info, res = own.Info, own.Response
			} else if err == nil {
				info, _ = stetclient.InfoOf(res)
				_ = res.Body.Close()
			}
			if res == nil || res.StatusCode != c.status || info.Execution != c.execution || res.Header.Get("Retry-After") != "" && c.execution == stet.Executed {
				t.Errorf("%v, %v: %+v", res, err, info)
			}
			b.wantRuns(c.runs)
		})
	}
}
