package stetgrpc

import (
	"errors"
	"maps"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/stet-go/stet/internal/misuse"
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
	services := s.GetServiceInfo()
	var errs []error
	streams := make(map[string]bool) // by full method
	for _, service := range slices.Sorted(maps.Keys(services)) {
		for _, m := range services[service].Methods {
			name := "/" + service + "/" + m.Name
			streams[name] = m.IsClientStream || m.IsServerStream
			if streams[name] && !i.o.stream(name) {
				errs = append(errs, misuse.Errorf("stetgrpc: %s is a streaming method, which cannot be protected: if it is to pass unprotected, name it in Options.Streams", name))
			}
		}
	}
	for _, name := range slices.Concat(i.o.Methods, i.o.Unprotected) {
		stream, method := streams[name]
		if _, service := services[name]; !service && !method {
			errs = append(errs, misuse.Errorf("stetgrpc: Options.Methods or Unprotected: the server has no %q", name))
		} else if stream {
			errs = append(errs, misuse.Errorf("stetgrpc: Options.Methods or Unprotected: %q is a streaming method; such are named in Options.Streams", name))
		}
	}
	for _, name := range i.o.Streams {
		if stream, method := streams[name]; !method || !stream {
			errs = append(errs, misuse.Errorf("stetgrpc: Options.Streams: the server has no streaming method %q", name))
		}
	}
	if len(errs) == 0 {
		i.streams.Store(true)
	}
	return errors.Join(errs...)
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
		if !i.o.stream(info.FullMethod) {
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
				if (m.IsStreamingClient() || m.IsStreamingServer()) && !i.o.stream(name) {
					err = errStreams
				}
			}
		}
	}
	i.vouched.Store(service, err)
	return err
}
