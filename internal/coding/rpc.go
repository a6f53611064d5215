package coding

import (
	"encoding/base64"
	"fmt"
	"net/url"
	"strconv"
	"strings"

	"github.com/stet-go/stet/codec"
	"github.com/stet-go/stet/store"
)

// StatusForm is the form in which a codec keeps the status of an RPC: the bytes of a
// google.rpc.Status.
const StatusForm = "application/protobuf; proto=google.rpc.Status"

// Status is how an RPC failed, as package internal/rpc stores it.
type Status struct {
	Code    int
	Message string
	Whole   []byte // the google.rpc.Status; nil if it is not there
}

var codes = [...]string{"OK", "Canceled", "Unknown", "InvalidArgument", "DeadlineExceeded", "NotFound", "AlreadyExists", "PermissionDenied",
	"ResourceExhausted", "FailedPrecondition", "Aborted", "OutOfRange", "Unimplemented", "Internal", "Unavailable", "DataLoss", "Unauthenticated"}

// StatusOf reads the trailer fields of an RPC that failed.
func StatusOf(trailer []store.Field) (s Status) {
	s.Code = 2 // unknown
	for _, f := range trailer {
		if len(f.Values) != 1 {
			continue
		}
		switch v := f.Values[0]; strings.ToLower(f.Name) {
		case "grpc-status":
			if n, err := strconv.ParseUint(v, 10, 31); err == nil {
				s.Code = int(n)
			}
		case "grpc-message":
			if text, err := url.PathUnescape(v); err == nil {
				s.Message = strings.ToValidUTF8(text, "\uFFFD")
			}
		case "grpc-status-details-bin":
			if b, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(v, "=")); err == nil {
				s.Whole = b
			}
		}
	}
	return s
}

// Error returns the error of an RPC, with the text that gRPC for Go has for it. c may be nil.
func (s Status) Error(c codec.Errors) error {
	name := strconv.Itoa(s.Code)
	if s.Code < len(codes) {
		name = codes[s.Code]
	}
	return Error(c, fmt.Sprintf("rpc error: code = %s desc = %s", name, s.Message),
		[]store.Field{{Name: errorField, Values: []string{StatusForm, string(s.Whole)}}})
}
