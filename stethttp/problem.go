package stethttp

import (
	"cmp"
	"net/http"
	"strings"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/problem"
	"github.com/stet-go/stet/store"
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
	scopeMissing = condition{"scope-missing", 403, "Caller not identified",
		"The request does not say which account the idempotency key belongs to.", false, stet.NotExecuted}
	scopeFailed = condition{"scope-failed", 500, "Caller could not be identified",
		"The server could not find out which account the idempotency key belongs to.", true, stet.NotExecuted}
	scopeTooLong = condition{"scope-too-long", 403, "Name of the caller too long",
		"The name of the account that the idempotency key belongs to is too long.", false, stet.NotExecuted}
	bodyTooLarge = condition{"body-too-large", 413, "Request body too large",
		"The request body is larger than this operation accepts.", false, stet.NotExecuted}
	bodyUnreadable = condition{"body-unreadable", 400, "Request body unreadable",
		"The request body ended early or could not be read.", true, stet.NotExecuted}
	bodyMisfit = condition{"body-invalid", 400, "Request body invalid",
		"The request body is not what this operation takes.", false, stet.NotExecuted}
	mismatch = condition{"mismatch", 422, "Idempotency key reused for another request",
		"This key was used before for a request that differs from this one.", false, stet.NotExecuted}
	inFlight = condition{"in-flight", 409, "Operation in flight",
		"The first request with this key is still being executed.", true, stet.MayHaveExecuted}
	outcomeUnknown = condition{"outcome-unknown", 504, "Outcome unknown",
		"The operation may have been executed. Keep asking with the same key: a new key would risk a second execution.", true, stet.MayHaveExecuted}
	resultExpired = condition{"result-expired", 410, "Result no longer kept",
		"The operation was executed before. Its response has expired or was too large to keep. It does not run again.", false, stet.Executed}
	resultUnreadable = condition{"result-unreadable", 500, "Stored result unreadable",
		"The operation was executed before, but its stored response cannot be read. It does not run again.", false, stet.Executed}
	resultForeign = condition{"result-foreign", 406, "Result of another kind of caller",
		"The operation was executed before, by a caller of another kind, and its result is sent only to requests that accept its media type. It does not run again.", false, stet.Executed}
	codingNotAcceptable = condition{"coding-not-acceptable", 406, "Content coding not acceptable",
		"The operation was executed before. Its response has a content coding that Accept-Encoding excludes.", false, stet.Executed}
	storeUnavailable = condition{"store-unavailable", 503, "Idempotency store unavailable",
		"Nothing was executed, because it could not have been recorded.", true, stet.NotExecuted}
	requestEnded = condition{"request-ended", 503, "Request ended before the operation began",
		"The request was cancelled or timed out before its operation began.", true, stet.NotExecuted}
	processingTimedOut = condition{"processing-timed-out", 504, "Processing timed out",
		"The operation began and did not finish. It may have been executed, and does not run again.", false, stet.MayHaveExecuted}
	handlerPanicked = condition{"handler-panicked", 500, "Operation broke off",
		"The operation broke off. It may have been executed, and does not run again.", false, stet.MayHaveExecuted}
	notExecuted = condition{"not-executed", 503, "Not executed",
		"The service did not complete the operation, and its writes were rolled back.", true, stet.NotExecuted}
	notSettled = condition{"not-settled", 500, "Not settled",
		"The service answered without having recorded an outcome. Its transaction was rolled back.", false, stet.MayHaveExecuted}
	responseInvalid = condition{"response-invalid", 500, "Response invalid",
		"The handler wrote a status code that is not valid. The operation may have been executed, and does not run again.", false, stet.MayHaveExecuted}
	responseInvalidUndone = condition{"response-invalid", 500, "Response invalid",
		"The handler wrote a status code that is not valid. The operation had no effect.", true, stet.NotExecuted}
	responseMissing = condition{"response-missing", 500, "Response missing",
		"The operation ended without a response. It may have been executed, and does not run again until its outcome is known.", true, stet.MayHaveExecuted}
	responseMissingUndone = condition{"response-missing", 500, "Response missing",
		"The operation ended without a response. It had no effect.", true, stet.NotExecuted}
	responseTooLarge = condition{"response-too-large", 500, "Response too large",
		"The response is too large to hold until the commit, so the operation was rolled back.", false, stet.NotExecuted}
	transactionAborted = condition{"transaction-aborted", 500, "Transaction aborted",
		"The service's transaction could not be committed because of an error in the service. It was rolled back.", true, stet.NotExecuted}
	transactionAbortedLate = condition{"transaction-aborted", 500, "Transaction aborted",
		"The service's transaction could not be committed because of an error in the service. It was rolled back, but the service may have had an effect outside of it.", true, stet.MayHaveExecuted}
	misconfigured = condition{"misconfigured", 500, "Idempotency misconfigured",
		"The server could not begin the operation.", false, stet.NotExecuted}
)

// as returns the condition of an operation that has ended, if only its execution is known.
func (c *condition) as(x stet.Execution) *condition {
	if x == c.execution {
		return c
	}
	changed := *c
	changed.execution, changed.detail = x, "The operation failed, and may have been executed. Its stored result has expired or cannot be read. It does not run again."
	if x == stet.NotExecuted {
		changed.detail = "The operation was cancelled before it began. It will not run."
	}
	return &changed
}

// Conditions of accepted operations.
var (
	methodNotAllowed = condition{"method-not-allowed", 405, "Method not allowed",
		"The Allow header lists the methods of this resource.", false, stet.NotExecuted}
	mediaTypeUnsupported = condition{"media-type-unsupported", 415, "Media type not supported",
		"This operation takes application/json, without a content coding.", false, stet.NotExecuted}
	bodyInvalid = condition{"body-invalid", 400, "Request body invalid",
		"The request body is not a JSON text.", false, stet.NotExecuted}
	acceptanceUnknown = condition{"acceptance-unknown", 504, "Acceptance unknown",
		"The operation may have been accepted. Send the same request again, with the same key.", true, stet.MayHaveExecuted}
	operationNotFound = condition{"operation-not-found", 404, "No such operation",
		"There is no such operation, it is not yours, or it is no longer kept.", false, stet.MayHaveExecuted}
	statusUnavailable = condition{"status-unavailable", 504, "Status unavailable",
		"The state of the operation cannot be read right now.", true, stet.MayHaveExecuted}
	operationUnreadable = condition{"operation-unreadable", 500, "Stored operation unreadable",
		"The operation was accepted, but its stored record cannot be read.", false, stet.MayHaveExecuted}
	operationFailed = condition{"operation-failed", 500, "Operation failed",
		"The operation failed. It may have had an effect before, and does not run again.", false, stet.MayHaveExecuted}
	operationCancelled = condition{"operation-cancelled", 409, "Operation cancelled",
		"The operation was cancelled before it began.", false, stet.NotExecuted}
	operationBrokenOff = condition{"operation-cancelled", 409, "Operation cancelled",
		"The operation was cancelled after it began. Some of it may have been executed.", false, stet.MayHaveExecuted}
	progressInvalid = condition{"progress-invalid", 400, "Progress not understood",
		"A progress is a JSON object with a fraction, 0 to 1, and a message, and comes with the token that the run was given.", false, stet.NotExecuted}
	fencedProgress = condition{"fenced", 409, "Run not current",
		"The run has ended, or a newer one has begun. Stop working on it: its results are not stored.", false, stet.MayHaveExecuted}
	notCancellable = condition{"not-cancellable", 409, "Operation cannot be cancelled",
		"The operation has ended.", false, stet.MayHaveExecuted}
)

// operationHeader names the operation of a problem, so that an operator can find it.
const operationHeader = "Stet-Operation"

// document returns the document of a condition. detail may be "": the
// condition's own.
func (m *Middleware) document(c *condition, detail string) []byte { return m.documentOf(c, detail, "") }

// documentOf is document with the ID of an operation.
func (m *Middleware) documentOf(c *condition, detail, operation string) []byte {
	return problem.Marshal(problem.Document{Type: m.o.ProblemBase + c.name, Title: c.title, Status: c.status, Detail: cmp.Or(detail, c.detail),
		Retryable: c.retryable, Execution: c.execution.String(), Operation: operation})
}

const noStore = "no-store"

// refuse answers with a problem. detail may be "": the condition's own.
func (m *Middleware) refuse(w http.ResponseWriter, c *condition, detail string, retryAfter time.Duration) {
	m.refuseWith(w, c, m.document(c, detail), retryAfter)
}

// refuseUnknown answers with a problem about an outcome that may need an operator, who finds the
// operation by its ID.
func (c *call) refuseUnknown(problem *condition, retryAfter time.Duration) {
	id := c.m.engine.ID(c.op.Scope, c.op.Key).String()
	c.w.Header().Set(operationHeader, id)
	c.m.refuseWith(c.w, problem, c.m.documentOf(problem, "", id), retryAfter)
}

func (m *Middleware) refuseWith(w http.ResponseWriter, c *condition, document []byte, retryAfter time.Duration) {
	h := w.Header()
	// These fields describe another content. Content-Encoding stays: a writer around this
	// middleware has set it, and encodes the problem too.
	for _, name := range [...]string{"Content-Length", "Etag", "Last-Modified"} {
		delete(h, name)
	}
	if c == &keyMissing {
		h.Set("Link", "<"+m.o.ProblemBase+c.name+`>; rel="describedby"; type="text/html"`)
	}
	problem.Write(w, c.status, document, retryAfter)
}

// asResponse is the response that a stored problem is. Its header says of the execution what the
// document says.
func (m *Middleware) asResponse(c *condition, detail string) stet.Outcome {
	return stet.Outcome{
		Failed: true, Adapter: store.AdapterHTTP, Status: c.status, Type: problem.MediaType,
		Header: []store.Field{{Name: "Cache-Control", Values: []string{noStore}}, {Name: executionHeader, Values: []string{c.execution.String()}}},
		Body:   m.document(c, detail),
	}
}

func (m *Middleware) refuseMethod(w http.ResponseWriter, allowed ...string) {
	w.Header().Set("Allow", strings.Join(allowed, ", "))
	m.refuse(w, &methodNotAllowed, "", 0)
}
