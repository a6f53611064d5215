package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
)

// said is an error about the service as a log may have it. Those of a malformed
// answer quote it: headers and content that are none of the log's business.
func said(err error) string {
	var network *net.OpError
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return "it took too long"
	case errors.Is(err, context.Canceled):
		return "the run was cancelled"
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return "the connection ended"
	case errors.As(err, &network):
		return network.Error()
	}
	return fmt.Sprintf("its answer could not be read (%T)", err)
}
