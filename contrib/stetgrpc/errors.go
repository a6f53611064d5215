package stetgrpc

import (
	"errors"

	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/stet-go/stet/codec"
	"github.com/stet-go/stet/internal/rpc"
)

// Errors returns a codec for stet.Policy.Errors that keeps the gRPC status of an error,
// code, message and details, so that an error of stet.Do, or of a worker, has it in a
// replay, too, and the callers of an Interceptor that meet the operation get it. Of an
// error that is no status the text is kept; codec.JoinErrors adds what another codec keeps.
func Errors() codec.Errors { return statuses{} }

type statuses struct{}

func (statuses) Encode(err error) (form string, data []byte) {
	var own interface{ GRPCStatus() *status.Status }
	if !errors.As(err, &own) || own.GRPCStatus().Code() == codes.OK {
		return "", nil
	}
	b, failed := proto.Marshal(rpc.Valid(own.GRPCStatus().Proto()))
	if failed != nil {
		return "", nil
	}
	return rpc.StatusForm, b
}

func (statuses) Decode(text, form string, data []byte) error {
	var st spb.Status
	if form != rpc.StatusForm || proto.Unmarshal(data, &st) != nil || st.GetCode() == int32(codes.OK) {
		return nil
	}
	return &statusError{text, status.FromProto(&st)}
}

// statusError is an error that was stored.
type statusError struct {
	text string
	st   *status.Status
}

func (e *statusError) Error() string              { return e.text }
func (e *statusError) GRPCStatus() *status.Status { return e.st }
