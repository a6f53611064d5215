package stetgrpc_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/contrib/stetgrpc"
)

// gateway returns a gateway in front of b, set up as docs/adapters/grpc.md recommends.
func gateway(b *bench) *runtime.ServeMux {
	mux := runtime.NewServeMux(
		runtime.WithIncomingHeaderMatcher(stetgrpc.GatewayHeader(runtime.DefaultHeaderMatcher)),
		runtime.WithErrorHandler(func(ctx context.Context, mux *runtime.ServeMux, m runtime.Marshaler, w http.ResponseWriter, r *http.Request, err error) {
			md, _ := runtime.ServerMetadataFromContext(ctx)
			stetgrpc.GatewayError(w.Header(), err, md.TrailerMD) // Idempotency-Execution, Retry-After, Cache-Control
			runtime.DefaultHTTPErrorHandler(ctx, mux, m, w, r, err)
		}))
	registered(b, mux)
	return mux
}

// registered does what the generated RegisterPaymentsHandler does.
func registered(b *bench, mux *runtime.ServeMux) {
	err := mux.HandlePath("POST", "/v1/charge", func(w http.ResponseWriter, r *http.Request, _ map[string]string) {
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		in, out := runtime.MarshalerForRequest(mux, r)
		ctx, err := runtime.AnnotateContext(ctx, mux, r, charge, runtime.WithHTTPPathPattern("/v1/charge"))
		if err != nil {
			runtime.HTTPError(ctx, mux, out, w, r, err)
			return
		}
		var req, resp wrapperspb.StringValue
		var md runtime.ServerMetadata
		if err := in.NewDecoder(r.Body).Decode(&req); err != nil && err != io.EOF {
			runtime.HTTPError(ctx, mux, out, w, r, status.Errorf(codes.InvalidArgument, "%v", err))
			return
		}
		err = b.conn.Invoke(ctx, charge, &req, &resp, grpc.Header(&md.HeaderMD), grpc.Trailer(&md.TrailerMD))
		ctx = runtime.NewServerMetadataContext(ctx, md)
		if err != nil {
			runtime.HTTPError(ctx, mux, out, w, r, err)
			return
		}
		runtime.ForwardResponseMessage(ctx, mux, out, w, r, &resp, mux.GetForwardResponseOptions()...)
	})
	if err != nil {
		b.t.Fatal(err)
	}
}

func posted(h http.Handler, body string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest("POST", "/v1/charge", strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(header); i += 2 {
		r.Header.Add(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func TestBehindAGatewayTheHeaderIsTheKey(t *testing.T) {
	b := newBench(t, stetgrpc.Options{}, stet.Options{})
	b.i.SetRetryAfter(1500 * time.Millisecond)
	b.charge = func(ctx context.Context, amount string) (proto.Message, error) {
		if amount == "busy" {
			return nil, stet.Retryable(status.Error(codes.Unavailable, "busy"))
		}
		if amount == "down" {
			return nil, stet.Retryable(io.ErrUnexpectedEOF)
		}
		return wrapperspb.String("charged " + amount), grpc.SetHeader(ctx, metadata.Pairs("a", "1"))
	}
	mux := gateway(b)
	first := posted(mux, `"1"`, "Idempotency-Key", `"k"`)
	second := posted(mux, `"1"`, "Idempotency-Key", "k")
	if first.Code != 200 || first.Body.String() != `"charged 1"` || second.Body.String() != first.Body.String() ||
		second.Header().Get("Grpc-Metadata-A") != "1" || second.Header().Get("Grpc-Metadata-Idempotent-Replayed") != "true" {
		t.Errorf("%v\n%v", first, second)
	}
	b.wantRuns(1)
	b.want(b.call("1", key, "k"), "charged 1") // the same operation
	b.wantRuns(1)
	for _, c := range []struct {
		body, header, value string
		status              int
		after, says         string
	}{
		{`"2"`, "Idempotency-Key", "k", 400, "", "MISMATCH"},
		{`"1"`, "Accept", "*/*", 400, "", "KEY_MISSING"},
		{`"down"`, "Idempotency-Key", "d", 503, "2", "NOT_EXECUTED"},
		{`"busy"`, "Idempotency-Key", "b", 503, "", "busy"},
	} {
		w := posted(mux, c.body, c.header, c.value)
		if w.Code != c.status || w.Header().Get("Retry-After") != c.after || !strings.Contains(w.Body.String(), c.says) || w.Header().Get("Cache-Control") != "no-store" {
			t.Errorf("%s: %d %v %s", c.says, w.Code, w.Header(), w.Body)
		}
	}
	w := posted(mux, `"1"`, "Idempotency-Key", "a", "Idempotency-Key", "b")
	if w.Code != 400 || !strings.Contains(w.Body.String(), "KEY_REPEATED") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// TestAGatewayThatForwardsNoKeyIsLoud: the default matcher drops the header.
func TestAGatewayThatForwardsNoKeyIsLoud(t *testing.T) {
	b := newBench(t, stetgrpc.Options{}, stet.Options{})
	mux := runtime.NewServeMux()
	registered(b, mux)
	if w := posted(mux, `"1"`, "Idempotency-Key", "k"); w.Code != 400 || !strings.Contains(w.Body.String(), "KEY_MISSING") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	b.wantRuns(0)
}

// TestACallInFlightIs409: a 503 with Retry-After would tell a client that nothing was
// executed.
func TestACallInFlightIs409BehindAGateway(t *testing.T) {
	b := newBench(t, stetgrpc.Options{}, stet.Options{})
	running, finish := make(chan struct{}), make(chan struct{})
	b.charge = func(context.Context, string) (proto.Message, error) {
		close(running)
		<-finish
		return wrapperspb.String("one"), nil
	}
	done := make(chan answer)
	go func() { done <- b.call("1", key, "k") }()
	<-running
	if w := posted(gateway(b), `"1"`, "Idempotency-Key", "k"); w.Code != 409 || w.Header().Get("Retry-After") != "1" {
		t.Errorf("%d %v %s", w.Code, w.Header(), w.Body)
	}
	close(finish)
	<-done
}
