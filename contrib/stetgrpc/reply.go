package stetgrpc

import (
	"bytes"
	"context"
	"log/slog"
	"mime"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/dynamicpb"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/stet-go/stet/internal/rpc"
)

// refuse answers a call that was not run.
func (i *Interceptor) refuse(ctx context.Context, e rpc.End) (any, error) {
	i.setMetadata(ctx, e)
	return nil, status.FromProto(e.Status).Err()
}

// answer answers with an outcome that stands. live is the handler's own response, if it
// was just now.
func (c *call) answer(e rpc.End, live proto.Message, replayed bool) (any, error) {
	if replayed && e.OK() {
		e.Header = metadata.Join(e.Header, metadata.Pairs(ReplayedMetadata, "true"))
	} else if replayed {
		e.Trailer = metadata.Join(e.Trailer, metadata.Pairs(ReplayedMetadata, "true"))
	}
	if !e.OK() {
		return c.send(e, nil)
	}
	if c.ofProto() && (live == nil || c.mapped.In(live.ProtoReflect().Descriptor())) {
		return c.send(e, c.exact(e))
	}
	if live == nil {
		live = c.typed(e)
	}
	if live == nil {
		return c.send(rpc.ResultUnreadable.End("", 0), nil)
	}
	return c.send(e, live)
}

// send responds with an end. Metadata that cannot be sent is logged, unless the client has
// left.
func (c *call) send(e rpc.End, resp any) (any, error) {
	c.setMetadata(c.ctx, e)
	if !e.OK() {
		return nil, status.FromProto(e.Status).Err()
	}
	return resp, nil
}

func (i *Interceptor) setMetadata(ctx context.Context, e rpc.End) {
	for _, err := range []error{grpc.SetHeader(ctx, e.Header), grpc.SetTrailer(ctx, e.Trailer)} {
		if err != nil && ctx.Err() == nil {
			i.log().WarnContext(ctx, "stetgrpc: metadata of a response was not sent: has an interceptor before this one sent the header?", slog.Any("error", err))
		}
	}
}

// ofProto reports whether the client takes the bytes of messages, and not JSON, for one.
func (c *call) ofProto() bool {
	md, _ := metadata.FromIncomingContext(c.ctx)
	t, _, err := mime.ParseMediaType(strings.Join(md.Get("content-type"), ","))
	return err == nil && (t == "application/grpc" || t == "application/grpc+proto")
}

// typed is the stored message in its type; nil if there is none.
func (c *call) typed(e rpc.End) proto.Message {
	reply := c.reply(rpc.Type(e.Name))
	if reply == nil {
		return nil
	}
	m := reply()
	if proto.Unmarshal(e.Message, m) != nil {
		return nil
	}
	return m
}

// exact is a message that marshals to the stored bytes: in its type if that is possible,
// otherwise as unknown fields.
func (c *call) exact(e rpc.End) proto.Message {
	if m := c.typed(e); m != nil && !c.mapped.In(m.ProtoReflect().Descriptor()) {
		if b, err := proto.Marshal(m); err == nil && bytes.Equal(b, e.Message) {
			return m
		}
	}
	m := new(emptypb.Empty)
	m.ProtoReflect().SetUnknown(e.Message)
	return m
}

// reply returns what makes an empty response of the call's method; where the method is not
// known, one of the media type's message; nil where neither is.
func (c *call) reply(contentType string) func() proto.Message {
	if made, ok := c.replies.Load(c.Method); ok {
		return made.(func() proto.Message)
	}
	if d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(rpc.ServiceOf(c.Method))); err == nil {
		if service, ok := d.(protoreflect.ServiceDescriptor); ok {
			_, name, _ := strings.Cut(c.Method[1:], "/")
			if method := service.Methods().ByName(protoreflect.Name(name)); method != nil {
				return c.learnType(typeOf(method.Output()))
			}
		}
	}
	if t, err := protoregistry.GlobalTypes.FindMessageByName(rpc.NameOf(contentType)); err == nil {
		return func() proto.Message { return t.New().Interface() }
	}
	return nil
}

func typeOf(d protoreflect.MessageDescriptor) protoreflect.MessageType {
	if t, err := protoregistry.GlobalTypes.FindMessageByName(d.FullName()); err == nil {
		return t
	}
	return dynamicpb.NewMessageType(d)
}

// learn notes which message the method responds with.
func (c *call) learn(m proto.Message) {
	if _, ok := c.replies.Load(c.Method); !ok {
		c.learnType(m.ProtoReflect().Type())
	}
}

func (c *call) learnType(t protoreflect.MessageType) func() proto.Message {
	made := func() proto.Message { return t.New().Interface() }
	c.replies.Store(c.Method, made)
	return made
}

var errStreams = status.Error(codes.Internal, "the service has streaming methods, and neither Interceptor.Stream nor Interceptor.Check is used: make the server with Interceptor.ServerOptions")
