package proxy

import (
	"net/http"
	"net/url"
	"strings"
)

// targetOf returns a request's target, path and query, byte for byte as it was
// received; "" if it cannot be sent that way.
func targetOf(r *http.Request, upstream *url.URL) string {
	target := received(r)
	if target == "*" && r.Method == http.MethodOptions {
		return target
	}
	if !strings.HasPrefix(target, "/") { // "http:/payments", say, which services read in ways of their own
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

// received is the target in origin form.
func received(r *http.Request) string {
	raw := r.RequestURI
	u, err := url.ParseRequestURI(raw)
	if err != nil || u.Path != r.URL.Path || u.RawPath != r.URL.RawPath || u.RawQuery != r.URL.RawQuery {
		return r.URL.RequestURI() // what is around the proxy has changed it
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

// setTarget gives a URL the target that it is to be requested with, as it is. It
// is false if there is no way to.
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

// isToken reports whether a text can be a method or the name of a field (RFC 9110, section
// 5.6.2).
func isToken(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return r <= ' ' || r >= 0x7f || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, r)
	})
}

// sendableHost reports whether a request can be sent with this host: the one of an absolute
// target is not looked at before, and another one would be taken for a service that cannot
// be reached.
func sendableHost(host string) bool {
	return !strings.ContainsFunc(host, func(r rune) bool {
		return r <= ' ' || r >= 0x7f || strings.ContainsRune("\"#/<>?@\\^`{|}", r)
	})
}
