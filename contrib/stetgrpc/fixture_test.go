package stetgrpc_test

import (
	"context"
	"log/slog"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/contrib/stetgrpc"
	"github.com/stet-go/stet/internal/rpc"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// payments is a service as a program would have it from its .proto file, by hand.
type payments struct {
	runs   atomic.Int64
	charge func(ctx context.Context, amount string) (proto.Message, error)
}

const (
	charge = "/test.Payments/Charge" // StringValue to any message
	watch  = "/test.Payments/Watch"  // a stream of them
)

func (p *payments) do(ctx context.Context, amount string) (proto.Message, error) {
	p.runs.Add(1)
	if p.charge != nil {
		return p.charge(ctx, amount)
	}
	return wrapperspb.String("charged " + amount), nil
}

var paymentsDesc = desc("test.Payments")

// desc describes a service of that name.
func desc(service string) grpc.ServiceDesc {
	return grpc.ServiceDesc{ServiceName: service, HandlerType: (*any)(nil), Streams: []grpc.StreamDesc{{StreamName: "Watch", ServerStreams: true, Handler: watches}},
		Methods: []grpc.MethodDesc{{MethodName: "Charge", Handler: func(srv any, ctx context.Context, dec func(any) error, ic grpc.UnaryServerInterceptor) (any, error) {
			in := new(wrapperspb.StringValue)
			if err := dec(in); err != nil {
				return nil, err
			}
			handler := func(ctx context.Context, req any) (any, error) {
				m, err := srv.(*payments).do(ctx, req.(*wrapperspb.StringValue).GetValue())
				if m == nil {
					return nil, err
				}
				return m, err
			}
			if ic == nil {
				return handler(ctx, in)
			}
			return ic(ctx, in, &grpc.UnaryServerInfo{Server: srv, FullMethod: "/" + service + "/Charge"}, handler)
		}}}}
}

func watches(srv any, ss grpc.ServerStream) error {
	m := new(wrapperspb.StringValue)
	if err := ss.RecvMsg(m); err != nil {
		return err
	}
	srv.(*payments).runs.Add(1)
	return ss.SendMsg(m)
}

// unaryDesc is the service without its streaming method.
func unaryDesc() *grpc.ServiceDesc {
	d := paymentsDesc
	d.Streams = nil
	return &d
}

// bench is a server, and a client of it.
type bench struct {
	*payments
	t      testing.TB
	engine *stet.Engine
	events *stettest.Events
	log    *stettest.Log
	conn   *grpc.ClientConn
	server *grpc.Server
	i      *stetgrpc.Interceptor
	method string
}

// start serves payments over an interceptor.
func start(t testing.TB, i *stetgrpc.Interceptor, p *payments, desc *grpc.ServiceDesc, dial ...grpc.DialOption) (*grpc.Server, *grpc.ClientConn) {
	t.Helper()
	s := grpc.NewServer(i.ServerOptions()...)
	s.RegisterService(desc, p)
	return s, connect(t, s, dial...)
}

// connect serves s, and returns a client of it.
func connect(t testing.TB, s *grpc.Server, dial ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	l := bufconn.Listen(1 << 20)
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(l) }()
	dial = append([]grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) })}, dial...)
	conn, err := grpc.NewClient("passthrough:///bufconn", dial...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(); s.Stop(); <-done })
	return conn
}

// newBench returns a server in lease mode over memory. Zero options are filled in.
func newBench(t testing.TB, o stetgrpc.Options, eo stet.Options, dial ...grpc.DialOption) *bench {
	t.Helper()
	return benchOver(t, memory.New(memory.Options{}), o, eo, dial...)
}

func benchOver(t testing.TB, s store.Store, o stetgrpc.Options, eo stet.Options, dial ...grpc.DialOption) *bench {
	t.Helper()
	b := &bench{payments: &payments{}, method: charge, t: t, events: &stettest.Events{}, log: &stettest.Log{}}
	eo.Observer = b.events
	b.engine = stettest.Engine(t, s, eo)
	b.i = stetgrpc.Must(stetgrpc.New(b.engine, b.options(o)))
	b.server, b.conn = start(t, b.i, b.payments, unaryDesc(), dial...)
	return b
}

func (b *bench) options(o stetgrpc.Options) stetgrpc.Options {
	if o.Scope == nil {
		o.Scope = stetgrpc.SingleTenant
	}
	o.ErrorLog = slog.New(slog.NewTextHandler(b.log, nil))
	return o
}

// answer is all that a client sees.
type answer struct {
	value           string // of a success
	raw             []byte
	st              *status.Status
	header, trailer metadata.MD
}

// code is the code's name, or the value of a success; and the reason and execution, if
// stet words them.
func (a answer) code() string {
	if a.st.Code() == codes.OK {
		return a.value
	}
	if said, ok := rpc.ReadStatus(a.st.Proto()); ok {
		return a.st.Code().String() + " " + said.Reason + " " + said.Execution.String()
	}
	return a.st.Code().String()
}

// raw is a message that keeps its bytes.
type rawCodec struct{}

func (rawCodec) Name() string { return "proto" }
func (rawCodec) Marshal(v any) ([]byte, error) {
	return proto.Marshal(v.(proto.Message))
}
func (rawCodec) Unmarshal(b []byte, v any) error { *v.(*[]byte) = b; return nil }

// call makes a call with metadata: names and values.
func (b *bench) call(amount string, md ...string) answer {
	return b.callCtx(b.t.Context(), amount, md...)
}

func (b *bench) callCtx(ctx context.Context, amount string, md ...string) answer {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	return invoke(ctx, b.conn, b.method, wrapperspb.String(amount), md...)
}

func invoke(ctx context.Context, conn *grpc.ClientConn, method string, req proto.Message, md ...string) answer {
	var a answer
	err := conn.Invoke(metadata.AppendToOutgoingContext(ctx, md...), method, req, &a.raw,
		grpc.Header(&a.header), grpc.Trailer(&a.trailer), grpc.ForceCodec(rawCodec{}))
	a.st = status.Convert(err)
	var v wrapperspb.StringValue
	if err == nil && proto.Unmarshal(a.raw, &v) == nil {
		a.value = v.GetValue()
	}
	return a
}

const key = stetgrpc.KeyMetadata

func (b *bench) want(a answer, want string) {
	b.t.Helper()
	if got := a.code(); got != want {
		b.t.Errorf("got %s: %s; want %s\n%s", got, a.st.Message(), want, b.log)
	}
}

func (b *bench) wantRuns(n int64) {
	b.t.Helper()
	if got := b.runs.Load(); got != n {
		b.t.Errorf("the handler ran %d times; want %d", got, n)
	}
}

func anyStruct(t testing.TB) *structpb.Struct {
	t.Helper()
	s, err := structpb.NewStruct(map[string]any{"a": 1, "b": 2, "c": 3, "d": 4, "e": 5, "f": 6})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// handler is the handler that an interceptor is given.
func (b *bench) handler(ctx context.Context, req any) (any, error) {
	return b.do(ctx, req.(*wrapperspb.StringValue).GetValue())
}
