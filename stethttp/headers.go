package stethttp

import (
	"net/http"
	"slices"
	"strings"

	"github.com/stet-go/stet/store"
)

// fields are those of a header, each name once.
type fields []store.Field

// fieldsOf returns those of a header.
func fieldsOf(h http.Header) fields {
	list := make(fields, 0, len(h)+4) // and the added fields
	for name, values := range h {
		list = append(list, store.Field{Name: name, Values: values})
	}
	return list
}

// index returns where a name is; -1 if it is not there.
func (f fields) index(name string) int {
	return slices.IndexFunc(f, func(field store.Field) bool { return field.Name == name })
}

func (f fields) has(name string) bool { return f.index(name) >= 0 }

// values are those of a name, nil if it is not there.
func (f fields) values(name string) []string {
	if i := f.index(name); i >= 0 {
		return f[i].Values
	}
	return nil
}

// get returns the first value of a name, "" if there is none.
func (f fields) get(name string) string {
	if values := f.values(name); len(values) > 0 {
		return values[0]
	}
	return ""
}

func (f fields) without(name string) fields {
	return slices.DeleteFunc(f, func(field store.Field) bool { return field.Name == name })
}

// copied returns a copy, of the values as well.
func (f fields) copied() fields {
	list := slices.Clone(f)
	for i := range list {
		list[i].Values = slices.Clone(list[i].Values)
	}
	return list
}

// header returns them as a header.
func (f fields) header() http.Header {
	h := make(http.Header, len(f))
	for _, field := range f {
		h[field.Name] = field.Values
	}
	return h
}

// headerFilter says which response headers are stored.
type headerFilter struct {
	keep, drop map[string]bool // keep is nil for all; a field in both is dropped
}

func newHeaderFilter(o Options) headerFilter {
	f := headerFilter{drop: map[string]bool{o.ReplayedHeader: true, executionHeader: true, expiresHeader: true, "Preference-Applied": true}}
	if !o.StoreSetCookie {
		f.drop["Set-Cookie"] = true
	}
	for _, name := range o.DropHeaders {
		f.drop[http.CanonicalHeaderKey(name)] = true
	}
	if o.KeepHeaders != nil {
		f.keep = map[string]bool{"Content-Type": true, "Content-Encoding": true}
		for _, name := range o.KeepHeaders {
			f.keep[http.CanonicalHeaderKey(name)] = true
		}
	}
	return f
}

// neverStored reports whether a response header, canonically named, is about the connection or the
// moment, and not about the outcome (RFC 9110, section 7.6.1). connection are
// the values of the Connection header, whose fields are among them.
func neverStored(name string, connection []string) bool {
	switch name {
	case "Date", "Connection", "Keep-Alive", "Te", "Transfer-Encoding", "Upgrade":
		return true
	}
	if len(name) >= 6 && strings.EqualFold(name[:6], "Proxy-") {
		return true
	}
	return len(connection) > 0 && lists(connection, name)
}

// lists reports whether a list header names name.
func lists(fields []string, name string) bool {
	for _, v := range fields {
		for option := range elements(v) {
			if strings.EqualFold(option, name) {
				return true
			}
		}
	}
	return false
}

// stores reports whether a header or trailer field is stored.
func (f *headerFilter) stores(name string, connection []string) bool {
	canonical := http.CanonicalHeaderKey(name)
	return name != "" && name[0] != ':' && !f.drop[canonical] && (f.keep == nil || f.keep[canonical]) && !neverStored(canonical, connection)
}

// fields returns the stored copy of a response header, without trailers and without fields
// that were set before the handler was called. A field that the handler has removed has no
// values.
func (f *headerFilter) fields(header fields, outer http.Header) (list []store.Field) {
	connection := header.values("Connection")
	for _, field := range header {
		name := field.Name
		if !f.stores(name, connection) || strings.HasPrefix(name, http.TrailerPrefix) || name == "Content-Length" {
			continue
		}
		if before, ok := outer[name]; ok && slices.Equal(before, field.Values) {
			continue
		}
		list = append(list, field)
	}
	for name := range outer {
		if !header.has(name) && f.stores(name, connection) && name != "Content-Length" {
			list = append(list, store.Field{Name: name})
		}
	}
	sortFields(list)
	return list
}

// trailers returns the stored copy of the trailers of a response with header.
func (f *headerFilter) trailers(trailer http.Header, header fields) []store.Field {
	connection := header.values("Connection")
	var list []store.Field
	for name, values := range trailer {
		if f.stores(strings.TrimPrefix(name, http.TrailerPrefix), connection) {
			list = append(list, store.Field{Name: name, Values: values})
		}
	}
	sortFields(list)
	return list
}

// isTrailer reports whether net/http sends a header field as a trailer;
// declared are the values of the Trailer header.
func isTrailer(name string, declared []string) bool {
	return strings.HasPrefix(name, http.TrailerPrefix) || len(declared) > 0 && lists(declared, name)
}
