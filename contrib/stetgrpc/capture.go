package stetgrpc

import (
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// capture keeps the metadata that a handler sets, until its outcome is durable. It is a
// grpc.ServerTransportStream.
type capture struct {
	method string

	mu      sync.Mutex
	header  metadata.MD
	trailer metadata.MD
	sent    bool // as the handler sees it
	closed  bool // the handler has returned
}

// Method implements grpc.ServerTransportStream.
func (c *capture) Method() string { return c.method }

// SetHeader implements grpc.ServerTransportStream.
func (c *capture) SetHeader(md metadata.MD) error { return c.add(md, false) }

// SendHeader implements grpc.ServerTransportStream. The header is sent later.
func (c *capture) SendHeader(md metadata.MD) error { return c.add(md, true) }

func (c *capture) add(md metadata.MD, send bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sent || c.closed {
		return status.Error(codes.Internal, "stetgrpc: the header was sent before, or the handler has returned")
	}
	c.header, c.sent = metadata.Join(c.header, said(md)), send
	return nil
}

// SetTrailer implements grpc.ServerTransportStream.
func (c *capture) SetTrailer(md metadata.MD) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return status.Error(codes.Internal, "stetgrpc: the handler has returned")
	}
	c.trailer = metadata.Join(c.trailer, said(md))
	return nil
}

// said is metadata without what an interceptor of stet's says of a call: in that of a
// handler, which may have passed it on, it is of another call.
func said(md metadata.MD) metadata.MD {
	md = md.Copy()
	md.Delete(ReplayedMetadata)
	md.Delete(ExecutionMetadata)
	return md
}

// close ends the capture and returns its metadata. Goroutines that the handler left behind can
// set nothing any more.
func (c *capture) close() (header, trailer metadata.MD) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	return c.header, c.trailer
}
