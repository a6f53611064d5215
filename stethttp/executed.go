package stethttp

import (
	"net/http"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
)

// executionHeader says "executed" of a stored response that by itself tells a client that
// nothing was executed: a 429, a 401 or a 403 of the handler's, or a problem document, which
// the handler may have passed on from another service behind stet. It says "not executed" of
// a stored refusal whose effect was undone. Of a stored problem of stet's own it says what the
// document says. In a handler's response the field is of another operation, and is not passed on.
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

// refusing reports whether a client may conclude from a response that nothing was executed.
func refusing(status int, contentType string) bool {
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusProxyAuthRequired,
		http.StatusTooEarly, http.StatusTooManyRequests, http.StatusServiceUnavailable:
		return true
	}
	return status >= http.StatusBadRequest && mediaTypeOf(contentType) == "application/problem+json"
}

// executionOf answers "did it execute?" for an outcome of an operation that was begun.
func executionOf(out stet.Outcome) stet.Execution {
	switch {
	case out.Reason == store.ReasonNoEffect:
		return stet.NotExecuted
	case out.Failed:
		return stet.MayHaveExecuted
	}
	return stet.Executed
}

// markOf is the value of executionHeader of a stored response; "" for none.
func markOf(reason store.Reason, status int, contentType string) string {
	switch {
	case reason == store.ReasonNoEffect:
		return stet.NotExecuted.String()
	case refusing(status, contentType):
		return stet.Executed.String()
	}
	return ""
}

// unmarked returns a copy of the handler's header, of the response or of a 1xx, without fields that
// describe another operation.
func (c *capture) unmarked(header http.Header) http.Header {
	header = header.Clone()
	for _, name := range c.marks {
		delete(header, name)
	}
	return header
}

// addStoredFields adds to a stored response, unless it has begun, how long its key is remembered,
// and whether the operation was executed if the status does not say so.
func (c *capture) addStoredFields(expires string, reason store.Reason) {
	if c.begun {
		return
	}
	if expires != "" {
		c.final.Set(expiresHeader, expires)
	}
	if mark := markOf(reason, c.status, c.final.Get("Content-Type")); mark != "" {
		c.final.Set(executionHeader, mark)
	}
}
