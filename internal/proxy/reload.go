package proxy

import (
	"errors"
	"reflect"
	"slices"
	"strings"
)

// fixed are the fields that cannot change while the proxy runs. The fields below reloadable can.
var (
	fixed      = []string{"listen", "tls", "namespace", "previous", "limits", "store", "admin.listen", "admin.tls", "admin.audit", "log.access"}
	reloadable = []string{"limits.waiters", "store.timeout", "store.sweep_every"}
)

// unchanged returns an error about each fixed field that differs from before.
func (c *Config) unchanged(before *Config) error {
	var errs []error
	is, was := *c, *before // fieldAt makes sections that are missing

	for _, s := range Settings() { // they include all fixed fields
		path := s.Path
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

// below reports whether a path is one of others, or below one.
func below(path string, those []string) bool {
	return slices.ContainsFunc(those, func(s string) bool { return path == s || strings.HasPrefix(path, s+".") })
}
