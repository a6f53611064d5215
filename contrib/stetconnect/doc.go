// Package stetconnect makes retries of Connect calls safe, in Connect's own protocol, in
// gRPC and in gRPC-Web: it runs the handler of a unary call that has an idempotency key
// once, and gives every retry the same response, or the same error with its details, with
// the same metadata.
//
//	package main
//
//	import (
//		"context"
//		"fmt"
//		"log"
//		"net/http"
//		"net/http/httptest"
//
//		"connectrpc.com/connect"
//		"google.golang.org/protobuf/types/known/wrapperspb"
//
//		"github.com/stet-go/stet"
//		"github.com/stet-go/stet/contrib/stetconnect"
//		"github.com/stet-go/stet/store/memory"
//	)
//
//	func main() {
//		engine, err := stet.New(memory.New(memory.Options{}), stet.Options{}) // a service needs a durable store, such as store/postgres
//		if err != nil {
//			log.Fatal(err)
//		}
//		defer engine.Close()
//		idem, err := stetconnect.New(engine, stetconnect.Options{
//			Scope: func(_ context.Context, req connect.AnyRequest) (string, error) {
//				return req.Header().Get("X-Account"), nil // what authentication has established
//			},
//		})
//		if err != nil {
//			log.Fatal(err)
//		}
//
//		charges := 0
//		charge := func(_ context.Context, req *connect.Request[wrapperspb.StringValue]) (*connect.Response[wrapperspb.StringValue], error) {
//			charges++
//			return connect.NewResponse(wrapperspb.String(fmt.Sprintf("charge %d of %s", charges, req.Msg.GetValue()))), nil
//		}
//		mux := http.NewServeMux() // generated code: mux.Handle(paymentsv1connect.NewPaymentsHandler(service, connect.WithInterceptors(idem)))
//		mux.Handle("/acme.v1.Payments/Charge", connect.NewUnaryHandler("/acme.v1.Payments/Charge", charge, connect.WithInterceptors(idem)))
//		server := httptest.NewServer(mux)
//		defer server.Close()
//
//		retries, err := stetconnect.NewClient(stetconnect.ClientOptions{})
//		if err != nil {
//			log.Fatal(err)
//		}
//		client := connect.NewClient[wrapperspb.StringValue, wrapperspb.StringValue](server.Client(), server.URL+"/acme.v1.Payments/Charge",
//			connect.WithInterceptors(retries)) // and connect.WithGRPC(), or connect.WithGRPCWeb()
//		for _, amount := range []string{"10", "10", "11"} {
//			req := connect.NewRequest(wrapperspb.String(amount))
//			req.Header().Set("X-Account", "acct_1")
//			req.Header().Set("Idempotency-Key", "order-7") // without it, each call gets a key of its own
//			res, err := client.CallUnary(context.Background(), req)
//			if err != nil {
//				fmt.Println(err, "-", stetconnect.ExecutionOf(err))
//				continue
//			}
//			fmt.Println(res.Msg.GetValue(), "- replayed:", res.Header().Get(stetconnect.ReplayedHeader) == "true")
//		}
//	}
//
// The key is in the request header Idempotency-Key; the interceptor of NewClient puts it
// there, and retries. A refusal has one of Connect's codes, and the problem as error
// details: docs/adapters/connect.md has the table. An operation of a gRPC server that package
// stetgrpc protects is replayed here as well, and the reverse.
//
// # In the handler
//
// Its context is the run's: it does not end when the client leaves, or at the client's
// deadline, but when the lease is lost or the policy's RunTimeout is used up.
// stet.FromContext finds the run in it: key, fence, attempt, and Declare.
//
// An error is also an outcome, and is replayed, unless it says that nothing was executed:
// see Options.NotExecuted. An error that is stet.Retryable says so as well. With NewTx an
// error rolls back. The caller gets a copy of the error, which wraps it.
//
// # Interceptors around
//
// Interceptors around this one, for authentication, logging or validation, run for each call.
// Interceptors inside, and the handler, run for each operation. The response of a replay is not a
// *connect.Response[T], and its message is not of the generated type. The same is true of a
// first response with maps. Around this interceptor, use Any, Header, Trailer and protobuf's
// reflection, and do not assert types. The caller gets the changes made to the message there.
package stetconnect
