package stetconnect

import (
	"slices"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/stet-go/stet/internal/misuse"
	"github.com/stet-go/stet/internal/rpc"
)

// rule is what becomes of the unary calls of a procedure.
type rule uint8

const (
	protected rule = iota
	passes         // with a key or without
	keyless        // it passes without a key
)

// rule returns what becomes of the unary calls of a procedure. Its own name counts more
// than that of its service.
func (o *Options) rule(procedure string) rule {
	switch {
	case slices.Contains(o.Procedures, procedure):
		return protected
	case names(o.Unprotected, procedure):
		return passes
	case names(o.Procedures, procedure):
		return protected
	case rpc.Builtin(serviceOf(procedure)):
		return passes
	case len(o.Procedures) == 0:
		return protected
	}
	return keyless
}

// stream reports whether a streaming procedure may be called. Where one procedure of a
// service is protected, its others are looked at, too.
func (o *Options) stream(procedure string) bool {
	service := serviceOf(procedure)
	switch {
	case slices.Contains(o.Streams, procedure):
		return true
	case slices.ContainsFunc(o.Procedures, func(name string) bool { return name == service || isProcedure(name) && serviceOf(name) == service }):
		return false
	case rpc.Builtin(service), len(o.Procedures) > 0:
		return true
	}
	return slices.Contains(o.Unprotected, service)
}

// names reports whether a list names a procedure, or its service.
func names(list []string, procedure string) bool {
	return slices.Contains(list, procedure) || slices.Contains(list, serviceOf(procedure))
}

// serviceOf returns the service of a procedure.
func serviceOf(procedure string) string {
	service, _, _ := strings.Cut(strings.TrimPrefix(procedure, "/"), "/")
	return service
}

func isProcedure(name string) bool {
	service, method, ok := strings.Cut(strings.TrimPrefix(name, "/"), "/")
	return ok && name[0] == '/' && isService(service) && method != "" && !strings.Contains(method, "/")
}

func isService(name string) bool { return name != "" && !strings.ContainsAny(name, "/ ") }

// checkNames refuses names that are none.
func (o *Options) checkNames() error {
	for _, list := range []struct {
		name  string
		names []string
		what  string
	}{
		{"Procedures", o.Procedures, `, nor a service, such as "acme.v1.Payments"`},
		{"Unprotected", o.Unprotected, `, nor a service, such as "acme.v1.Payments"`},
		{"Streams", o.Streams, ""},
	} {
		for _, name := range list.names {
			if !isProcedure(name) && (list.what == "" || !isService(name)) {
				return misuse.Errorf("stetconnect: Options.%s: %q is not a procedure, such as %q%s", list.name, name, "/acme.v1.Payments/Charge", list.what)
			}
		}
	}
	for _, name := range o.Unprotected {
		if slices.Contains(o.Procedures, name) {
			return misuse.Errorf("stetconnect: Options: %q is in Procedures and in Unprotected", name)
		}
	}
	return nil
}

// Check compares the names in Options with the services of the handlers. Call it when the
// program starts. It refuses a streaming procedure of a protected service that Options.Streams
// does not name, and a name that is in none of the services. The error is of kind
// stet.KindInvalid.
func (i *Interceptor) Check(services ...protoreflect.ServiceDescriptor) error {
	o := &i.o
	streams := make(map[string]bool) // by procedure
	known := make(map[string]bool)   // services
	for _, service := range services {
		if service == nil {
			return misuse.Errorf("stetconnect: Check needs descriptors that are not nil")
		}
		known[string(service.FullName())] = true
		for n := range service.Methods().Len() {
			m := service.Methods().Get(n)
			name := "/" + string(service.FullName()) + "/" + string(m.Name())
			streams[name] = m.IsStreamingClient() || m.IsStreamingServer()
			if streams[name] && !o.stream(name) {
				return misuse.Errorf("stetconnect: %s is a streaming procedure, which cannot be protected: if it is to pass unprotected, name it in Options.Streams", name)
			}
		}
	}
	for _, name := range slices.Concat(o.Procedures, o.Unprotected) {
		if stream, procedure := streams[name]; !known[name] && !procedure {
			return misuse.Errorf("stetconnect: Options.Procedures or Unprotected: %q is in none of the services", name)
		} else if stream {
			return misuse.Errorf("stetconnect: Options.Procedures or Unprotected: %q is a streaming procedure; such are named in Options.Streams", name)
		}
	}
	for _, name := range o.Streams {
		if !streams[name] {
			return misuse.Errorf("stetconnect: Options.Streams: none of the services has a streaming procedure %q", name)
		}
	}
	return nil
}
