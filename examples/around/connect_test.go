package around

import (
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

const (
	chargePath = "/payments.v1.Payments/Charge"
	watchPath  = "/payments.v1.Payments/Watch"
)

// rpc is a service whose calls fail as long as failing says so.
type rpc struct {
	*books
	failing bool
	client  *http.Client
	url     string
}

func newRPC(t *testing.T) *rpc {
	t.Helper()
	s := &rpc{books: newBooks(t), failing: true}
	mux := http.NewServeMux()
	mux.Handle(chargePath, connect.NewUnaryHandler(chargePath, func(ctx context.Context, req *connect.Request[wrapperspb.StringValue]) (*connect.Response[wrapperspb.StringValue], error) {
		s.pay((&http.Request{}).WithContext(ctx))
		if s.failing {
			return nil, connect.NewError(connect.CodeInternal, nil)
		}
		return connect.NewResponse(wrapperspb.String("charged " + req.Msg.Value)), nil
	}))
	mux.Handle(watchPath, connect.NewServerStreamHandler(watchPath, func(ctx context.Context, req *connect.Request[wrapperspb.StringValue], stream *connect.ServerStream[wrapperspb.StringValue]) error {
		s.pay((&http.Request{}).WithContext(ctx))
		for _, state := range []string{"begun", "charged " + req.Msg.Value} {
			if err := stream.Send(wrapperspb.String(state)); err != nil {
				return err
			}
		}
		if s.failing {
			return connect.NewError(connect.CodeAborted, nil)
		}
		return nil
	}))
	srv := httptest.NewUnstartedServer(s.m.Handler(mux))
	srv.EnableHTTP2 = true
	srv.StartTLS()
	t.Cleanup(srv.Close)
	s.client, s.url = srv.Client(), srv.URL
	return s
}

func protocols() map[string]connect.ClientOption {
	return map[string]connect.ClientOption{
		"Connect": connect.WithProtoJSON(), "gRPC": connect.WithGRPC(), "gRPC-Web": connect.WithGRPCWeb(),
	}
}

func amount() *connect.Request[wrapperspb.StringValue] {
	req := connect.NewRequest(wrapperspb.String("10"))
	req.Header().Set("Idempotency-Key", "k")
	return req
}

func TestErrorOfAnRPCRollsBackInEveryProtocol(t *testing.T) {
	for name, protocol := range protocols() {
		t.Run(name, func(t *testing.T) {
			s := newRPC(t)
			client := connect.NewClient[wrapperspb.StringValue, wrapperspb.StringValue](s.client, s.url+chargePath, protocol)
			if _, err := client.CallUnary(t.Context(), amount()); connect.CodeOf(err) != connect.CodeInternal {
				t.Errorf("got %v; want connect.CodeOf(err) == connect.CodeInternal", err)
			}
			s.want(0)
			s.failing = false
			for i := range 2 {
				res, err := client.CallUnary(t.Context(), amount())
				if err != nil {
					t.Fatal(err)
				}
				if replayed := res.Header().Get("Idempotent-Replayed") == "true"; res.Msg.Value != "charged 10" || replayed != (i > 0) {
					t.Errorf("%q, replayed %v", res.Msg.Value, replayed)
				}
			}
			s.want(1)
		})
	}
}

// The error comes after messages: in trailers, or at the end of the content.
func TestErrorOfAStreamRollsBackInEveryProtocol(t *testing.T) {
	for name, protocol := range protocols() {
		t.Run(name, func(t *testing.T) {
			s := newRPC(t)
			client := connect.NewClient[wrapperspb.StringValue, wrapperspb.StringValue](s.client, s.url+watchPath, protocol)
			watch := func() (states []string, replayed bool, err error) {
				stream, err := client.CallServerStream(t.Context(), amount())
				if err != nil {
					t.Fatal(err)
				}
				defer stream.Close()
				for stream.Receive() {
					states = append(states, stream.Msg().Value)
				}
				return states, stream.ResponseHeader().Get("Idempotent-Replayed") == "true", stream.Err()
			}
			if _, _, err := watch(); connect.CodeOf(err) != connect.CodeAborted {
				t.Errorf("got %v; want connect.CodeOf(err) == connect.CodeAborted", err)
			}
			s.want(0)
			s.failing = false
			for i := range 2 {
				states, replayed, err := watch()
				if !slices.Equal(states, []string{"begun", "charged 10"}) || replayed != (i > 0) || err != nil {
					t.Errorf("%q, replayed %v, %v", states, replayed, err)
				}
			}
			s.want(1)
		})
	}
}
