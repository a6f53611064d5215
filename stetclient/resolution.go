package stetclient

import (
	"crypto/tls"
	"encoding/json"
	"errors"
	"mime"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/stet-go/stet"
)

const (
	problemType = "application/problem+json"
	maxProblem  = 64 << 10 // bytes of a problem document
	maxSeconds  = 1 << 31  // of Retry-After; a longer wait is shortened to it
)

// Problem is a problem document (RFC 9457). docs/problems.md lists those of stet. A document of
// any service counts if it has both members, retryable and execution.
type Problem struct {
	Type   string
	Title  string
	Status int
	Detail string
	// Retryable: the same request may be sent again under the same key, and can then have
	// another response.
	Retryable bool
	// Execution says whether the request of the response was executed.
	Execution stet.Execution

	says    bool // has both members
	unclear bool // has an execution, and it or retryable is missing or not known
}

// isProblem reports whether a response has the media type of a problem document.
func isProblem(h http.Header) bool {
	return mediaType(h) == problemType
}

// mediaType returns the media type of a response without parameters, which need not
// be well-formed; "" if it cannot be parsed.
func mediaType(h http.Header) string {
	media, _, err := mime.ParseMediaType(h.Get("Content-Type"))
	if err != nil && !errors.Is(err, mime.ErrInvalidMediaParameter) {
		return ""
	}
	return media
}

// parseProblem returns the document, or nil if there is none.
func parseProblem(h http.Header, body []byte) *Problem {
	if !isProblem(h) || len(body) > maxProblem {
		return nil
	}
	var d struct {
		Type, Title, Detail string
		Status              int
		Retryable           *bool
		Execution           *string
	}
	if json.Unmarshal(body, &d) != nil {
		return nil
	}
	p := &Problem{Type: d.Type, Title: d.Title, Detail: d.Detail, Status: d.Status}
	p.unclear = d.Execution != nil
	if d.Retryable == nil || d.Execution == nil {
		return p
	}
	for _, x := range [...]stet.Execution{stet.MayHaveExecuted, stet.NotExecuted, stet.Executed} {
		if x.String() == *d.Execution {
			p.Retryable, p.Execution, p.says, p.unclear = *d.Retryable, x, true, false
		}
	}
	return p
}

// resolutionOf classifies a response. A replay is the outcome, whatever its status. A response that
// says "not executed" in executionHeader is the outcome, too: a retry would only replay it.
func resolutionOf(status int, h http.Header, replayed bool, p *Problem) Resolution {
	v := Resolution{Execution: executionOf(status, h, replayed, p), After: retryAfter(h, time.Now())}
	x, said := headerExecution(h, replayed)
	v.stands = replayed || said && x == stet.NotExecuted
	switch {
	case said:
		again := retried(status)
		if p != nil && p.says {
			again = p.Retryable
		}
		v.Retry = again && !v.stands && x != stet.Executed
	case p != nil && p.says:
		v.Retry, v.Execution = p.Retryable && !replayed, p.Execution
	case replayed:
	default:
		v.Retry = retried(status)
	}
	if never(status) {
		v.Retry = false
	}
	return v
}

// never reports whether a status is always final, because the request itself is wrong.
func never(status int) bool {
	return status == http.StatusBadRequest || status == http.StatusUnprocessableEntity
}

// retried reports whether a response is retried by its status alone.
func retried(status int) bool {
	switch status {
	case http.StatusRequestTimeout, http.StatusConflict, http.StatusTooEarly, http.StatusTooManyRequests:
		return true
	case http.StatusNotImplemented, http.StatusHTTPVersionNotSupported:
		return false
	default:
		return status >= 500
	}
}

// executionOf returns whether a response's operation was executed, by its header and status. If
// its problem document could not be parsed (p is nil), or is unclear, it may have executed.
func executionOf(status int, h http.Header, replayed bool, p *Problem) stet.Execution {
	x, said := headerExecution(h, replayed)
	switch {
	case said:
		return x
	case replayed || status >= 200 && status < 300:
		return stet.Executed
	case p == nil && isProblem(h), p != nil && p.unclear:
		return stet.MayHaveExecuted
	case status == http.StatusUnauthorized, status == http.StatusForbidden, status == http.StatusProxyAuthRequired,
		status == http.StatusTooEarly, status == http.StatusTooManyRequests:
		return stet.NotExecuted
	// Not 408: middleware sends it for a handler that takes too long.
	case status == http.StatusServiceUnavailable && h.Get("Retry-After") != "":
		return stet.NotExecuted
	default:
		return stet.MayHaveExecuted
	}
}

// Headers of stet's responses.
const (
	// executionHeader says whether the operation of a stored response was executed, with the
	// names of stet.Execution. It has precedence over the problem document, because the
	// handler may have copied that from another service.
	executionHeader = "Idempotency-Execution"
	// expiresHeader marks a stored response, also the first one, which is not a replay.
	expiresHeader = "Idempotency-Expires"
)

// headerExecution returns the value of executionHeader, and whether it counts. "Not executed" permits a
// new key. A service may copy that value from the response of another service. Therefore it
// counts in a stored response only.
func headerExecution(h http.Header, replayed bool) (x stet.Execution, said bool) {
	for _, x := range [...]stet.Execution{stet.MayHaveExecuted, stet.NotExecuted, stet.Executed} {
		if values := h[executionHeader]; len(values) == 1 && values[0] == x.String() {
			return x, x != stet.NotExecuted || replayed || h.Get(expiresHeader) != ""
		}
	}
	return 0, false
}

// retryAfter returns the wait of Retry-After, in seconds or as a date (RFC 9110, section
// 10.2.3); 0 if there is none, or it is malformed. A date is compared with the response's
// Date, so that clocks need not agree.
func retryAfter(h http.Header, now time.Time) time.Duration {
	v := strings.Trim(h.Get("Retry-After"), " \t")
	if v == "" {
		return 0
	}
	if strings.Trim(v, "0123456789") == "" {
		seconds, err := strconv.ParseUint(v, 10, 64)
		if err != nil || seconds > maxSeconds {
			seconds = maxSeconds
		}
		return time.Duration(seconds) * time.Second
	}
	at, err := http.ParseTime(v)
	if err != nil {
		return 0
	}
	if date, err := http.ParseTime(h.Get("Date")); err == nil {
		now = date
	}
	return min(max(0, at.Sub(now)), maxSeconds*time.Second)
}

// classifyError classifies an attempt without a response.
func classifyError(err error) Resolution {
	if op, ok := errors.AsType[*net.OpError](err); ok && (op.Op == "dial" || op.Op == "proxyconnect") {
		return Resolution{Retry: true, Execution: stet.NotExecuted} // no connection, so nothing was sent
	}
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return Resolution{Execution: stet.NotExecuted} // nothing is sent to the wrong server
	}
	return Resolution{Retry: true, Execution: stet.MayHaveExecuted}
}
