// Package shoppb is what protoc would generate, for examples and tests, of
//
//	package shop;
//	service Payments {
//	  rpc Charge(google.protobuf.Int64Value) returns (google.protobuf.StringValue);
//	}
package shoppb

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

const method = "/shop.Payments/Charge"

// PaymentsServer is the service.
type PaymentsServer interface {
	Charge(context.Context, *wrapperspb.Int64Value) (*wrapperspb.StringValue, error)
}

// UnimplementedPaymentsServer is for services to embed.
type UnimplementedPaymentsServer struct{}

// Charge implements PaymentsServer.
func (UnimplementedPaymentsServer) Charge(context.Context, *wrapperspb.Int64Value) (*wrapperspb.StringValue, error) {
	return nil, status.Error(codes.Unimplemented, "method Charge not implemented")
}

// RegisterPaymentsServer registers the service.
func RegisterPaymentsServer(s grpc.ServiceRegistrar, srv PaymentsServer) {
	s.RegisterService(&grpc.ServiceDesc{ServiceName: "shop.Payments", HandlerType: (*PaymentsServer)(nil),
		Methods: []grpc.MethodDesc{{MethodName: "Charge", Handler: charge}}}, srv)
}

func charge(srv any, ctx context.Context, dec func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
	in := new(wrapperspb.Int64Value)
	if err := dec(in); err != nil {
		return nil, err
	}
	handler := func(ctx context.Context, req any) (any, error) {
		return srv.(PaymentsServer).Charge(ctx, req.(*wrapperspb.Int64Value))
	}
	if interceptor == nil {
		return handler(ctx, in)
	}
	return interceptor(ctx, in, &grpc.UnaryServerInfo{Server: srv, FullMethod: method}, handler)
}

// PaymentsClient is a client of the service.
type PaymentsClient struct{ cc grpc.ClientConnInterface }

// NewPaymentsClient returns a client.
func NewPaymentsClient(cc grpc.ClientConnInterface) PaymentsClient { return PaymentsClient{cc} }

// Charge calls the method.
func (c PaymentsClient) Charge(ctx context.Context, in *wrapperspb.Int64Value, opts ...grpc.CallOption) (*wrapperspb.StringValue, error) {
	out := new(wrapperspb.StringValue)
	if err := c.cc.Invoke(ctx, method, in, out, opts...); err != nil {
		return nil, err
	}
	return out, nil
}
