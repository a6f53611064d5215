package stethttp

import (
	"strings"
	"testing"
	"time"
)

// FuzzNegotiate: for all preferences of a request, a wait was
// asked for, the first preference of a name counts, and a response without a coding
// is accepted.
func FuzzNegotiate(f *testing.F) {
	f.Add("respond-async, wait=10", "gzip;q=0.5, *;q=0")
	f.Add(`wait="5"; x=", wait=9", WAIT = 3`, `identity;q="0",\`)
	f.Add(`"\",wait=1`, ";;q=;,=")
	f.Fuzz(func(t *testing.T, prefer, accept string) {
		wait, ok := preferredWait([]string{prefer})
		if wait < 0 || wait > (1<<31-1)*time.Second || wait%time.Second != 0 || !ok && wait != 0 {
			t.Fatalf("%q: wait %v, %t", prefer, wait, ok)
		}
		if ok && !strings.Contains(strings.ToLower(prefer), "wait") {
			t.Fatalf("%q does not ask to wait", prefer)
		}
		if _, asked := preference([]string{prefer}, "wait"); ok && !asked {
			t.Fatalf("%q: a wait of no preference", prefer)
		}
		if wait, ok := preferredWait([]string{"wait=7", prefer}); !ok || wait != 7*time.Second {
			t.Fatalf("%q changes the preference before it to %v, %t", prefer, wait, ok)
		}
		if !accepts([]string{accept}, nil) || !accepts([]string{accept}, []string{"identity"}) {
			t.Fatalf("%q does not accept content without a coding", accept)
		}
		if listed, accepted := weigh([]string{accept}, "br"); accepted && !listed {
			t.Fatalf("%q accepts a coding that it does not list", accept)
		}
	})
}
