package stettrace_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"

	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/observe/stettrace"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/store/memory"
)

func Example() {
	spans := tracetest.NewSpanRecorder() // a service has an exporter here
	provider := sdk.NewTracerProvider(sdk.WithSpanProcessor(spans))
	defer func() { _ = provider.Shutdown(context.Background()) }()

	tracer := stettrace.New(stettrace.Options{Provider: provider})
	engine, err := stet.New(memory.New(memory.Options{}), stet.Options{Observer: tracer})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer engine.Close()
	idempotent := stethttp.Must(stethttp.New(engine, stethttp.Options{Scope: stethttp.SingleTenant}))
	payments := tracer.Middleware(idempotent.Handler)(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusCreated)
	}))

	for range 2 {
		r := httptest.NewRequest(http.MethodPost, "/payments", http.NoBody)
		r.Header.Set("Idempotency-Key", "order-1")
		payments.ServeHTTP(httptest.NewRecorder(), r)
	}

	all := spans.Ended()
	for _, s := range all {
		fmt.Println(s.Name())
	}
	handler, replay := all[1], all[3]
	fmt.Println("the replay links to the handler:", replay.Links()[0].SpanContext.SpanID() == handler.SpanContext().SpanID())
	// Output:
	// stet claim
	// stet handler
	// stet settle
	// stet claim
	// the replay links to the handler: true
}
