package stetconnect

import (
	"context"
	"log/slog"
	"net/http"

	"connectrpc.com/connect"

	"github.com/stet-go/stet/internal/rpc"
)

// WrapStreamingHandler implements connect.Interceptor: it refuses each streaming call that
// has a key, and each of a protected service's that Options.Streams does not name; the
// others pass.
func (i *Interceptor) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		procedure := conn.Spec().Procedure
		if key, wrong, _ := rpc.Key(conn.RequestHeader().Values); key != "" || wrong != nil {
			return i.problem(conn.Peer(), rpc.StreamKeyed.End("", 0))
		}
		if !i.o.rules().Stream(procedure) {
			i.log().ErrorContext(ctx, "stetconnect: a streaming procedure cannot be protected, and this one is not named in Options.Streams; its calls are refused",
				slog.String("procedure", procedure))
			return i.problem(conn.Peer(), rpc.StreamUnprotected.End("", 0))
		}
		return next(ctx, conn)
	}
}

// WrapStreamingClient implements connect.Interceptor: calls of clients are refused.
func (i *Interceptor) WrapStreamingClient(connect.StreamingClientFunc) connect.StreamingClientFunc {
	return func(_ context.Context, spec connect.Spec) connect.StreamingClientConn {
		return &refused{spec: spec, err: i.onClient(), header: make(http.Header)}
	}
}

// refused is a stream on which nothing is sent.
type refused struct {
	spec   connect.Spec
	err    error
	header http.Header
}

func (r *refused) Spec() connect.Spec           { return r.spec }
func (r *refused) Peer() connect.Peer           { return connect.Peer{} }
func (r *refused) Send(any) error               { return r.err }
func (r *refused) RequestHeader() http.Header   { return r.header }
func (r *refused) CloseRequest() error          { return r.err }
func (r *refused) Receive(any) error            { return r.err }
func (r *refused) ResponseHeader() http.Header  { return http.Header{} }
func (r *refused) ResponseTrailer() http.Header { return http.Header{} }
func (r *refused) CloseResponse() error         { return r.err }
