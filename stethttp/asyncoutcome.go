package stethttp

import (
	"bytes"
	"encoding/json"
	"mime"
	"strings"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/problem"
	"github.com/stet-go/stet/store"
)

// resolvedAfter is when to ask again about an operation whose outcome is unknown; 0
// without a verifier.
func (m *Middleware) resolvedAfter(class string) time.Duration {
	if p, ok := m.engine.Policy(class); ok && p.Verify != nil {
		return 5 * m.o.RetryAfter
	}
	return 0
}

// executed answers "did it execute?" for a settled operation whose outcome is not
// there.
func executed(rec store.Record) stet.Execution {
	switch {
	case rec.Attempt == 0: // it was cancelled before
		return stet.NotExecuted
	case rec.State == store.Completed:
		return stet.Executed
	default:
		return stet.MayHaveExecuted
	}
}

// outcome returns the response of an outcome, which depends on nothing else. It must
// not be Gone.
func (a *Async) outcome(st stet.Status) stet.Outcome {
	return a.m.asHTTP(st.Outcome, st.Record.Attempt == 0)
}

// cancelled reports whether an operation has ended by being cancelled.
func cancelled(st stet.Status) bool { return st.Outcome.Reason == store.ReasonCancelled }

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
// a problem, or any other.
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
	if rec.State == store.Unknown {
		d.Problem = a.m.documentOf(&outcomeUnknown, "", d.ID)
	}
	if !st.Progress.At.IsZero() {
		d.Progress = &progressDocument{st.Progress.Fraction, st.Progress.Message, st.Progress.At}
	}
	return line(d)
}

// outcomeOf makes the part of the document that tells the outcome.
func (a *Async) outcomeOf(st stet.Status) *outcomeDocument {
	if st.Outcome.Gone {
		c := resultExpired.as(executed(st.Record))
		return &outcomeDocument{Status: c.status, Problem: a.m.document(c, "")}
	}
	out := a.outcome(st)
	d := &outcomeDocument{Status: out.Status}
	mediaType := mediaTypeOf(out.Type)
	codings, _ := field(out, "Content-Encoding")
	coding := strings.Join(codings, ", ")
	switch {
	case len(out.Body) == 0:
	case coding == "" && mediaType == problem.MediaType && json.Valid(out.Body):
		d.Problem = out.Body
	case coding == "" && isJSON(mediaType) && json.Valid(out.Body):
		d.Result = out.Body
	default:
		d.MediaType, d.ContentCoding, d.ResultBase64 = mediaType, coding, out.Body
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
func mediaTypeOf(contentType string) string {
	mediaType, _, err := mime.ParseMediaType(contentType)
	if err != nil {
		return ""
	}
	return mediaType
}

func isJSON(mediaType string) bool {
	return mediaType == jsonType || strings.HasSuffix(mediaType, "+json")
}
