package stetgrpc_test

import (
	"bytes"
	"context"
	"errors"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/contrib/stetgrpc"
	"github.com/stet-go/stet/internal/rpc"
	"github.com/stet-go/stet/store"
)

// same fails unless a replay is the first answer, byte for byte, and marked.
func (b *bench) same(first, replay answer) {
	b.t.Helper()
	if !bytes.Equal(first.raw, replay.raw) || !proto.Equal(first.st.Proto(), replay.st.Proto()) {
		b.t.Errorf("first  %x %v\nreplay %x %v", first.raw, first.st.Proto(), replay.raw, replay.st.Proto())
	}
	marked := replay.trailer
	if replay.st.Code() == codes.OK {
		marked = replay.header
	}
	if got := marked.Get(stetgrpc.ReplayedMetadata); len(got) != 1 || got[0] != "true" {
		b.t.Errorf("the replay is not marked: %v %v", replay.header, replay.trailer)
	}
	delete(marked, stetgrpc.ReplayedMetadata)
	if !reflect.DeepEqual(first.header, replay.header) || !reflect.DeepEqual(first.trailer, replay.trailer) {
		b.t.Errorf("first  %v %v\nreplay %v %v", first.header, first.trailer, replay.header, replay.trailer)
	}
}

func TestAReplayIsTheFirstAnswerByteForByte(t *testing.T) {
	set := func(ctx context.Context) {
		_ = grpc.SetHeader(ctx, metadata.Pairs("a", "1", "b-bin", "\x00\xff"))
		_ = grpc.SendHeader(ctx, metadata.Pairs("a", "2"))
		_ = grpc.SetTrailer(ctx, metadata.Pairs("c", "3", "c", "3", "d-bin", ""))
	}
	detailed, err := status.New(codes.OutOfRange, "no\n100 % ünïcode").WithDetails(wrapperspb.String("d"), &errdetails.BadRequest{FieldViolations: []*errdetails.BadRequest_FieldViolation{{Field: "amount"}}})
	if err != nil {
		t.Fatal(err)
	}
	for name, fn := range map[string]func(context.Context, string) (proto.Message, error){
		"value": func(context.Context, string) (proto.Message, error) { return wrapperspb.String("v"), nil },
		"empty": func(context.Context, string) (proto.Message, error) { return wrapperspb.String(""), nil },
		"metadata": func(ctx context.Context, _ string) (proto.Message, error) {
			set(ctx)
			return wrapperspb.String("v"), nil
		},
		"a map":   func(ctx context.Context, _ string) (proto.Message, error) { set(ctx); return anyStruct(t), nil },
		"details": func(ctx context.Context, _ string) (proto.Message, error) { set(ctx); return nil, detailed.Err() },
		"a wrapped status": func(context.Context, string) (proto.Message, error) {
			return nil, errors.Join(errors.New("x"), status.Error(codes.NotFound, "y"))
		},
		"a permanent one": func(context.Context, string) (proto.Message, error) { return nil, stet.Permanent(detailed.Err()) },
		"plain error":     func(context.Context, string) (proto.Message, error) { return nil, errors.New("boom") },
		"unavailable":     func(context.Context, string) (proto.Message, error) { return nil, status.Error(codes.Unavailable, "") },
		"unknown code":    func(context.Context, string) (proto.Message, error) { return nil, status.Error(99, "?") },
		"no message":      func(context.Context, string) (proto.Message, error) { return nil, nil },
		"unknown fields": func(context.Context, string) (proto.Message, error) {
			m := wrapperspb.String("v")
			m.ProtoReflect().SetUnknown([]byte{0xf8, 0x07, 0x01})
			return m, nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, stetgrpc.Options{}, stet.Options{})
			b.charge = fn
			first := b.call("1", key, "k")
			for range 20 { // a map has one order in 720 at random
				b.same(first, b.call("1", key, `"k"`))
			}
			b.wantRuns(1)
			switch name {
			case "details", "a permanent one":
				if !proto.Equal(first.st.Proto(), detailed.Proto()) {
					t.Errorf("%v", first.st.Proto())
				}
			case "metadata":
				if got := first.header.Get("a"); !reflect.DeepEqual(got, []string{"1", "2"}) || first.header.Get("b-bin")[0] != "\x00\xff" || len(first.trailer.Get("c")) != 2 {
					t.Errorf("%v %v", first.header, first.trailer)
				}
			}
		})
	}
}

func TestRefusedCallRunsNothing(t *testing.T) {
	for name, c := range map[string]struct {
		o    stetgrpc.Options
		md   []string
		want string
	}{
		"no key":          {want: "InvalidArgument KEY_MISSING not executed"},
		"two keys":        {md: []string{key, "a", key, "b"}, want: "InvalidArgument KEY_REPEATED not executed"},
		"the same, twice": {md: []string{key, "a", key, "a"}, want: "InvalidArgument KEY_REPEATED not executed"},
		"joined":          {md: []string{key, "a,b"}, want: "InvalidArgument KEY_INVALID not executed"},
		"too long":        {md: []string{key, strings.Repeat("k", 256)}, want: "InvalidArgument KEY_INVALID not executed"},
		"misplaced":       {md: []string{"x-idempotency-key", "a"}, want: "InvalidArgument KEY_MISPLACED not executed"},
		"misplaced, and optional": {o: stetgrpc.Options{Optional: true}, md: []string{"idempotency-key-bin", "a"},
			want: "InvalidArgument KEY_MISPLACED not executed"},
		"no scope": {o: stetgrpc.Options{Scope: func(context.Context, *stetgrpc.Call) (string, error) { return "", nil }},
			md: []string{key, "a"}, want: "PermissionDenied SCOPE_MISSING not executed"},
		"scope failed": {o: stetgrpc.Options{Scope: func(context.Context, *stetgrpc.Call) (string, error) { return "", errors.New("x") }},
			md: []string{key, "a"}, want: "Internal SCOPE_FAILED not executed"},
		"scope has a status": {o: stetgrpc.Options{Scope: func(context.Context, *stetgrpc.Call) (string, error) {
			return "", status.Error(codes.Unauthenticated, "who?")
		}}, md: []string{key, "a"}, want: "Unauthenticated"},
		"scope too long": {o: stetgrpc.Options{Scope: func(context.Context, *stetgrpc.Call) (string, error) {
			return strings.Repeat("s", store.MaxScope+1), nil
		}}, md: []string{key, "a"}, want: "PermissionDenied SCOPE_TOO_LONG not executed"},
		"no such class": {o: stetgrpc.Options{Class: func(context.Context, *stetgrpc.Call) string { return "nope" }},
			md: []string{key, "a"}, want: "Internal MISCONFIGURED not executed"},
		"not protected": {o: stetgrpc.Options{Methods: []string{"/test.Payments/Other"}},
			md: []string{key, "a"}, want: "FailedPrecondition METHOD_UNPROTECTED not executed"},
		"fingerprint": {o: stetgrpc.Options{Fingerprint: func(context.Context, *stetgrpc.Call) (store.Fingerprint, error) {
			return store.Fingerprint{}, errors.New("no amount")
		}}, md: []string{key, "a"}, want: "InvalidArgument REQUEST_INDIGESTIBLE not executed"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, c.o, stet.Options{})
			b.want(b.call("1", c.md...), c.want)
			b.wantRuns(0)
			if n := len(b.events.List()); n > 0 {
				t.Errorf("the store was asked: %d events", n)
			}
		})
	}
}

func TestARequestWithFieldsThatTheServerDoesNotKnowIsRefused(t *testing.T) {
	b := newBench(t, stetgrpc.Options{}, stet.Options{})
	m := wrapperspb.String("1")
	m.ProtoReflect().SetUnknown([]byte{0xf8, 0x07, 0x01})
	b.want(invoke(t.Context(), b.conn, charge, m, key, "k"), "InvalidArgument REQUEST_INDIGESTIBLE not executed")
	b.wantRuns(0)
}

func TestARequestThatIsNoMessageIsRefused(t *testing.T) {
	i := stetgrpc.Must(stetgrpc.New(newBench(t, stetgrpc.Options{}, stet.Options{}).engine, stetgrpc.Options{Scope: stetgrpc.SingleTenant}))
	ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs(key, "k"))
	_, err := i.Unary()(ctx, struct{ Amount int }{1}, &grpc.UnaryServerInfo{FullMethod: "/json.Service/Do"}, func(context.Context, any) (any, error) {
		t.Error("it ran")
		return nil, nil
	})
	if status.Code(err) != codes.InvalidArgument || stetgrpc.ExecutionOf(err) != stet.NotExecuted || !strings.Contains(err.Error(), "Options.Fingerprint") {
		t.Error(err)
	}
}

func TestUnprotectedCallRunsEachTime(t *testing.T) {
	for name, c := range map[string]struct {
		o  stetgrpc.Options
		md []string
	}{
		"optional":            {o: stetgrpc.Options{Optional: true}},
		"unprotected":         {o: stetgrpc.Options{Unprotected: []string{"/test.Payments/Charge"}}, md: []string{key, "k"}},
		"unprotected service": {o: stetgrpc.Options{Unprotected: []string{"test.Payments"}}, md: []string{key, "k"}},
		"another method":      {o: stetgrpc.Options{Methods: []string{"other.Service"}}},
	} {
		b := newBench(t, c.o, stet.Options{})
		b.want(b.call("1", c.md...), "charged 1")
		b.want(b.call("1", c.md...), "charged 1")
		b.wantRuns(2)
		_ = name
	}
}

func TestAKeyIsOfOneRequestAndOneScope(t *testing.T) {
	who := "a"
	b := newBench(t, stetgrpc.Options{Scope: func(context.Context, *stetgrpc.Call) (string, error) { return who, nil }}, stet.Options{})
	b.want(b.call("1", key, "k"), "charged 1")
	b.want(b.call("2", key, "k"), "FailedPrecondition MISMATCH not executed")
	who = "b"
	b.want(b.call("2", key, "k"), "charged 2")
	b.wantRuns(2)
}

func TestDuplicatesOfACallInFlight(t *testing.T) {
	for name, wait := range map[string]time.Duration{"refused": 0, "wait": time.Minute} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, stetgrpc.Options{Wait: wait}, stet.Options{})
			b.i.SetRetryAfter(3 * time.Second)
			running, finish := make(chan struct{}), make(chan struct{})
			b.charge = func(ctx context.Context, _ string) (proto.Message, error) {
				close(running)
				_ = grpc.SendHeader(ctx, metadata.Pairs("early", "1"))
				<-finish
				return wrapperspb.String("one"), nil
			}
			answers := make(chan answer, 21)
			go func() { answers <- b.call("1", key, "k") }()
			<-running
			b.want(b.call("2", key, "k"), "FailedPrecondition MISMATCH not executed")
			if wait == 0 {
				a := b.call("1", key, "k")
				b.want(a, "Aborted IN_FLIGHT may have executed")
				if said, _ := rpc.ReadStatus(a.st.Proto()); said.After != 3*time.Second || a.trailer.Get(rpc.PushbackName)[0] != "3000" {
					t.Errorf("ask again after %v, %v", said.After, a.trailer)
				}
			}
			for range 20 * min(int(wait), 1) {
				go func() { answers <- b.call("1", key, "k") }()
			}
			close(finish)
			b.want(<-answers, "one")
			for range 20 * min(int(wait), 1) {
				b.want(<-answers, "one")
			}
			b.wantRuns(1)
		})
	}
}

func TestDuplicateGetsAResponseWithinItsDeadline(t *testing.T) {
	b := newBench(t, stetgrpc.Options{}, stet.Options{Policy: stet.Policy{Wait: time.Minute}})
	running, finish := make(chan struct{}), make(chan struct{})
	b.charge = func(context.Context, string) (proto.Message, error) {
		close(running)
		<-finish
		return wrapperspb.String("one"), nil
	}
	first := make(chan answer)
	go func() { first <- b.call("1", key, "k") }()
	<-running
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	b.want(b.callCtx(ctx, "1", key, "k"), "Aborted IN_FLIGHT may have executed")
	close(finish)
	b.want(<-first, "one")
}

func TestAClientThatLeavesDoesNotEndTheRun(t *testing.T) {
	b := newBench(t, stetgrpc.Options{Wait: time.Minute}, stet.Options{})
	running, finish, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	b.charge = func(ctx context.Context, _ string) (proto.Message, error) {
		close(running)
		<-finish
		ended <- ctx.Err()
		return wrapperspb.String("one"), nil
	}
	ctx, cancel := context.WithCancel(t.Context())
	left := make(chan answer)
	go func() { left <- b.callCtx(ctx, "1", key, "k") }()
	<-running
	cancel()
	b.want(<-left, "Canceled")
	second := make(chan answer)
	go func() { second <- b.call("1", key, "k") }()
	close(finish)
	if err := <-ended; err != nil {
		t.Errorf("the run's context ended with the client: %v", err)
	}
	b.want(<-second, "one")
	b.wantRuns(1)
}

func TestNothingLeavesBeforeTheOutcomeIsDurable(t *testing.T) {
	b := newBench(t, stetgrpc.Options{}, stet.Options{})
	running, finish := make(chan struct{}), make(chan struct{})
	b.charge = func(ctx context.Context, _ string) (proto.Message, error) {
		if err := grpc.SendHeader(ctx, metadata.Pairs("a", "1")); err != nil {
			t.Error(err)
		}
		if grpc.SetHeader(ctx, metadata.Pairs("b", "2")) == nil {
			t.Error("a header could be set after it was sent")
		}
		close(running)
		<-finish
		return wrapperspb.String("one"), nil
	}
	stream, err := b.conn.NewStream(metadata.AppendToOutgoingContext(t.Context(), key, "k"), &grpc.StreamDesc{}, charge)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(stream.SendMsg(wrapperspb.String("1")), stream.CloseSend()); err != nil {
		t.Fatal(err)
	}
	got := make(chan store.State)
	go func() {
		if md, err := stream.Header(); err != nil || md.Get("a") == nil {
			t.Error(md, err)
		}
		rec, err := b.engine.Store().Read(t.Context(), b.engine.ID("single-tenant", "k"))
		if err != nil {
			t.Error(err)
		}
		got <- rec.State
	}()
	<-running
	close(finish)
	if state := <-got; state != store.Completed {
		t.Errorf("the header came while the operation was %v", state)
	}
	if err := stream.RecvMsg(new(wrapperspb.StringValue)); err != nil {
		t.Error(err)
	}
}

func TestEveryEnding(t *testing.T) {
	denied := status.Error(codes.PermissionDenied, "no")
	for name, c := range map[string]struct {
		fn            func(context.Context, *stet.Run) (proto.Message, error)
		first, second string
		runs          int64
		state         store.State
	}{
		"permission denied": {func(context.Context, *stet.Run) (proto.Message, error) { return nil, denied },
			"PermissionDenied", "charged", 2, store.Completed},
		"retryable status": {func(context.Context, *stet.Run) (proto.Message, error) {
			return nil, stet.Retryable(status.Error(codes.ResourceExhausted, "full"))
		}, "ResourceExhausted", "charged", 2, store.Completed},
		"retryable": {func(context.Context, *stet.Run) (proto.Message, error) {
			return nil, stet.Retryable(errors.New("busy"))
		},
			"Unavailable NOT_EXECUTED not executed", "charged", 2, store.Completed},
		"repeatable": {func(context.Context, *stet.Run) (proto.Message, error) {
			return nil, stet.Repeatable(errors.New("busy"))
		},
			"Aborted MAY_RUN_AGAIN may have executed", "charged", 2, store.Completed},
		"declared": {func(_ context.Context, r *stet.Run) (proto.Message, error) {
			r.Declare(stet.NotExecuted, 0)
			return nil, status.Error(codes.NotFound, "no")
		}, "NotFound", "charged", 2, store.Completed},
		"permanent, and denied": {func(context.Context, *stet.Run) (proto.Message, error) { return nil, stet.Permanent(denied) },
			"PermissionDenied", "PermissionDenied", 1, store.Failed},
		"declared unknown": {func(_ context.Context, r *stet.Run) (proto.Message, error) {
			r.Declare(stet.MayHaveExecuted, 0)
			return nil, status.Error(codes.Unavailable, "no answer")
		}, "Unknown OUTCOME_UNKNOWN may have executed", "Unknown OUTCOME_UNKNOWN may have executed", 1, store.Unknown},
		"its own context": {func(ctx context.Context, _ *stet.Run) (proto.Message, error) {
			<-ctx.Done() // of RunTimeout
			return nil, status.FromContextError(ctx.Err()).Err()
		}, "Unknown OUTCOME_UNKNOWN may have executed", "Unknown OUTCOME_UNKNOWN may have executed", 1, store.Unknown},
		"cancelled by itself": {func(context.Context, *stet.Run) (proto.Message, error) {
			return nil, status.Error(codes.Canceled, "by the bank")
		},
			"Canceled", "Canceled", 1, store.Failed},
		"error with the status OK": {func(context.Context, *stet.Run) (proto.Message, error) { return nil, fine{} },
			"Unknown", "Unknown", 1, store.Failed},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, stetgrpc.Options{}, stet.Options{Policy: stet.Policy{RunTimeout: 300 * time.Millisecond}})
			b.charge = func(ctx context.Context, _ string) (proto.Message, error) {
				if b.runs.Load() > 1 {
					return wrapperspb.String("charged"), nil
				}
				return c.fn(ctx, stet.FromContext(ctx))
			}
			b.want(b.call("1", key, "k"), c.first)
			b.want(b.call("1", key, "k"), c.second)
			b.wantRuns(c.runs)
			rec, err := b.engine.Store().Read(t.Context(), b.engine.ID("single-tenant", "k"))
			if err != nil || rec.State != c.state {
				t.Errorf("the record is %v, %v; want %v", rec.State, err, c.state)
			}
		})
	}
}

// fine is an error with a status that says OK.
type fine struct{}

func (fine) Error() string              { return "not fine" }
func (fine) GRPCStatus() *status.Status { return status.New(codes.OK, "") }

func TestPanicContinuesAndIsNeverRunAgain(t *testing.T) {
	b := newBench(t, stetgrpc.Options{}, stet.Options{})
	b.charge = func(context.Context, string) (proto.Message, error) { panic("out of cash") }
	recovered := make(chan any, 1)
	s := grpc.NewServer(append([]grpc.ServerOption{grpc.ChainUnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, h grpc.UnaryHandler) (_ any, err error) {
		defer func() {
			if v := recover(); v != nil {
				recovered <- v
				err = status.Error(codes.Internal, "recovered")
			}
		}()
		return h(ctx, req)
	})}, b.i.ServerOptions()...)...)
	s.RegisterService(unaryDesc(), b.payments)
	b.conn = connect(t, s)
	b.want(b.call("1", key, "k"), "Internal")
	if v := <-recovered; v != "out of cash" {
		t.Error(v)
	}
	b.want(b.call("1", key, "k"), "Internal HANDLER_PANICKED may have executed")
	b.wantRuns(1)
}

func TestAResponseThatIsTooLargeReachesTheFirstAlone(t *testing.T) {
	b := newBench(t, stetgrpc.Options{}, stet.Options{Policy: stet.Policy{MaxResult: 100}})
	b.charge = func(context.Context, string) (proto.Message, error) {
		return wrapperspb.String(strings.Repeat("x", 200)), nil
	}
	b.want(b.call("1", key, "k"), strings.Repeat("x", 200))
	b.want(b.call("1", key, "k"), "FailedPrecondition RESULT_EXPIRED executed")
	b.wantRuns(1)
}

func TestMethodProtectedTwiceIsRefusedAndItsKeyIsFree(t *testing.T) {
	b := newBench(t, stetgrpc.Options{}, stet.Options{})
	s := grpc.NewServer(grpc.ChainUnaryInterceptor(b.i.Unary(), b.i.Unary()))
	s.RegisterService(unaryDesc(), b.payments)
	once := b.conn
	b.conn = connect(t, s)
	b.want(b.call("1", key, "k"), "Internal PASSED_ON not executed")
	b.wantRuns(0)
	b.conn = once
	b.want(b.call("1", key, "k"), "charged 1")
}

func TestOneOfManyCallersRuns(t *testing.T) {
	b := newBench(t, stetgrpc.Options{Wait: time.Minute}, stet.Options{})
	var all sync.WaitGroup
	for n := range 200 {
		all.Go(func() { b.want(b.call("1", key, "k"+string(rune('0'+n%4))), "charged 1") })
	}
	all.Wait()
	b.wantRuns(4)
}

func TestAStoreThatIsDownIsUNAVAILABLE(t *testing.T) {
	b := newBench(t, stetgrpc.Options{}, stet.Options{})
	_ = b.engine.Close()
	a := b.call("1", key, "k")
	b.want(a, "Unavailable STORE_UNAVAILABLE not executed")
	if len(a.header) > 1 { // content-type
		t.Errorf("a refusal has a header, so that gRPC would not retry it: %v", a.header)
	}
	b.wantRuns(0)
}

func TestWrongOptionsAreRefused(t *testing.T) {
	e := newBench(t, stetgrpc.Options{}, stet.Options{}).engine
	scope := stetgrpc.SingleTenant
	for says, o := range map[string]stetgrpc.Options{
		"Scope is required":  {},
		"not a full method":  {Scope: scope, Methods: []string{"test.Payments/Charge"}},
		"nor a service":      {Scope: scope, Unprotected: []string{""}},
		"Options.Streams":    {Scope: scope, Streams: []string{"test.Payments"}},
		"and in Unprotected": {Scope: scope, Methods: []string{"a.B"}, Unprotected: []string{"a.B"}},
		"Options.Wait is":    {Scope: scope, Wait: store.MaxWait + 1},
	} {
		if _, err := stetgrpc.New(e, o); stet.KindOf(err) != stet.KindInvalid || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", says, err)
		}
	}
	if _, err := stetgrpc.New(nil, stetgrpc.Options{Scope: scope}); stet.KindOf(err) != stet.KindInvalid {
		t.Error(err)
	}
	if _, err := stetgrpc.NewTx[int](nil, stetgrpc.Options{Scope: scope}); stet.KindOf(err) != stet.KindInvalid {
		t.Error(err)
	}
}
