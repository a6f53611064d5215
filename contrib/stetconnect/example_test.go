package stetconnect_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/contrib/stetconnect"
	"github.com/stet-go/stet/store/memory"
)

func Example() {
	engine, err := stet.New(memory.New(memory.Options{}), stet.Options{}) // a service needs a durable store, such as store/postgres
	if err != nil {
		log.Fatal(err)
	}
	defer engine.Close()
	idem, err := stetconnect.New(engine, stetconnect.Options{
		Scope: func(_ context.Context, req connect.AnyRequest) (string, error) {
			return req.Header().Get("X-Account"), nil // what authentication has established
		},
	})
	if err != nil {
		log.Fatal(err)
	}

	charges := 0
	charge := func(_ context.Context, req *connect.Request[wrapperspb.StringValue]) (*connect.Response[wrapperspb.StringValue], error) {
		charges++
		return connect.NewResponse(wrapperspb.String(fmt.Sprintf("charge %d of %s", charges, req.Msg.GetValue()))), nil
	}
	mux := http.NewServeMux() // generated code: mux.Handle(paymentsv1connect.NewPaymentsHandler(service, connect.WithInterceptors(idem)))
	mux.Handle("/acme.v1.Payments/Charge", connect.NewUnaryHandler("/acme.v1.Payments/Charge", charge, connect.WithInterceptors(idem)))
	server := httptest.NewServer(mux)
	defer server.Close()

	retries, err := stetconnect.NewClient(stetconnect.ClientOptions{})
	if err != nil {
		log.Fatal(err)
	}
	client := connect.NewClient[wrapperspb.StringValue, wrapperspb.StringValue](server.Client(), server.URL+"/acme.v1.Payments/Charge",
		connect.WithInterceptors(retries)) // and connect.WithGRPC(), or connect.WithGRPCWeb()
	for _, amount := range []string{"10", "10", "11"} {
		req := connect.NewRequest(wrapperspb.String(amount))
		req.Header().Set("X-Account", "acct_1")
		req.Header().Set("Idempotency-Key", "order-7") // without it, each call gets a key of its own
		res, err := client.CallUnary(context.Background(), req)
		if err != nil {
			fmt.Println(err, "-", stetconnect.ExecutionOf(err))
			continue
		}
		fmt.Println(res.Msg.GetValue(), "- replayed:", res.Header().Get(stetconnect.ReplayedHeader) == "true")
	}
	// Output:
	// charge 1 of 10 - replayed: false
	// charge 1 of 10 - replayed: true
	// failed_precondition: this idempotency key was used before for a request that differs from this one - not executed
}
