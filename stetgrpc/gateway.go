package stetgrpc

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/status"

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

// GatewayError adds to the header of a gateway's response what the error of a call says:
// Retry-After, in whole seconds, rounded up, where it has a RetryInfo; and
// Cache-Control: no-store. Call it before runtime.DefaultHTTPErrorHandler, in a function
// for runtime.WithErrorHandler.
func GatewayError(header http.Header, err error) {
	header.Set("Cache-Control", "no-store")
	st, ok := status.FromError(err)
	if !ok {
		return
	}
	if said, _ := rpc.ReadStatus(st.Proto()); said.After > 0 {
		header.Set("Retry-After", strconv.FormatInt(int64((said.After+time.Second-1)/time.Second), 10))
	}
}
