package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/stet-go/stet/internal/proxy"
	"github.com/stet-go/stet/observe"
	"github.com/stet-go/stet/observe/stettrace"
)

// lastTraces is how long the end of the proxy waits for its last spans.
const lastTraces = 5 * time.Second

// traces sends the proxy's spans to a collector; nil if there is none.
type traces struct{ provider *sdktrace.TracerProvider }

// traced reports whether there is a collector, by the variables of the
// OpenTelemetry specification.
func traced() bool {
	return os.Getenv("OTEL_SDK_DISABLED") != "true" &&
		cmp.Or(os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"), os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT")) != ""
}

// startTraces makes spans of the proxy's work if there is a collector. OTEL_ variables also
// configure the exporter and the sampler.
func startTraces(ctx context.Context, o *proxy.Options) (*traces, error) {
	if !traced() {
		return nil, nil
	}
	client, err := newCollector()
	if err != nil {
		return nil, err
	}
	exporter, err := otlptrace.New(ctx, client)
	if err != nil {
		return nil, err
	}
	about, err := resource.New(ctx, resource.WithTelemetrySDK(), resource.WithAttributes(attribute.String("service.name", "stet-proxy")),
		resource.WithFromEnv()) // OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES override the name
	if errors.Is(err, resource.ErrPartialResource) {
		o.ErrorLog.WarnContext(ctx, "stet: a part of OTEL_RESOURCE_ATTRIBUTES is not used", slog.Any("error", err))
	} else if err != nil {
		return nil, err
	}
	t := &traces{sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(about))}
	tracer := stettrace.New(stettrace.Options{Provider: t.provider})
	o.Observer, o.Around = observe.Join(tracer, o.Observer), tracer.Middleware
	o.Propagate = func(ctx context.Context, h http.Header) {
		propagation.TraceContext{}.Inject(ctx, propagation.HeaderCarrier(h))
	}
	return t, nil
}

// around continues the trace of a request's client.
func (t *traces) around(next http.Handler) http.Handler {
	if t == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := propagation.TraceContext{}.Extract(r.Context(), propagation.HeaderCarrier(r.Header))
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

// end sends the remaining spans.
func (t *traces) end() error {
	if t == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), lastTraces)
	defer cancel()
	if err := t.provider.Shutdown(ctx); err != nil {
		return fmt.Errorf("the last spans were not sent: %w", err)
	}
	return nil
}
