package stetgrpc_test

import (
	"context"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/contrib/stetgrpc"
	"github.com/stet-go/stet/contrib/stetgrpc/internal/shoppb"
	"github.com/stet-go/stet/store/memory"
)

type shop struct {
	shoppb.UnimplementedPaymentsServer
	charges int
}

func (s *shop) Charge(_ context.Context, amount *wrapperspb.Int64Value) (*wrapperspb.StringValue, error) {
	if amount.GetValue() > 1000 {
		return nil, status.Error(codes.OutOfRange, "too much")
	}
	s.charges++
	return wrapperspb.String(fmt.Sprintf("receipt %d for %d", s.charges, amount.GetValue())), nil
}

// A call and its retries have one key, and run once.
func Example() {
	engine, _ := stet.New(memory.New(memory.Options{}), stet.Options{})
	defer engine.Close()
	idem := stetgrpc.Must(stetgrpc.New(engine, stetgrpc.Options{Scope: stetgrpc.SingleTenant, Wait: 5 * time.Second}))
	server := grpc.NewServer(idem.ServerOptions()...)
	shoppb.RegisterPaymentsServer(server, &shop{})
	if err := idem.Check(server); err != nil {
		fmt.Println(err)
		return
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Println(err)
		return
	}
	go func() { _ = server.Serve(listener) }()
	defer server.Stop()

	retries := stetgrpc.Must(stetgrpc.ClientInterceptor(stetgrpc.ClientOptions{}))
	conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithUnaryInterceptor(retries))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer conn.Close()
	client := shoppb.NewPaymentsClient(conn)
	charge := func(key string, amount int64) {
		receipt, err := client.Charge(stetgrpc.WithKey(context.Background(), key), wrapperspb.Int64(amount))
		fmt.Printf("%q %v (%v)\n", receipt.GetValue(), status.Code(err), stetgrpc.ExecutionOf(err))
	}
	charge("order-7", 100)
	charge("order-7", 100)
	charge("order-7", 200)
	charge("order-8", 5000)
	charge("order-8", 5000)
	// Output:
	// "receipt 1 for 100" OK (executed)
	// "receipt 1 for 100" OK (executed)
	// "" FailedPrecondition (not executed)
	// "" OutOfRange (executed)
	// "" OutOfRange (executed)
}
