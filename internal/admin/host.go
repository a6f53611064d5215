package admin

import (
	"net"
	"net/http"
)

// FromThisHost reports whether a request comes from this host, for a name that no
// other site can have: a page of such a site may have its own name resolved to this
// host (DNS rebinding), and then reads the response.
func FromThisHost(r *http.Request) bool {
	host := r.Host
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	if !LoopbackName(host) || !loopback(r.RemoteAddr) {
		return false
	}
	at, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	return !ok || loopback(at.String())
}

func loopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	return err == nil && net.ParseIP(host).IsLoopback()
}
