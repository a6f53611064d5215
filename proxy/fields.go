package proxy

import (
	"io"
	"net/http"
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
