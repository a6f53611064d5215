package stetgrpc_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/contrib/stetgrpc"
	"github.com/stet-go/stet/internal/rpc"
	"github.com/stet-go/stet/store"
)

// greedy is a retry policy that retries every code. If it does not retry, the server
// has forbidden it.
const greedy = `{"methodConfig": [{"name": [{}], "retryPolicy": {"maxAttempts": 3, "initialBackoff": "0.001s", "maxBackoff": "0.001s", "backoffMultiplier": 1,
	"retryableStatusCodes": ["CANCELLED","UNKNOWN","INVALID_ARGUMENT","DEADLINE_EXCEEDED","NOT_FOUND","ALREADY_EXISTS","PERMISSION_DENIED","RESOURCE_EXHAUSTED",
	"FAILED_PRECONDITION","ABORTED","OUT_OF_RANGE","UNIMPLEMENTED","INTERNAL","UNAVAILABLE","DATA_LOSS","UNAUTHENTICATED"]}}]}`

// usual is the policy of docs/adapters/grpc.md.
const usual = `{"methodConfig": [{"name": [{"service": "test.Payments"}], "retryPolicy": {"maxAttempts": 3, "initialBackoff": "0.001s", "maxBackoff": "0.001s", "backoffMultiplier": 1,
	"retryableStatusCodes": ["UNAVAILABLE","ABORTED"]}}]}`

// tries counts the calls that reach a server.
type tries struct{ n atomic.Int64 }

// around is an interceptor before all others.
func (tr *tries) around(ctx context.Context, req any, _ *grpc.UnaryServerInfo, h grpc.UnaryHandler) (any, error) {
	tr.n.Add(1)
	return h(ctx, req)
}

// refusal is a row of the table of codes.
type refusal struct {
	name          string
	md            []string
	before        func(*bench)
	want          string
	greedy, usual int // attempts under the two policies
}

// refusals is the table. A handler in flight sends to running, and ends with finish.
func refusals(running chan struct{}, finish <-chan struct{}) []refusal {
	return []refusal{
		{name: "key missing", want: "InvalidArgument KEY_MISSING not executed", greedy: 1, usual: 1},
		{name: "two keys", md: []string{key, "a", key, "b"}, want: "InvalidArgument KEY_REPEATED not executed", greedy: 1, usual: 1},
		{name: "mismatch", md: []string{key, "a"}, before: func(b *bench) { b.call("2", key, "a") }, want: "FailedPrecondition MISMATCH not executed", greedy: 1, usual: 1},
		{name: "in flight", md: []string{key, "a"}, before: func(b *bench) {
			b.charge = func(context.Context, string) (proto.Message, error) { running <- struct{}{}; <-finish; return nil, nil }
			go b.call("1", key, "a")
			<-running
		}, want: "Aborted IN_FLIGHT may have executed", greedy: 3, usual: 3},
		{name: "unknown", md: []string{key, "a"}, before: func(b *bench) {
			b.charge = func(ctx context.Context, _ string) (proto.Message, error) {
				stet.FromContext(ctx).Declare(stet.MayHaveExecuted, 0)
				return nil, errors.New("no answer")
			}
			b.call("1", key, "a")
		}, want: "Unknown OUTCOME_UNKNOWN may have executed", greedy: 3, usual: 1},
		{name: "store down", md: []string{key, "a"}, before: func(b *bench) { _ = b.engine.Close() },
			want: "Unavailable STORE_UNAVAILABLE not executed", greedy: 3, usual: 3},
		{name: "not executed", md: []string{key, "a"}, before: func(b *bench) {
			b.charge = func(context.Context, string) (proto.Message, error) { return nil, stet.Retryable(errors.New("busy")) }
		}, want: "Unavailable NOT_EXECUTED not executed", greedy: 3, usual: 3},
		{name: "released, in the handler's words", md: []string{key, "a"}, before: func(b *bench) {
			b.charge = func(context.Context, string) (proto.Message, error) {
				return nil, stet.Retryable(status.Error(codes.Unavailable, "busy"))
			}
		}, want: "Unavailable", greedy: 3, usual: 3},
		{name: "failed", md: []string{key, "a"}, before: func(b *bench) {
			b.charge = func(context.Context, string) (proto.Message, error) { return nil, status.Error(codes.Unavailable, "") }
		}, want: "Unavailable", greedy: 1, usual: 1},
		{name: "expired", md: []string{key, "a"}, before: func(b *bench) { settled(b, stet.Outcome{Gone: true}) }, want: "FailedPrecondition RESULT_EXPIRED executed", greedy: 1, usual: 1},
		{name: "foreign", md: []string{key, "a"}, before: func(b *bench) {
			settled(b, stet.Outcome{Adapter: store.AdapterHTTP, Status: 200, Type: "text/html", Body: []byte("<p>")})
		}, want: "FailedPrecondition RESULT_FOREIGN executed", greedy: 1, usual: 1},
		{name: "panicked", md: []string{key, "a"}, before: func(b *bench) { settled(b, stet.Outcome{Failed: true, Reason: store.ReasonPanicked}) },
			want: "Internal HANDLER_PANICKED may have executed", greedy: 1, usual: 1},
		{name: "timed out", md: []string{key, "a"}, before: func(b *bench) { settled(b, stet.Outcome{Failed: true, Reason: store.ReasonTimedOut}) },
			want: "DeadlineExceeded PROCESSING_TIMED_OUT may have executed", greedy: 1, usual: 1},
	}
}

// TestTheTableOfCodes makes each refusal before a client with gRPC's own retry policy:
// the table of docs/adapters/grpc.md must be right.
func TestTheTableOfCodes(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "adapters", "grpc.md"))
	if err != nil {
		t.Fatal(err)
	}
	running, finish := make(chan struct{}), make(chan struct{})
	defer close(finish)
	for _, c := range refusals(running, finish) {
		t.Run(c.name, func(t *testing.T) {
			for policy, want := range map[string]int{greedy: c.greedy, usual: c.usual} {
				b := newBench(t, stetgrpc.Options{}, stet.Options{})
				b.i.SetRetryAfter(time.Millisecond)
				if c.before != nil {
					c.before(b)
				}
				var tr tries
				s := grpc.NewServer(append([]grpc.ServerOption{grpc.ChainUnaryInterceptor(tr.around)}, b.i.ServerOptions()...)...)
				s.RegisterService(unaryDesc(), b.payments)
				b.conn = connect(t, s, grpc.WithDefaultServiceConfig(policy))
				a := b.call("1", c.md...)
				b.want(a, c.want)
				if got := int(tr.n.Load()); got != want {
					t.Errorf("gRPC made %d attempts; want %d", got, want)
				}
				if said, ok := rpc.ReadStatus(a.st.Proto()); ok {
					if !strings.Contains(string(page), "`"+said.Reason+"`") {
						t.Errorf("docs/adapters/grpc.md has no %s", said.Reason)
					}
					if a.st.Code() == codes.Unavailable && said.Execution != stet.NotExecuted {
						t.Error("UNAVAILABLE, and not: not executed")
					}
				}
			}
		})
	}
}

// settled settles the operation that call("1", key, "a") names.
func settled(b *bench, out stet.Outcome) {
	b.t.Helper()
	req, err := rpc.Marshal(wrapperspb.String("1"))
	if err != nil {
		b.t.Fatal(err)
	}
	settledAs(b, stet.NewFingerprint([]byte(charge), req), out)
}

func settledAs(b *bench, fp store.Fingerprint, out stet.Outcome) {
	b.t.Helper()
	run, err := b.engine.Begin(b.t.Context(), stet.Op{Scope: "single-tenant", Key: "a", Fingerprint: fp})
	if err == nil {
		err = run.Settle(b.t.Context(), out)
	}
	if err != nil {
		b.t.Fatal(err)
	}
}

func TestARetryOfGRPCsOwnGetsTheOutcome(t *testing.T) {
	b := newBench(t, stetgrpc.Options{}, stet.Options{}, grpc.WithDefaultServiceConfig(usual))
	b.i.SetRetryAfter(time.Millisecond)
	b.charge = func(context.Context, string) (proto.Message, error) {
		if b.runs.Load() < 3 {
			return nil, stet.Retryable(errors.New("busy"))
		}
		return wrapperspb.String("one"), nil
	}
	b.want(b.call("1", key, "k"), "one")
	b.wantRuns(3)
}
