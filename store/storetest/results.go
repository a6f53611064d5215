package storetest

import (
	"fmt"
	"hash/crc32"

	"github.com/stet-go/stet/store"
)

// result is one whose parts all follow from its body, so that a store that loses one, or
// takes that of another record, is found.
func result(body string) store.Result {
	sum := crc32.ChecksumIEEE([]byte(body))
	return store.Result{Status: 200 + int(sum%300), Type: fmt.Sprintf("text/x%d", sum%7),
		Head: fmt.Appendf(nil, "\x00head of %08x", sum), Body: []byte(body)}
}

// text returns the body of a result that func result made, and a description of any other.
func text(r store.Result) string {
	if body := string(r.Body); r.Equal(result(body)) {
		return body
	}
	return shown(r)
}

// sized is a result of that Size.
func sized(n int) store.Result {
	r := store.Result{Status: 200, Head: []byte{0xff}}
	if n <= r.Size() {
		return store.Result{Body: make([]byte, max(0, n-3))}
	}
	r.Body = make([]byte, n-r.Size())
	return r
}

// shown is a result for a person.
func shown(r store.Result) string {
	if r.IsZero() {
		return "nothing"
	}
	return fmt.Sprintf("%d %.40q, head %s, body %s", r.Status, r.Type, brief(r.Head), brief(r.Body))
}

// brief is bytes for a person.
func brief(b []byte) string {
	switch {
	case b == nil:
		return "nil"
	case len(b) > 40:
		return fmt.Sprintf("%q… (%d bytes)", b[:40], len(b))
	}
	return fmt.Sprintf("%q", b)
}

// variants are results that differ from r in one part each.
func variants(r store.Result) map[string]store.Result {
	status, media, head, bare, body := r, r, r, r, r
	status.Status ^= 1
	media.Type += "x"
	head.Head = append(append([]byte{}, r.Head...), 1)
	bare.Head = nil
	body.Body = append(append([]byte{}, r.Body...), 0)
	return map[string]store.Result{"another status": status, "another type": media, "another head": head, "no head": bare, "another body": body}
}
