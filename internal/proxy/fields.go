package proxy

import (
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/stet-go/stet/stethttp"
)

// strip removes the fields between the proxy and the service, in every spelling that a service
// can take for them.
func strip(h http.Header) {
	for name := range h {
		if strings.HasPrefix(asVariable(name), "STET_") {
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
		if !strings.ContainsFunc(name, func(r rune) bool { return r != '-' && asVariable(string(r)) == "_" }) {
			continue // the proxy knows this spelling
		}
		switch v := asVariable(name); {
		case strings.HasPrefix(v, "X_FORWARDED_"), v == "CONTENT_LENGTH", v == "TRANSFER_ENCODING":
			delete(h, name)
		}
	}
}

// answer is a response's content.
type answer struct {
	io.ReadCloser
	of   *http.Response
	trip *trip // nil on routes that are not protected

	emitted func(trailer http.Header) // receives the trailer
	counted int                       // bytes in memory, because the response is stored
}

// Read implements io.Reader. It tells the trip when the content breaks off.
func (a *answer) Read(p []byte) (int, error) {
	n, err := a.ReadCloser.Read(p)
	if a.trip != nil && a.counted < a.trip.keeps() {
		a.counted += n
		stateOf(a.of.Request.Context()).hold(n)
	}
	switch {
	case err == io.EOF: //nolint:errorlint // a wrapped one is no end
		a.emitted(a.of.Trailer)
		strip(a.of.Trailer)
	case err != nil && a.trip != nil:
		a.trip.unread.Store(true)
	}
	return n, err
}

// targetOf returns a request's target, path and query, byte for byte; "" if it cannot be sent
// unchanged.
func targetOf(r *http.Request, upstream *url.URL) string {
	target := received(r)
	if target == "*" && r.Method == http.MethodOptions {
		return target
	}
	if !strings.HasPrefix(target, "/") { // "http:/payments", for instance: services differ in how they read it
		return ""
	}
	target = strings.TrimSuffix(upstream.EscapedPath(), "/") + target
	for i := range len(target) {
		if target[i] <= ' ' || target[i] == 0x7f { // HTTP/2 lets spaces through, which would end an HTTP/1 target
			return ""
		}
	}
	if u := new(url.URL); !setTarget(u, target) {
		return ""
	}
	return target
}

// received returns the target in origin form.
func received(r *http.Request) string {
	raw := r.RequestURI
	u, err := url.ParseRequestURI(raw)
	if err != nil || u.Path != r.URL.Path || u.RawPath != r.URL.RawPath || u.RawQuery != r.URL.RawQuery {
		return r.URL.RequestURI() // a handler around the proxy has changed it
	}
	if _, rest, absolute := strings.Cut(raw, "://"); absolute && raw[0] != '/' {
		i := strings.IndexAny(rest, "/?")
		switch {
		case i < 0:
			return "/"
		case rest[i] == '?':
			return "/" + rest[i:]
		}
		return rest[i:]
	}
	return raw
}

// setTarget sets the target of a URL, byte for byte. It returns false if that is not possible.
func setTarget(u *url.URL, target string) bool {
	path, query, asked := strings.Cut(target, "?")
	u.RawQuery, u.ForceQuery = query, asked
	if !strings.HasPrefix(path, "//") {
		u.Opaque = path
		return true
	}
	// With two slashes, an opaque URL would name a host.
	var err error
	u.Path, err = url.PathUnescape(path)
	u.RawPath = path
	return err == nil && u.EscapedPath() == path
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

// sendableHost reports whether a request can be sent with this host. The host of an absolute
// target is not checked elsewhere, and a bad one would look like a service that cannot be
// reached.
func sendableHost(host string) bool {
	return !strings.ContainsFunc(host, func(r rune) bool {
		return r <= ' ' || r >= 0x7f || strings.ContainsRune("\"#/<>?@\\^`{|}", r)
	})
}
