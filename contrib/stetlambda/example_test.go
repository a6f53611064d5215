package stetlambda_test

import (
	"context"
	"fmt"
	"log"
	"net/http"

	"github.com/aws/aws-lambda-go/events"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/contrib/stetlambda"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/stetmsg"
	"github.com/stet-go/stet/store/memory"
)

// The same request, sent again by the client.
func ExampleHTTP() {
	engine, err := stet.New(memory.New(memory.Options{}), stet.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer engine.Close()
	idem := stethttp.Must(stethttp.New(engine, stethttp.Options{Scope: stetlambda.Claim("sub")}))
	charges := 0
	mux := http.NewServeMux()
	mux.Handle("POST /payments", idem.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		charges++
		w.WriteHeader(http.StatusCreated)
		_, _ = fmt.Fprintf(w, "charge %d", charges)
	})))
	function := stetlambda.HTTP(mux) // a Lambda calls lambda.Start(function)

	var request events.APIGatewayV2HTTPRequest
	request.Version, request.RawPath = "2.0", "/payments"
	request.RequestContext.HTTP.Method = "POST"
	request.RequestContext.Authorizer = &events.APIGatewayV2HTTPRequestContextAuthorizerDescription{
		JWT: &events.APIGatewayV2HTTPRequestContextAuthorizerJWTDescription{Claims: map[string]string{"sub": "acct_1"}},
	}
	request.Headers = map[string]string{"idempotency-key": "8e03978e-40d5-43e8-bc93-6894a57f9324"}
	for range 2 {
		response, err := function(context.Background(), request)
		fmt.Println(response.StatusCode, response.Body, err)
	}
	// Output:
	// 201 charge 1 <nil>
	// 201 charge 1 <nil>
}

// A batch that is delivered again after one of its messages could not be handled.
func ExampleSQS() {
	engine, err := stet.New(memory.New(memory.Options{}), stet.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer engine.Close()
	down := true
	orders, err := stetlambda.SQS(engine, stetlambda.SQSOptions{
		Options: stetmsg.Options[events.SQSMessage]{
			Operation:   stetmsg.By(stetlambda.Envelope, stetmsg.Header("orders", "order-id")),
			Concurrency: 1,
		},
		Failures: stetlambda.BatchItemFailures,
	}, func(_ context.Context, m events.SQSMessage) ([]byte, error) {
		if m.Body == "two books" && down {
			return nil, stet.Retryable(fmt.Errorf("the warehouse is closed"))
		}
		fmt.Println("packing", m.Body)
		return nil, nil
	})
	if err != nil {
		log.Fatal(err)
	}

	message := func(id, body string) events.SQSMessage {
		return events.SQSMessage{MessageId: "message " + id, Body: body, EventSource: "aws:sqs",
			MessageAttributes: map[string]events.SQSMessageAttribute{"order-id": {StringValue: &id, DataType: "String"}}}
	}
	batch := events.SQSEvent{Records: []events.SQSMessage{message("1", "one book"), message("2", "two books")}}
	for range 2 {
		response, err := orders(context.Background(), batch)
		fmt.Println("again:", response.BatchItemFailures, err)
		down = false
	}
	// Output:
	// packing one book
	// again: [{message 2}] <nil>
	// packing two books
	// again: [] <nil>
}
