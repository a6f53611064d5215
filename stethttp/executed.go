package stethttp

import (
	"net/http"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
)

// executionHeader says "executed" of a stored response that by itself tells a client that
// nothing was executed: a 429, a 401 or a 403 of the handler's, or a problem document, which
// the handler may have passed on from another service behind stet. Of a stored problem of
// stet's own it says what the document says. In a handler's response the field is of another
// operation, and is not passed on.
const executionHeader = "Idempotency-Execution"

// expiresHeader says until when the key of a stored response is remembered, as an HTTP date (RFC
// 9110, section 5.6.7) on the store's clock. Before it, a retry with the key does not run again.
const expiresHeader = "Idempotency-Expires"

// expiry is the value of expiresHeader; "" if it is not known.
func expiry(at time.Time) string {
	if at.IsZero() {
		return ""
	}
	return at.UTC().Format(http.TimeFormat)
}

// refusing reports whether a client may take a response for one before which nothing was
// executed.
func refusing(status int, contentType string) bool {
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusProxyAuthRequired,
		http.StatusTooEarly, http.StatusTooManyRequests, http.StatusServiceUnavailable:
		return true
	}
	return status >= http.StatusBadRequest && mediaTypeOf(contentType) == "application/problem+json"
}

// unmarked returns a header of the handler's, of the response or of a 1xx, without what it says
// of another operation.
func (c *capture) unmarked(header fields) fields {
	for _, name := range c.marks {
		header = header.without(name)
	}
	return header
}

// tell says of a stored response, unless it was begun, until when its key is remembered, and where
// its status does not say so, that the operation was executed.
func (c *capture) tell(expires string) {
	if c.begun {
		return
	}
	if expires != "" {
		c.final = append(c.final, store.Field{Name: expiresHeader, Values: []string{expires}})
	}
	if refusing(c.status, c.final.get("Content-Type")) {
		c.final = append(c.final, store.Field{Name: executionHeader, Values: []string{stet.Executed.String()}})
	}
}
