package stetgrpc

import (
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/stet-go/stet/internal/rpc"
)

// Check refuses a server, once its services are registered and before it serves, of
// which a method would be unprotected without having been named: a streaming method of a
// protected service that is not in Options.Streams. So it does a name in Options that the
// server does not have. s is a *grpc.Server. The error is of kind stet.KindInvalid, and
// has all that is wrong.
func (i *Interceptor) Check(s interface {
	GetServiceInfo() map[string]grpc.ServiceInfo
}) error {
	services, streaming := make(map[string]bool), make(map[string]bool)
	for service, info := range s.GetServiceInfo() {
		services[service] = true
		for _, m := range info.Methods {
			streaming["/"+service+"/"+m.Name] = m.IsClientStream || m.IsServerStream
		}
	}
	err := i.o.rules().Match(streaming, services)
	if err == nil {
		i.streams.Store(true)
	}
	return err
}

// Stream returns the interceptor of streaming calls. It refuses each that has a key,
// and each of a protected service's that Options.Streams does not name; the others pass.
func (i *Interceptor) Stream() grpc.StreamServerInterceptor {
	i.streams.Store(true)
	return func(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		ctx := ss.Context()
		md, _ := metadata.FromIncomingContext(ctx)
		if key, c, _ := rpc.Key(md.Get); key != "" || c != nil {
			return i.refuseStream(ss, rpc.StreamKeyed)
		}
		if !i.o.rules().Stream(info.FullMethod) {
			i.log().ErrorContext(ctx, "stetgrpc: "+info.FullMethod+" is a streaming method, which cannot be protected, and is not named in Options.Streams; its calls are refused")
			return i.refuseStream(ss, rpc.StreamUnprotected)
		}
		return handler(srv, ss)
	}
}

func (i *Interceptor) refuseStream(ss grpc.ServerStream, c rpc.Condition) error {
	_, err := i.refuse(ss.Context(), c.End("", 0))
	return err
}

// vouch refuses a service with streaming methods that are not watched: the server was
// made with Unary alone, and was not checked. Of a service that is not in
// protoregistry.GlobalFiles it cannot know.
func (i *Interceptor) vouch(service string) error {
	if i.streams.Load() {
		return nil
	}
	if known, ok := i.vouched.Load(service); ok {
		err, _ := known.(error)
		return err
	}
	var err error
	if d, e := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(service)); e == nil {
		if s, ok := d.(protoreflect.ServiceDescriptor); ok {
			for n := range s.Methods().Len() {
				m := s.Methods().Get(n)
				name := strings.Join([]string{"", service, string(m.Name())}, "/")
				if (m.IsStreamingClient() || m.IsStreamingServer()) && !i.o.rules().Stream(name) {
					err = errStreams
				}
			}
		}
	}
	i.vouched.Store(service, err)
	return err
}
