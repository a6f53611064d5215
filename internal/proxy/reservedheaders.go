package proxy

import (
	"cmp"
	"net/http"
	"slices"
	"strings"

	"github.com/stet-go/stet/stethttp"
)

// reservedHeaders are the request headers of keys and scopes. The service must receive
// exactly the fields that the proxy reads.
type reservedHeaders struct {
	keys []string // of keys, in canonical form
	all  []string // and of scopes
}

func newReservedHeaders() *reservedHeaders {
	g := &reservedHeaders{all: []string{"X-Idempotency-Key"}}
	g.key(stethttp.DefaultHeader)
	return g
}

// key adds the header of a route's keys; "" is the default.
func (g *reservedHeaders) key(name string) {
	name = cmp.Or(http.CanonicalHeaderKey(name), stethttp.DefaultHeader)
	g.keys = append(g.keys, name)
	g.scope(name)
}

// scope adds headers that a scope is read from.
func (g *reservedHeaders) scope(names ...string) {
	for _, name := range names {
		if !slices.Contains(g.all, name) {
			g.all = append(g.all, name)
		}
	}
}

// keyed reports whether a request has a key, of any route.
func (g *reservedHeaders) keyed(h http.Header) bool {
	return slices.ContainsFunc(g.keys, func(name string) bool { return len(h[name]) > 0 })
}

// wrong returns why a request is refused, nil if it is not.
func (g *reservedHeaders) wrong(h http.Header) *condition {
	for _, v := range h["Connection"] {
		for option := range strings.SplitSeq(v, ",") {
			if g.has(strings.TrimSpace(option)) {
				return &keyHopByHop
			}
		}
	}
	for name := range h {
		if !slices.Contains(g.all, name) && g.has(name) {
			return &headerMisspelled
		}
	}
	return nil
}

// has reports whether a service can take a field for one of them.
func (g *reservedHeaders) has(name string) bool {
	return slices.ContainsFunc(g.all, func(known string) bool { return sameField(name, known) })
}

// sameField reports whether a service can take two names for the same field. Services that see
// headers as variables (CGI and its successors) have one variable for "Idempotency-Key" and
// "Idempotency_Key".
func sameField(a, b string) bool {
	return len(a) == len(b) && asVariable(a) == asVariable(b)
}

// asVariable is the name of a field in such a service.
func asVariable(name string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case 'a' <= r && r <= 'z':
			return r - 'a' + 'A'
		case 'A' <= r && r <= 'Z', '0' <= r && r <= '9':
			return r
		}
		return '_'
	}, name)
}
