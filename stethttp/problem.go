package stethttp

import (
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	"github.com/stet-go/stet"
)

// condition is one type of problem. docs/problems.md has a section for each.
type condition struct {
	name      string
	status    int
	title     string
	detail    string
	retryable bool // may the same request be sent again, under the same key?
	execution stet.Execution
}

var (
	keyMissing = condition{"key-missing", 400, "Idempotency key missing",
		"This operation needs an idempotency key, so that it can be retried safely.", false, stet.NotExecuted}
	keyInvalid = condition{"key-invalid", 400, "Idempotency key invalid",
		"A key has 1 to 255 bytes of visible ASCII.", false, stet.NotExecuted}
	keyRepeated = condition{"key-repeated", 400, "Idempotency key repeated",
		"The request has more than one idempotency key.", false, stet.NotExecuted}
	scopeMissing = condition{"scope-missing", 403, "Nobody to keep the key for",
		"The request does not say whose idempotency key this is.", false, stet.NotExecuted}
	scopeFailed = condition{"scope-failed", 500, "Owner of the key not found out",
		"The server could not find out whose idempotency key this is.", true, stet.NotExecuted}
	bodyTooLarge = condition{"body-too-large", 413, "Request body too large",
		"The request body is larger than this operation accepts.", false, stet.NotExecuted}
	bodyUnreadable = condition{"body-unreadable", 400, "Request body unreadable",
		"The request body ended early or could not be read.", true, stet.NotExecuted}
	mismatch = condition{"mismatch", 422, "Idempotency key reused for another request",
		"This key was used before for a request that differs from this one.", false, stet.NotExecuted}
	inFlight = condition{"in-flight", 409, "Operation in flight",
		"The first request with this key is still being executed.", true, stet.MayHaveExecuted}
	outcomeUnknown = condition{"outcome-unknown", 504, "Outcome unknown",
		"The operation may have been executed. Keep asking with the same key: a new key would risk a second execution.", true, stet.MayHaveExecuted}
	resultExpired = condition{"result-expired", 410, "Result no longer kept",
		"The operation was executed before; its response is no longer kept, or was too large to be. It does not run again.", false, stet.Executed}
	resultUnreadable = condition{"result-unreadable", 500, "Stored result unreadable",
		"The operation was executed before, but its stored response cannot be read. It does not run again.", false, stet.Executed}
	codingNotAcceptable = condition{"coding-not-acceptable", 406, "Content coding not acceptable",
		"The operation was executed before; its response has a content coding that Accept-Encoding rules out.", false, stet.Executed}
	storeUnavailable = condition{"store-unavailable", 503, "Idempotency store unavailable",
		"Nothing was executed, because it could not have been recorded.", true, stet.NotExecuted}
	requestEnded = condition{"request-ended", 503, "Request ended before the operation began",
		"The request was cancelled or timed out before its operation was begun.", true, stet.NotExecuted}
	processingTimedOut = condition{"processing-timed-out", 504, "Processing timed out",
		"The operation was begun and never finished. It may have been executed, and does not run again.", false, stet.MayHaveExecuted}
	handlerPanicked = condition{"handler-panicked", 500, "Operation broke off",
		"The operation broke off. It may have been executed, and does not run again.", false, stet.MayHaveExecuted}
	responseInvalid = condition{"response-invalid", 500, "Response invalid",
		"The operation ended with a status that is none. It may have been executed, and does not run again.", false, stet.MayHaveExecuted}
	responseInvalidUndone = condition{"response-invalid", 500, "Response invalid",
		"The operation ended with a status that is none. It had no effect.", true, stet.NotExecuted}
	responseTooLarge = condition{"response-too-large", 500, "Response too large",
		"The response is larger than can be held back until the commit, so the operation was rolled back.", false, stet.NotExecuted}
	misconfigured = condition{"misconfigured", 500, "Idempotency misconfigured",
		"The server could not begin the operation.", false, stet.NotExecuted}
)

// What only accepted operations meet.
var (
	methodNotAllowed = condition{"method-not-allowed", 405, "Method not allowed",
		"Allow says which methods this resource has.", false, stet.NotExecuted}
	mediaTypeUnsupported = condition{"media-type-unsupported", 415, "Media type not supported",
		"This operation takes application/json, without a content coding.", false, stet.NotExecuted}
	bodyInvalid = condition{"body-invalid", 400, "Request body invalid",
		"The request body is not a JSON text.", false, stet.NotExecuted}
	acceptanceUnknown = condition{"acceptance-unknown", 503, "Acceptance unknown",
		"Whether the operation was accepted is not known. Send the same request again, with the same key.", true, stet.MayHaveExecuted}
	operationNotFound = condition{"operation-not-found", 404, "No such operation",
		"There is no such operation, or it is not yours, or it was forgotten.", false, stet.MayHaveExecuted}
	statusUnavailable = condition{"status-unavailable", 503, "Status unavailable",
		"What became of the operation cannot be looked up right now.", true, stet.MayHaveExecuted}
	operationUnreadable = condition{"operation-unreadable", 500, "Stored operation unreadable",
		"The operation was accepted, but what is stored of it cannot be read.", false, stet.MayHaveExecuted}
	operationFailed = condition{"operation-failed", 500, "Operation failed",
		"The operation failed. It may have had an effect before, and does not run again.", false, stet.MayHaveExecuted}
	operationCancelled = condition{"operation-cancelled", 409, "Operation cancelled",
		"The operation was cancelled before it was begun.", false, stet.NotExecuted}
	operationBrokenOff = condition{"operation-cancelled", 409, "Operation cancelled",
		"The operation was cancelled after it had been begun. Some of it may have been executed.", false, stet.MayHaveExecuted}
	notCancellable = condition{"not-cancellable", 409, "Operation cannot be cancelled",
		"The operation has ended.", false, stet.MayHaveExecuted}
)

// problem is the document (RFC 9457).
type problem struct {
	Type      string `json:"type"`
	Title     string `json:"title"`
	Status    int    `json:"status"`
	Detail    string `json:"detail"`
	Retryable bool   `json:"retryable"`
	Execution string `json:"execution"`
}

// document returns the document of a condition. detail may be "": the
// condition's own.
func (m *Middleware) document(c *condition, detail string) []byte {
	b, err := json.Marshal(problem{m.o.ProblemBase + c.name, c.title, c.status, orDefault(detail, c.detail), c.retryable, c.execution.String()})
	if err != nil {
		panic(err) // strings, a number and a boolean always marshal
	}
	return append(b, '\n')
}

const (
	problemType = "application/problem+json"
	noStore     = "no-store"
)

// refuse answers with a problem. detail may be "": the condition's own.
func (m *Middleware) refuse(w http.ResponseWriter, c *condition, detail string, retryAfter time.Duration) {
	h := w.Header()
	for _, name := range [...]string{"Content-Encoding", "Content-Length", "Etag", "Last-Modified"} {
		delete(h, name) // they would be those of another content
	}
	h.Set("Content-Type", problemType)
	h.Set("Cache-Control", noStore)
	if retryAfter > 0 {
		askAgain(h, retryAfter)
	}
	if c == &keyMissing {
		h.Set("Link", "<"+m.o.ProblemBase+c.name+`>; rel="describedby"; type="text/html"`)
	}
	w.WriteHeader(c.status)
	_, _ = w.Write(m.document(c, detail)) // a client that has left hears nothing
}

// askAgain says when to (RFC 9110, section 10.2.3), in whole seconds.
func askAgain(h http.Header, after time.Duration) {
	h.Set("Retry-After", strconv.FormatInt(int64((after+time.Second-1)/time.Second), 10))
}

// asResponse is the response that a problem is.
func (m *Middleware) asResponse(c *condition, detail string) stored {
	return stored{
		status: c.status,
		header: []field{{"Cache-Control", []string{noStore}}, {"Content-Type", []string{problemType}}},
		body:   m.document(c, detail),
	}
}

// storedProblem is the outcome of an operation that ended in a problem.
func (m *Middleware) storedProblem(c *condition) stet.Outcome {
	s := m.asResponse(c, "")
	return stet.Outcome{State: stet.Failed, Result: s.encode()}
}
