package proxy

import (
	"net/http"
	"net/url"
	"strings"
)

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

// sendableHost reports whether a request can be sent with this host. The host of an absolute
// target is not checked elsewhere, and a bad one would look like a service that cannot be
// reached.
func sendableHost(host string) bool {
	return !strings.ContainsFunc(host, func(r rune) bool {
		return r <= ' ' || r >= 0x7f || strings.ContainsRune("\"#/<>?@\\^`{|}", r)
	})
}
