package webhook

import (
	"net/http"
	"time"
)

// At sets the time at which h checks signatures.
func At(h http.Handler, now time.Time) http.Handler {
	h.(*handler).now = func() time.Time { return now }
	return h
}
