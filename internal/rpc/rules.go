package rpc

import (
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/stet-go/stet/internal/misuse"
)

// Rule says how the unary calls of a method are handled.
type Rule uint8

// The rules.
const (
	Protected Rule = iota
	Passes         // with a key or without
	Keyless        // it passes without a key
)

// Rules are the lists of an adapter's options. Protected and Unprotected name methods
// ("/shop.v1.Payments/Charge") or services ("shop.v1.Payments"), Streams names methods.
type Rules struct {
	Package, Option                 string // for errors: the package, and its name of Protected
	Protected, Unprotected, Streams []string
}

// Of returns the rule of a unary method. A method's own name counts more than that of its
// service.
func (r Rules) Of(method string) Rule {
	switch {
	case slices.Contains(r.Protected, method):
		return Protected
	case Names(r.Unprotected, method):
		return Passes
	case Names(r.Protected, method):
		return Protected
	case Builtin(ServiceOf(method)):
		return Passes
	case len(r.Protected) == 0:
		return Protected
	}
	return Keyless
}

// Stream reports whether a streaming method may be called. If one method of a service is
// protected, its streaming methods must be named.
func (r Rules) Stream(method string) bool {
	service := ServiceOf(method)
	switch {
	case slices.Contains(r.Streams, method):
		return true
	case slices.ContainsFunc(r.Protected, func(name string) bool { return name == service || ServiceOf(name) == service && IsMethod(name) }):
		return false
	case Builtin(service), len(r.Protected) > 0:
		return true
	}
	return slices.Contains(r.Unprotected, service)
}

// Check refuses names that are malformed, or in two lists.
func (r Rules) Check() error {
	for _, list := range []struct {
		option   string
		names    []string
		services bool
	}{{r.Option, r.Protected, true}, {"Unprotected", r.Unprotected, true}, {"Streams", r.Streams, false}} {
		for _, name := range list.names {
			if !IsMethod(name) && (!list.services || !IsService(name)) {
				return misuse.Errorf("%s: Options.%s: %q is not a full method, such as %q%s", r.Package, list.option, name, "/shop.v1.Payments/Charge",
					map[bool]string{true: `, nor a service, such as "shop.v1.Payments"`}[list.services])
			}
		}
	}
	for _, name := range r.Unprotected {
		if slices.Contains(r.Protected, name) {
			return misuse.Errorf("%s: Options: %q is in %s and in Unprotected", r.Package, name, r.Option)
		}
	}
	return nil
}

// Match compares the names with the methods of all services: whether each is streaming.
func (r Rules) Match(streaming map[string]bool, services map[string]bool) error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, misuse.Errorf(r.Package+": "+format, args...))
	}
	for _, name := range slices.Sorted(maps.Keys(streaming)) {
		if streaming[name] && !r.Stream(name) {
			bad("%s is a streaming method, which cannot be protected: if it must pass unprotected, name it in Options.Streams", name)
		}
	}
	for _, name := range slices.Concat(r.Protected, r.Unprotected) {
		if stream, method := streaming[name]; !services[name] && !method {
			bad("Options.%s or Unprotected: there is no %q among the services", r.Option, name)
		} else if stream {
			bad("Options.%s or Unprotected: %q is a streaming method; such are named in Options.Streams", r.Option, name)
		}
	}
	for _, name := range r.Streams {
		if !streaming[name] {
			bad("Options.Streams: there is no streaming method %q among the services", name)
		}
	}
	return errors.Join(errs...)
}

// IsMethod reports whether a name is that of a method, IsService that of a service.
func IsMethod(name string) bool {
	service, method, ok := strings.Cut(strings.TrimPrefix(name, "/"), "/")
	return ok && name[0] == '/' && IsService(service) && method != "" && !strings.Contains(method, "/")
}

// IsService is described at IsMethod.
func IsService(name string) bool { return name != "" && !strings.ContainsAny(name, "/ ") }

// ServiceOf returns the service of a method.
func ServiceOf(method string) string {
	service, _, _ := strings.Cut(strings.TrimPrefix(method, "/"), "/")
	return service
}

// Names reports whether a list names a method, or its service.
func Names(list []string, method string) bool {
	return slices.Contains(list, method) || slices.Contains(list, ServiceOf(method))
}
