package stethttp

import (
	"bytes"
	"encoding/json"
	"mime"
	"net/http"
	"strings"
	"time"

	"github.com/stet-go/stet"
)

const (
	jsonType   = "application/json"
	binaryType = "application/octet-stream"
)

// resolvedAfter is when to ask again about an operation whose outcome is unknown;
// 0 if nobody is going to find it out, as far as the engine knows.
func (m *Middleware) resolvedAfter(class string) time.Duration {
	if p, ok := m.engine.Policy(class); ok && p.Verify != nil {
		return 5 * retryAfter
	}
	return 0
}

// missing is what there is to say of a settled operation whose outcome cannot be
// told; nil if it can.
func (a *Async) missing(st stet.Status) *condition {
	if st.Outcome.Gone {
		return &resultExpired
	}
	if isResponse(st.Outcome.Result) {
		if _, err := decode(st.Outcome.Result); err != nil {
			return &resultUnreadable
		}
	}
	return nil
}

// isResponse reports whether a result is a response, made by Outcome or by a
// handler, and not what a worker has returned: no JSON text begins like that.
func isResponse(result []byte) bool { return len(result) > 0 && result[0] == codecVersion }

// outcome is the response that an outcome is told with, which depends on nothing
// else. There must be nothing missing.
func (a *Async) outcome(st stet.Status) stored {
	result := st.Outcome.Result
	if isResponse(result) {
		s, _ := decode(result) // see missing
		return s
	}
	switch {
	case st.Outcome.State == stet.Failed:
		return a.failure(st)
	case len(result) == 0:
		return stored{status: http.StatusNoContent}
	}
	mediaType := binaryType
	if json.Valid(result) {
		mediaType = jsonType
	}
	return stored{status: http.StatusOK, header: []field{{"Content-Type", []string{mediaType}}}, body: result}
}

// failure is the problem that a failed operation is told with.
func (a *Async) failure(st stet.Status) stored {
	text := failureText(st.Outcome.Result)
	switch {
	case len(st.Outcome.Result) == 0: // stet.StaleFail
		return a.m.asResponse(&processingTimedOut, "")
	case text == stet.ErrCancelled.Error() && st.Record.Attempt == 0:
		return a.m.asResponse(&operationCancelled, "")
	case text == stet.ErrCancelled.Error():
		return a.m.asResponse(&operationBrokenOff, "")
	case a.o.Failure == nil:
		return a.m.asResponse(&operationFailed, "")
	}
	problem := operationFailed
	status, detail := a.o.Failure(text)
	if 400 <= status && status <= 599 {
		problem.status = status
	}
	return a.m.asResponse(&problem, detail)
}

// failureText is what a worker said of a failure: a JSON string, as stet.Do stores
// it, or whatever it is.
func failureText(result []byte) string {
	var text string
	if json.Unmarshal(result, &text) != nil {
		return string(result)
	}
	return text
}

// cancelled reports whether an operation has ended by being cancelled.
func cancelled(st stet.Status) bool {
	return st.Record.State == stet.Failed && !st.Outcome.Gone && failureText(st.Outcome.Result) == stet.ErrCancelled.Error()
}

// statusDocument is what the status resource says.
type statusDocument struct {
	ID         string            `json:"id"`
	State      string            `json:"state"`
	Attempts   int               `json:"attempts"`
	Cancelling bool              `json:"cancelling,omitempty"`
	Progress   *progressDocument `json:"progress,omitempty"`
	AcceptedAt time.Time         `json:"accepted_at,omitzero"`
	StartedAt  time.Time         `json:"started_at,omitzero"`
	EndedAt    time.Time         `json:"ended_at,omitzero"`
	ExpiresAt  time.Time         `json:"expires_at,omitzero"`
	Outcome    *outcomeDocument  `json:"outcome,omitempty"`
	Problem    json.RawMessage   `json:"problem,omitempty"` // of an outcome that is not known
}

type progressDocument struct {
	Fraction float64   `json:"fraction"`
	Message  string    `json:"message,omitempty"`
	At       time.Time `json:"at"`
}

// outcomeDocument is an outcome inside of a statusDocument: a result that is JSON,
// a problem, or whatever else.
type outcomeDocument struct {
	Status        int             `json:"status"` // with which the operation's own resource tells it
	Result        json.RawMessage `json:"result,omitempty"`
	Problem       json.RawMessage `json:"problem,omitempty"`
	MediaType     string          `json:"media_type,omitempty"`
	ContentCoding string          `json:"content_coding,omitempty"`
	ResultBase64  []byte          `json:"result_base64,omitempty"`
}

// statusOf makes the document, a line of JSON.
func (a *Async) statusOf(st stet.Status) []byte {
	rec := st.Record
	d := statusDocument{
		ID: rec.ID.String(), State: rec.State.String(), Attempts: rec.Attempt, Cancelling: rec.Cancelling,
		AcceptedAt: st.AcceptedAt.UTC(), ExpiresAt: rec.ExpiresAt.UTC(),
	}
	if rec.Attempt > 0 {
		d.StartedAt = rec.ClaimedAt.UTC()
	}
	if rec.State.Settled() {
		d.EndedAt = rec.SettledAt.UTC()
		d.Outcome = a.outcomeOf(st)
	}
	if rec.State == stet.Unknown {
		d.Problem = a.m.document(&outcomeUnknown, "")
	}
	if !st.Progress.At.IsZero() {
		d.Progress = &progressDocument{st.Progress.Fraction, st.Progress.Message, st.Progress.At}
	}
	return line(d)
}

// outcomeOf makes the part of the document that tells the outcome.
func (a *Async) outcomeOf(st stet.Status) *outcomeDocument {
	if problem := a.missing(st); problem != nil {
		return &outcomeDocument{Status: problem.status, Problem: a.m.document(problem, "")}
	}
	s := a.outcome(st)
	d := &outcomeDocument{Status: s.status}
	var mediaType, coding string
	for _, f := range s.header {
		switch f.name {
		case "Content-Type":
			mediaType = mediaTypeOf(f.values)
		case "Content-Encoding":
			coding = strings.Join(f.values, ", ")
		}
	}
	switch {
	case len(s.body) == 0:
	case coding == "" && mediaType == problemType && json.Valid(s.body):
		d.Problem = s.body
	case coding == "" && isJSON(mediaType) && json.Valid(s.body):
		d.Result = s.body
	default:
		d.MediaType, d.ContentCoding, d.ResultBase64 = mediaType, coding, s.body
	}
	return d
}

// line returns v as a line of JSON. Results in it are as they were stored but for
// white space.
func line(v any) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic(err) // strings, numbers, times and JSON that was found valid always marshal
	}
	return b.Bytes()
}

// mediaTypeOf is the media type of a Content-Type header, without parameters; ""
// if it has none.
func mediaTypeOf(contentType []string) string {
	mediaType, _, err := mime.ParseMediaType(strings.Join(contentType, ", "))
	if err != nil {
		return ""
	}
	return mediaType
}

func isJSON(mediaType string) bool {
	return mediaType == jsonType || strings.HasSuffix(mediaType, "+json")
}
