package stetgrpc

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/rpc"
)

// GatewayHeader is for grpc-gateway, which forwards no Idempotency-Key by itself:
//
//	runtime.WithIncomingHeaderMatcher(stetgrpc.GatewayHeader(runtime.DefaultHeaderMatcher))
//
// It forwards that header as the call's key, and asks next about all others; nil forwards
// no others.
func GatewayHeader(next func(string) (string, bool)) func(string) (string, bool) {
	return func(name string) (string, bool) {
		switch {
		case strings.EqualFold(name, KeyMetadata):
			return KeyMetadata, true
		case next == nil:
			return "", false
		}
		return next(name)
	}
}

// GatewayError adds to the header of a gateway's response what the error of a call, and its
// trailer, say: Idempotency-Execution, without which an HTTP client takes the 429 or the
// 403 that stands for one before which nothing was executed; Idempotent-Replayed;
// Retry-After, in whole seconds, rounded up, where the error has a RetryInfo, is not stored,
// and nothing was executed yet, or that is not known; and Cache-Control: no-store. Call it before
// runtime.DefaultHTTPErrorHandler, in a function for runtime.WithErrorHandler;
// runtime.ServerMetadataFromContext has the trailer.
func GatewayError(header http.Header, err error, trailer metadata.MD) {
	header.Set("Cache-Control", "no-store")
	st, ok := status.FromError(err)
	if !ok {
		return
	}
	said, known := rpc.ReadStatus(st.Proto())
	if own := trailer.Get(ExecutionMetadata); len(own) == 1 {
		said.Execution, known = rpc.ParseExecution(own[0]), true
	}
	if known {
		header.Set(ExecutionMetadata, said.Execution.String())
	}
	if own := trailer.Get(ReplayedMetadata); len(own) == 1 {
		header.Set(ReplayedMetadata, own[0])
	}
	if said.After > 0 && said.Execution != stet.Executed && !stands(trailer) {
		header.Set("Retry-After", strconv.FormatInt(int64((said.After+time.Second-1)/time.Second), 10))
	}
}
