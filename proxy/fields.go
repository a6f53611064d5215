package proxy

import (
	"io"
	"net/http"
	"strings"

	"github.com/stet-go/stet/stethttp"
)

// strip removes what only the proxy and the service may tell each other, in
// every spelling that a service may take for it.
func strip(h http.Header) {
	for name := range h {
		if strings.HasPrefix(asVariable(name), "STET_") {
			delete(h, name)
		}
	}
}

// stripHint removes from the header of a 1xx what a service may tell the proxy only, and what
// belongs to the response after it.
func stripHint(h http.Header) {
	strip(h)
	for _, name := range []string{stethttp.DefaultReplayedHeader, "Idempotency-Execution", "Idempotency-Expires", "Set-Cookie"} {
		h.Del(name)
	}
}

// stripClient removes what no client may say to the service.
func stripClient(h http.Header) {
	strip(h)
	for name := range h {
		if !strings.ContainsFunc(name, func(r rune) bool { return r != '-' && asVariable(string(r)) == "_" }) {
			continue // it is spelled as the proxy knows it
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

	emitted func(trailer http.Header) // is told of the trailer
	counted int                       // bytes that the proxy holds, as the response is kept
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
