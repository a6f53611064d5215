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

// ofProxy reports whether a field is between the proxy and the service, in every spelling that a
// service can take for it.
func ofProxy(name string) bool {
	const prefix = "STET_"
	return len(name) >= len(prefix) && asVariable(name[:len(prefix)]) == prefix
}

// strip removes the fields between the proxy and the service.
func strip(h http.Header) {
	for name := range h {
		if ofProxy(name) {
			delete(h, name)
		}
	}
}

// stripHint removes from the header of a 1xx the fields for the proxy, and the fields of the
// final response.
func stripHint(h http.Header) {
	strip(h)
	for _, name := range []string{stethttp.DefaultReplayedHeader, "Idempotency-Execution", "Idempotency-Expires", "Set-Cookie"} {
		h.Del(name)
	}
}

// stripClient removes fields that no client can send to the service.
func stripClient(h http.Header) {
	strip(h)
	for name := range h {
		if !strings.ContainsFunc(name, func(r rune) bool { return r != '-' && inVariable(r) == '_' }) {
			continue // the proxy knows this spelling
		}
		switch v := asVariable(name); {
		case strings.HasPrefix(v, "X_FORWARDED_"), v == "CONTENT_LENGTH", v == "TRANSFER_ENCODING":
			delete(h, name)
		}
	}
}

// ofConnection reports whether a field is about the connection, the length of the content or the
// host, in every spelling.
func ofConnection(name string) bool {
	switch v := asVariable(name); v {
	case "CONNECTION", "CONTENT_LENGTH", "EXPECT", "HOST", "KEEP_ALIVE", "TE", "TRAILER", "TRANSFER_ENCODING", "UPGRADE":
		return true
	default:
		return strings.HasPrefix(v, "PROXY_")
	}
}

// isToken reports whether a text can be a method or the name of a field (RFC 9110, section
// 5.6.2).
func isToken(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return r <= ' ' || r >= 0x7f || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, r)
	})
}

// sameField reports whether a service can take two names for the same field. Services that see
// headers as variables (CGI and its successors) have one variable for "Idempotency-Key" and
// "Idempotency_Key".
func sameField(a, b string) bool {
	return len(a) == len(b) && asVariable(a) == asVariable(b)
}

// asVariable is the name of a field in such a service.
func asVariable(name string) string { return strings.Map(inVariable, name) }

// inVariable is a character of a field's name in the variable.
func inVariable(r rune) rune {
	switch {
	case 'a' <= r && r <= 'z':
		return r - 'a' + 'A'
	case 'A' <= r && r <= 'Z', '0' <= r && r <= '9':
		return r
	}
	return '_'
}
