package around

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/contrib/stetconnect"
	"github.com/stet-go/stet/contrib/stetgrpc"
	"github.com/stet-go/stet/store/memory"
)

// both serves one procedure by gRPC for Go and by Connect, over one engine.
type both struct {
	executed int
	declines bool
	grpc     *grpc.ClientConn
	connect  *httptest.Server
}

// charge is the procedure: a receipt, or an error with a detail.
func (b *both) charge(amount string) (*wrapperspb.StringValue, *status.Status) {
	b.executed++
	if !b.declines {
		return wrapperspb.String("charge " + strconv.Itoa(b.executed) + " of " + amount), nil
	}
	st, err := status.New(codes.FailedPrecondition, "declined: 100 % ü").WithDetails(&errdetails.ErrorInfo{Reason: "DECLINED", Domain: "bank"})
	if err != nil {
		panic(err)
	}
	return nil, st
}

var raw = string([]byte{0, 255, 'x'})

func newBoth(t *testing.T) *both {
	t.Helper()
	engine, err := stet.New(memory.New(memory.Options{}), stet.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = engine.Close() })
	b := &both{}
	b.grpc = b.serveGRPC(t, stetgrpc.Must(stetgrpc.New(engine, stetgrpc.Options{Scope: stetgrpc.SingleTenant})))
	b.connect = b.serveConnect(t, stetconnect.Must(stetconnect.New(engine, stetconnect.Options{Scope: stetconnect.SingleTenant})))
	return b
}

func (b *both) serveGRPC(t *testing.T, i *stetgrpc.Interceptor) *grpc.ClientConn {
	t.Helper()
	server := grpc.NewServer(i.ServerOptions()...)
	server.RegisterService(&grpc.ServiceDesc{ServiceName: "payments.v1.Payments", HandlerType: (*any)(nil), Methods: []grpc.MethodDesc{{MethodName: "Charge",
		Handler: func(_ any, ctx context.Context, dec func(any) error, around grpc.UnaryServerInterceptor) (any, error) {
			in := new(wrapperspb.StringValue)
			if err := dec(in); err != nil {
				return nil, err
			}
			return around(ctx, in, &grpc.UnaryServerInfo{FullMethod: chargePath}, func(ctx context.Context, req any) (any, error) {
				_ = grpc.SetHeader(ctx, metadata.Pairs("x-receipt", "1", "x-raw-bin", raw))
				_ = grpc.SetTrailer(ctx, metadata.Pairs("x-sum", "2"))
				res, st := b.charge(req.(*wrapperspb.StringValue).GetValue())
				if st != nil {
					return nil, st.Err()
				}
				return res, nil
			})
		}}}}, struct{}{})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(); server.Stop(); <-served })
	return conn
}

func (b *both) serveConnect(t *testing.T, i *stetconnect.Interceptor) *httptest.Server {
	t.Helper()
	mux := http.NewServeMux()
	mux.Handle(chargePath, connect.NewUnaryHandler(chargePath, func(_ context.Context, req *connect.Request[wrapperspb.StringValue]) (*connect.Response[wrapperspb.StringValue], error) {
		msg, st := b.charge(req.Msg.GetValue())
		if st != nil {
			e := connect.NewError(connect.Code(st.Code()), errors.New(st.Message()))
			for _, d := range st.Details() {
				if detail, err := connect.NewErrorDetail(d.(proto.Message)); err == nil {
					e.AddDetail(detail)
				}
			}
			e.Meta().Set("X-Sum", "2")
			return nil, e
		}
		res := connect.NewResponse(msg)
		res.Header().Set("X-Receipt", "1")
		res.Header().Set("X-Raw-Bin", connect.EncodeBinaryHeader([]byte(raw)))
		res.Trailer().Set("X-Sum", "2")
		return res, nil
	}, connect.WithInterceptors(i)))
	srv := httptest.NewUnstartedServer(mux)
	srv.EnableHTTP2 = true
	srv.StartTLS()
	t.Cleanup(srv.Close)
	return srv
}

// answer is what any of the clients got.
type answer struct {
	text, receipt, raw, sum, code, reason string
	replayed                              bool
}

func (b *both) byGRPC(t *testing.T, conn *grpc.ClientConn) (a answer) {
	t.Helper()
	var header, trailer metadata.MD
	res := new(wrapperspb.StringValue)
	ctx := metadata.AppendToOutgoingContext(t.Context(), "idempotency-key", "k")
	err := conn.Invoke(ctx, chargePath, wrapperspb.String("10"), res, grpc.Header(&header), grpc.Trailer(&trailer))
	get := func(name string) string {
		if v := append(header.Get(name), trailer.Get(name)...); len(v) == 1 {
			return v[0]
		}
		return ""
	}
	st := status.Convert(err)
	a = answer{text: res.GetValue() + st.Message(), sum: get("x-sum"), code: st.Code().String(), replayed: get("idempotent-replayed") == "true"}
	if err == nil {
		a.receipt, a.raw = get("x-receipt"), get("x-raw-bin")
	}
	for _, d := range st.Details() {
		a.reason += d.(*errdetails.ErrorInfo).GetReason()
	}
	return a
}

func (b *both) byConnect(t *testing.T, protocol connect.ClientOption) (a answer) {
	t.Helper()
	client := connect.NewClient[wrapperspb.StringValue, wrapperspb.StringValue](b.connect.Client(), b.connect.URL+chargePath, protocol)
	req := connect.NewRequest(wrapperspb.String("10"))
	req.Header().Set("Idempotency-Key", `"k"`)
	res, err := client.CallUnary(t.Context(), req)
	if err == nil {
		b, err := connect.DecodeBinaryHeader(res.Header().Get("X-Raw-Bin"))
		if err != nil {
			t.Error(err)
		}
		return answer{res.Msg.GetValue(), res.Header().Get("X-Receipt"), string(b), res.Trailer().Get("X-Sum"), "OK", "", res.Header().Get("Idempotent-Replayed") == "true"}
	}
	e, ok := errors.AsType[*connect.Error](err)
	if !ok {
		t.Fatal(err)
	}
	a = answer{text: e.Message(), sum: e.Meta().Get("X-Sum"), code: codes.Code(e.Code()).String(), replayed: e.Meta().Get("Idempotent-Replayed") == "true"}
	for _, d := range e.Details() {
		if m, err := d.Value(); err == nil {
			a.reason += m.(*errdetails.ErrorInfo).GetReason()
		}
	}
	return a
}

// What one server has executed, the other replays as it was, to every kind of client.
func TestConnectAndGRPCReplayEachOther(t *testing.T) {
	for name, declines := range map[string]bool{"response": false, "error": true} {
		for _, connectFirst := range []bool{false, true} {
			t.Run(name+map[bool]string{false: " of gRPC", true: " of Connect"}[connectFirst], func(t *testing.T) {
				b := newBoth(t)
				b.declines = declines
				want := answer{text: "charge 1 of 10", receipt: "1", raw: raw, sum: "2", code: "OK"}
				if declines {
					want = answer{text: "declined: 100 % ü", sum: "2", code: "FailedPrecondition", reason: "DECLINED"}
				}
				first := func() answer { return b.byGRPC(t, b.grpc) }
				if connectFirst {
					first = func() answer { return b.byConnect(t, connect.WithGRPC()) }
				}
				if got := first(); got != want {
					t.Fatalf("first\n%+v; want\n%+v", got, want)
				}
				want.replayed = true
				for protocol, option := range protocols() {
					if got := b.byConnect(t, option); got != want {
						t.Errorf("%s\n%+v; want\n%+v", protocol, got, want)
					}
				}
				// A client of gRPC for Go, of either server.
				tls, err := grpc.NewClient(b.connect.Listener.Addr().String(), grpc.WithTransportCredentials(credentials.NewTLS(b.connect.Client().Transport.(*http.Transport).TLSClientConfig)))
				if err != nil {
					t.Fatal(err)
				}
				defer tls.Close()
				for server, conn := range map[string]*grpc.ClientConn{"gRPC": b.grpc, "Connect": tls} {
					if got := b.byGRPC(t, conn); got != want {
						t.Errorf("gRPC for Go at %s\n%+v; want\n%+v", server, got, want)
					}
				}
				if b.executed != 1 {
					t.Errorf("executed %d times", b.executed)
				}
			})
		}
	}
}
