// Package stetgrpc makes retries of gRPC calls safe: it runs the handler of a unary call
// that has an idempotency key once, and gives every retry the same response, or the same
// status with its details, with the same metadata.
//
//	package main
//
//	import (
//		"context"
//		"log"
//		"net"
//
//		"google.golang.org/grpc"
//
//		"github.com/stet-go/stet"
//		"github.com/stet-go/stet/stetgrpc"
//		"github.com/stet-go/stet/store/sqlite"
//		"shop/shoppb" // your generated code
//	)
//
//	type payments struct{ shoppb.UnimplementedPaymentsServer }
//
//	func (payments) Charge(ctx context.Context, r *shoppb.ChargeRequest) (*shoppb.Receipt, error) {
//		return &shoppb.Receipt{Amount: r.Amount}, nil // runs once for a key
//	}
//
//	func main() {
//		store, err := sqlite.Open(context.Background(), "stet.db", sqlite.Options{})
//		if err != nil {
//			log.Fatal(err)
//		}
//		engine, err := stet.New(store, stet.Options{})
//		if err != nil {
//			log.Fatal(err)
//		}
//		idem, err := stetgrpc.New(engine, stetgrpc.Options{Scope: stetgrpc.SingleTenant})
//		if err != nil {
//			log.Fatal(err)
//		}
//		server := grpc.NewServer(idem.ServerOptions()...)
//		shoppb.RegisterPaymentsServer(server, payments{})
//		if err := idem.Check(server); err != nil { // a streaming method would be unprotected
//			log.Fatal(err)
//		}
//		listener, err := net.Listen("tcp", ":8080")
//		if err != nil {
//			log.Fatal(err)
//		}
//		log.Fatal(server.Serve(listener))
//	}
//
// The key is in the metadata idempotency-key; ClientInterceptor puts it there, and retries.
// What the interceptor refuses has a code of gRPC's and an ErrorInfo with a reason and
// whether anything was executed: docs/adapters/grpc.md has the table.
//
// # What a handler notices
//
// Its context is the run's: it does not end when the client leaves, or at the client's
// deadline, but when the lease is lost or the policy's RunTimeout is used up.
// stet.FromContext finds the run in it. Metadata that it sets, and sends, is held back until
// the outcome is durable. grpc.SetSendCompressor finds no stream: set it before, or for
// the server.
//
// A status other than OK is an outcome, too, and is replayed, unless it says that nothing
// was executed: see Options.NotExecuted. An error that is stet.Retryable says so as well.
//
// # What may be around
//
// Interceptors before this one, for authentication, logging or recovery, see each call;
// those after it, and the handler, each operation. The response of a replay is of the
// method's type. Only where a message with these fields would be marshalled to other
// bytes, as with maps, is it an emptypb.Empty with the bytes as unknown fields: do not
// assert the type of a response in front of this interceptor.
package stetgrpc
