package proxy

import (
	"errors"
	"reflect"
	"slices"
	"strings"
)

// fixed are the fields that cannot change while the proxy runs. The fields below reloadable can.
var (
	fixed      = []string{"listen", "tls", "namespace", "limits", "store", "admin.listen", "admin.tls", "admin.audit"}
	reloadable = []string{"limits.waiters", "store.timeout", "store.sweep_every"}
)

// unchanged returns an error about each fixed field that differs from before.
func (c *Config) unchanged(before *Config) error {
	var errs []error
	is, was := *c, *before // fieldAt makes sections that are missing
	for _, path := range leaves(reflect.TypeFor[Config](), "") {
		if !below(path, fixed) || below(path, reloadable) {
			continue
		}
		if !reflect.DeepEqual(fieldAt(reflect.ValueOf(&is), path).Interface(), fieldAt(reflect.ValueOf(&was), path).Interface()) {
			var steps []any
			for name := range strings.SplitSeq(path, ".") {
				steps = append(steps, name)
			}
			errs = append(errs, c.place(errors.New("it cannot change while the proxy runs; restart it, or set it back"), steps...))
		}
	}
	return errors.Join(errs...)
}

// leaves returns the paths of all fields that are no sections.
func leaves(typ reflect.Type, prefix string) (all []string) {
	for f := range tagged(typ) {
		path := prefix + f.Tag.Get("yaml")
		if isSection(f.Type) {
			all = append(all, leaves(f.Type, path+".")...)
		} else {
			all = append(all, path)
		}
	}
	return all
}

// below reports whether a path is one of others, or below one.
func below(path string, those []string) bool {
	return slices.ContainsFunc(those, func(s string) bool { return path == s || strings.HasPrefix(path, s+".") })
}
