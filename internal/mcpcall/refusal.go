package mcpcall

import (
	"bytes"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/stet-go/stet"
)

// problemBase is what the types of problems begin with.
const problemBase = "https://github.com/stet-go/stet/blob/main/docs/problems.md#"

// Problem is what programs get of a refusal, in _meta.
type Problem struct {
	Type       string  `json:"type"`
	Retryable  bool    `json:"retryable"` // may the same call be made again, with the same key?
	Execution  string  `json:"execution"` // the text of a stet.Execution
	RetryAfter float64 `json:"retryAfter,omitempty"`
}

// Refusal is an answer of stet's own to a call.
type Refusal struct {
	Name      string // of the problem
	Text      string // for the model
	Retryable bool
	Execution stet.Execution
	After     time.Duration
}

// Problem returns what programs get.
func (r Refusal) Problem() Problem {
	return Problem{Type: problemBase + r.Name, Retryable: r.Retryable, Execution: r.Execution.String(), RetryAfter: r.After.Seconds()}
}

// Result returns the result of a call that is refused, as JSON.
func (r Refusal) Result() []byte { return r.result(map[string]any{ProblemName: r.Problem()}) }

// Replay returns Result of an answer that is stored. Its text and its _meta say that it is a
// replay.
func (r Refusal) Replay() []byte {
	r.Text += " This is a replay of the stored answer: this call has run nothing."
	return r.result(map[string]any{ProblemName: r.Problem(), ReplayedName: true})
}

func (r Refusal) result(meta map[string]any) []byte {
	type text struct {
		Type string `json:"type"`
		Text string `json:"text"`
	}
	b, err := json.Marshal(struct {
		Meta    map[string]any `json:"_meta"`
		Content []text         `json:"content"`
		IsError bool           `json:"isError"`
	}{meta, []text{{"text", r.Text}}, true})
	if err != nil {
		panic(err) // it is of strings, numbers and booleans
	}
	return b
}

// Words are for the refusals of calls of one tool.
type Words struct {
	KeyName string // of the member of _meta; "" where the key is derived
}

// same says how the same call is made again.
func (w Words) same() string {
	if w.KeyName == "" {
		return "with exactly the same arguments"
	}
	return "with the same arguments and the same key in _meta"
}

// KeyMissing: the call has no key.
func (w Words) KeyMissing() Refusal {
	return Refusal{"key-missing", "Not executed: this tool needs an idempotency key, so that it can be retried safely. Call it again with _meta {" +
		strconv.Quote(w.KeyName) + ": \"<key>\"}: a random text (a UUID) of your own, made once for this action and sent again with every retry of it.", false, stet.NotExecuted, 0}
}

// KeyInvalid: the call has a key that is none. why is a sentence.
func (w Words) KeyInvalid(why string) Refusal {
	return Refusal{"key-invalid", "Not executed: the idempotency key in _meta " + strconv.Quote(w.KeyName) + " is not valid. " + why +
		" A key is a text of 1 to 255 bytes of visible ASCII without spaces, such as a UUID.", false, stet.NotExecuted, 0}
}

// ArgumentsInvalid: two calls with these arguments cannot be compared.
func (w Words) ArgumentsInvalid() Refusal {
	return Refusal{"body-invalid", "Not executed: " + errArguments.Error() + ".", false, stet.NotExecuted, 0}
}

// ScopeMissing: whose key it is is not known.
func (w Words) ScopeMissing() Refusal {
	return Refusal{"scope-missing", "Not executed: the server does not know on whose behalf this call is made. Sign in, and call it again.", false, stet.NotExecuted, 0}
}

// ScopeFailed: whose key it is could not be found out.
func (w Words) ScopeFailed() Refusal {
	return Refusal{"scope-failed", "Not executed: the server could not find out on whose behalf this call is made. Call it again later, " + w.same() + ".", true, stet.NotExecuted, 0}
}

// Misconfigured: the server's wiring is wrong.
func (w Words) Misconfigured() Refusal {
	return Refusal{"misconfigured", "Not executed: the server is not set up rightly for this tool. Calling it again does not help; tell the user.", false, stet.NotExecuted, 0}
}

// NotExecuted: the run ended without an effect.
func (w Words) NotExecuted() Refusal {
	return Refusal{"not-executed", "Not executed: what the tool began was undone. It is safe to call it again, " + w.same() + ".", true, stet.NotExecuted, 0}
}

// Ended: the caller left before the operation began.
func (w Words) Ended() Refusal {
	return Refusal{"request-ended", "Not executed: the call was cancelled before it began. It is safe to call it again, " + w.same() + ".", true, stet.NotExecuted, 0}
}

// Foreign: the operation was executed, and not by a tool.
func (w Words) Foreign() Refusal {
	return Refusal{"result-foreign", "Executed: this was done before, by another way than this tool, and its result cannot be shown here. Do not call it again.", false, stet.Executed, 0}
}

// Damaged: the stored result cannot be read.
func (w Words) Damaged(x stet.Execution) Refusal {
	r := Refusal{"result-unreadable", "", false, x, 0}
	switch x {
	case stet.Executed:
		r.Text = "Executed: this was done before, but its stored result cannot be read. It does not run again. Look at the state itself, and do not use another key."
	case stet.NotExecuted:
		r.Text = "Not executed: this was ended before it began, and its stored result cannot be read. It does not run again."
	default:
		r.Text = "It may have been executed: its stored result cannot be read, and it does not run again. " + look
	}
	return r
}

const look = "Do not try it in another way, or with another key: that could do it twice. Find out by looking at the state itself, or tell the user that the outcome is not known."

// Unknown: it may have been executed, and that is not known yet.
func (w Words) Unknown(after time.Duration) Refusal {
	r := Refusal{"outcome-unknown", "Outcome unknown: it may have been executed or not. ", true, stet.MayHaveExecuted, after}
	r.Text += look + " Calling it again " + w.same() + " is safe: that tells the outcome once it is known."
	return r
}

// Failed: it failed without a result of the tool, for the stored reason.
func (w Words) Failed(reason string, x stet.Execution) Refusal {
	r := Refusal{"operation-failed", "", false, x, 0}
	switch x {
	case stet.Executed:
		r.Text = "Executed, and failed: " + reason + ". It does not run again."
	case stet.NotExecuted:
		r.Text = "Not executed: " + reason + ", before it began. It does not run again."
	default:
		r.Text = "Failed: " + reason + ". It does not run again. It may have had an effect before it failed. " + look
	}
	return r
}

// Refuse returns the refusal for an error of the engine.
func (w Words) Refuse(err error) Refusal {
	var after time.Duration
	own, ok := errors.AsType[*stet.Error](err)
	if ok {
		after = own.RetryAfter
	}
	switch x := stet.ExecutionOf(err); stet.KindOf(err) {
	case stet.KindMismatch:
		return Refusal{"mismatch", "Not executed: this idempotency key was used before for another call, of another tool or with other arguments. " +
			"To repeat that call, send the same arguments. For a new action, use a new key.", false, stet.NotExecuted, 0}
	case stet.KindInFlight:
		return Refusal{"in-flight", "Still running: the first of these calls has not ended. Do not use another key. Call it again in a while, " + w.same() + ", to get its result.",
			true, stet.MayHaveExecuted, after}
	case stet.KindRetryable:
		if x != stet.NotExecuted {
			return w.Unknown(after)
		}
		r := w.NotExecuted()
		r.After = after
		return r
	case stet.KindExpired:
		if x == stet.Executed {
			return Refusal{"result-expired", "Executed: this was done before. Its result was too large to keep, or is no longer kept. It does not run again; do not use another key.", false, x, 0}
		}
		return w.Failed("its result is no longer kept", x)
	case stet.KindDamaged:
		return w.Damaged(x)
	case stet.KindForeign:
		return w.Foreign()
	case stet.KindStore, stet.KindClosed:
		if x == stet.NotExecuted {
			return Refusal{"store-unavailable", "Not executed: the server cannot record this call right now. It is safe to call it again later, " + w.same() + ".", true, x, after}
		}
		return w.Unknown(after)
	case stet.KindInvalid:
		if x == stet.NotExecuted {
			return w.Misconfigured()
		}
	}
	return w.Unknown(after)
}

// Named returns the refusal for a problem that stethttp or the sidecar has told over HTTP.
func (w Words) Named(name, detail string, retryable bool, x stet.Execution, after time.Duration) Refusal {
	var r Refusal
	switch name {
	case "key-missing":
		r = w.KeyMissing()
	case "key-invalid", "key-repeated":
		r = w.KeyInvalid(detail)
		r.Name = name
	case "mismatch":
		r = w.Refuse(&stet.Error{Kind: stet.KindMismatch, Execution: x})
	case "in-flight":
		r = w.Refuse(&stet.Error{Kind: stet.KindInFlight})
	case "outcome-unknown", "response-missing":
		r = w.Unknown(after)
	case "result-expired":
		r = w.Refuse(&stet.Error{Kind: stet.KindExpired, Execution: x})
	case "result-unreadable":
		r = w.Damaged(x)
	case "not-executed":
		r = w.NotExecuted()
	default:
		r = Refusal{Name: name, Retryable: retryable, Execution: x}
		switch {
		case x == stet.Executed:
			r.Text = "Executed. " + detail
		case x == stet.NotExecuted && retryable:
			r.Text = "Not executed. " + detail + " It is safe to call it again later, " + w.same() + "."
		case x == stet.NotExecuted:
			r.Text = "Not executed. " + detail
		default:
			r.Text = "It may have been executed. " + detail + " " + look
		}
	}
	r.After = after
	return r
}

// ExecutionOf is what a problem document says of the execution.
func ExecutionOf(said string) stet.Execution {
	for _, x := range []stet.Execution{stet.NotExecuted, stet.Executed} {
		if x.String() == said {
			return x
		}
	}
	return stet.MayHaveExecuted
}

// Other returns the result, as JSON, of an outcome that was stored by another way than this
// tool, and has not failed.
func (w Words) Other(mediaType string, body []byte) []byte {
	type text struct {
		Type string `json:"type"`
		Text string `json:"text"`
	}
	is := mediaType == "application/json" || strings.HasSuffix(mediaType, "+json")
	said := "Done. It has no result."
	switch {
	case is && !json.Valid(body), !is && len(body) > 0 && mediaType != "" && !strings.HasPrefix(mediaType, "text/"), !utf8.Valid(body):
		return w.Foreign().Result()
	case len(body) > 0:
		said = string(body)
	}
	result := struct {
		Meta       map[string]bool `json:"_meta"`
		Content    []text          `json:"content"`
		Structured json.RawMessage `json:"structuredContent,omitempty"`
	}{Meta: map[string]bool{ReplayedName: true}, Content: []text{{"text", said}}}
	if is && bytes.HasPrefix(bytes.TrimSpace(body), []byte("{")) {
		result.Structured = body
	}
	b, err := json.Marshal(result)
	if err != nil {
		panic(err) // its parts are valid
	}
	return b
}
