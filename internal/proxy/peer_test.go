package proxy

import (
	"net/http"
	"testing"
)

func TestPeerIsTheAddressOrTheNetworkOfARequest(t *testing.T) {
	for _, c := range []struct {
		remote, forwarded string
		trusted           bool
		want              string
	}{
		{"192.0.2.7:1234", "", false, "192.0.2.7/32"},
		{"[::ffff:192.0.2.7]:1234", "", false, "192.0.2.7/32"},
		{"[2001:db8:1:2:3::4]:1234", "", false, "2001:db8:1:2::/64"},
		{"[fe80::1%eth0]:1234", "", false, "fe80::/64"},
		{"192.0.2.7:1234", "198.51.100.1", false, "192.0.2.7/32"},
		{"192.0.2.7:1234", "203.0.113.9, 198.51.100.1", true, "198.51.100.1/32"},
		{"192.0.2.7:1234", "198.51.100.1, 2001:db8::1", true, "2001:db8::/64"},
		{"192.0.2.7:1234", "unknown", true, "192.0.2.7/32"},
		{"192.0.2.7:1234", "", true, "192.0.2.7/32"},
		{"@", "", false, "invalid Prefix"},
	} {
		r := &http.Request{RemoteAddr: c.remote, Header: http.Header{}}
		if c.forwarded != "" {
			r.Header["X-Forwarded-For"] = []string{"198.51.100.200", c.forwarded}
		}
		if got := peerOf(r, c.trusted).String(); got != c.want {
			t.Errorf("%+v: %s", c, got)
		}
	}
}
