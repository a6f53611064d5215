package stethttp

import (
	"net/http"
	"slices"
	"strings"

	"github.com/stet-go/stet/store"
)

// headerFilter selects the stored response headers.
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
// moment (RFC 9110, section 7.6.1). connection has the values of the Connection header.
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
func (f *headerFilter) fields(header, outer http.Header) (list []store.Field) {
	connection := header["Connection"]
	for name, values := range header {
		if !f.stores(name, connection) || strings.HasPrefix(name, http.TrailerPrefix) || name == "Content-Length" {
			continue
		}
		if before, ok := outer[name]; ok && slices.Equal(before, values) {
			continue
		}
		list = append(list, store.Field{Name: name, Values: slices.Clone(values)})
	}
	for name := range outer {
		if _, ok := header[name]; !ok && f.stores(name, connection) && name != "Content-Length" {
			list = append(list, store.Field{Name: name})
		}
	}
	sortFields(list)
	return list
}

// trailers returns the stored copy of the trailers of a response with header.
func (f *headerFilter) trailers(trailer, header http.Header) []store.Field {
	connection := header["Connection"]
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
