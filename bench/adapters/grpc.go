package main

import (
	"context"
	"encoding/json"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/contrib/stetgrpc"
)

const payMethod = "/bench.Payments/Pay"

// payments is the service, whose messages have the JSON of the others.
var payments = grpc.ServiceDesc{ServiceName: "bench.Payments", HandlerType: (*any)(nil), Methods: []grpc.MethodDesc{{
	MethodName: "Pay",
	Handler: func(srv any, ctx context.Context, decode func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
		in := new(wrapperspb.BytesValue)
		if err := decode(in); err != nil {
			return nil, err
		}
		if interceptor == nil {
			return pay(ctx, in)
		}
		return interceptor(ctx, in, &grpc.UnaryServerInfo{Server: srv, FullMethod: payMethod}, pay)
	},
}}}

func pay(_ context.Context, in any) (any, error) {
	var p payment
	if err := json.Unmarshal(in.(*wrapperspb.BytesValue).GetValue(), &p); err != nil {
		return nil, err
	}
	b, err := json.Marshal(receipt{executed.Add(1), p})
	return wrapperspb.Bytes(b), err
}

func serveGRPC(engine *stet.Engine) (target, error) {
	var options []grpc.ServerOption
	if engine != nil {
		i, err := stetgrpc.New(engine, stetgrpc.Options{Scope: stetgrpc.SingleTenant})
		if err != nil {
			return target{}, err
		}
		options = i.ServerOptions()
	}
	srv := grpc.NewServer(options...)
	srv.RegisterService(&payments, struct{}{})
	t, err := listen("grpc", func(ln net.Listener) { _ = srv.Serve(ln) })
	if err != nil {
		return t, err
	}
	t.dial = func() (caller, error) {
		conn, err := grpc.NewClient("passthrough:///"+t.addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
		return &rpcCaller{conn}, err
	}
	t.close = srv.Stop
	return t, nil
}

// rpcCaller has a connection of its own, as those of HTTP have.
type rpcCaller struct{ conn *grpc.ClientConn }

func (c *rpcCaller) close() { _ = c.conn.Close() }

// call implements caller.
func (c *rpcCaller) call(key string) error {
	ctx := metadata.AppendToOutgoingContext(context.Background(), "idempotency-key", key)
	return c.conn.Invoke(ctx, payMethod, wrapperspb.Bytes(body), new(wrapperspb.BytesValue))
}
