package admin

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
)

// Actions of a Change.
const (
	Resolve = "resolve"
	Release = "release"
	Expire  = "expire"
	Cancel  = "cancel" // of a job
)

// Actions are all actions of a Change.
var Actions = []string{Resolve, Release, Expire, Cancel}

// Show is the action of an Entry about a stored result that was shown.
const Show = "show"

// Limits of an audit entry, in bytes.
const (
	MaxReason = 1000
	MaxActor  = 200
)

// Change is a change of one operation by hand.
type Change struct {
	Action string `json:"-"`            // one of Actions
	Via    string `json:"-"`            // how it was asked for, for the audit
	Fence  int64  `json:"fence,string"` // of the record that was shown
	Reason string `json:"reason"`       // why; required
	Actor  string `json:"actor"`        // who decides; required
	Says   string `json:"-"`            // the name that the caller gave, if Actor is known
	DryRun bool   `json:"dry_run,omitempty"`
	// Class names the policy whose retention the outcome gets.
	Class string `json:"class,omitempty"`
	// As is completed, failed or not-executed; only for Resolve.
	As string `json:"as,omitempty"`
	// Response is what retries get; none: they learn that it is not kept.
	Response *Response `json:"response,omitempty"`
}

// Response is a response by hand.
type Response struct {
	Status int         `json:"status"`
	Header http.Header `json:"header,omitempty"`
	Body   []byte      `json:"body,omitempty"` // base64
}

// To is what the change makes of a record: the name of a state, or tombstone.
func (c Change) To() string {
	switch {
	case c.Action == Cancel:
		return store.Failed.String()
	case c.Action == Expire:
		return "tombstone"
	case c.Action == Release || c.As == "not-executed":
		return store.Retryable.String()
	default:
		return c.As
	}
}

// Check validates a change without its record. Resolution checks its response.
func (c Change) Check() error {
	if err := plain("reason", c.Reason, MaxReason, "the audit says why a change was made"); err != nil {
		return err
	}
	if err := plain("actor", c.Actor, MaxActor, "who decides?"); err != nil {
		return err
	}
	if c.Says != "" {
		if err := plain("actor", c.Says, MaxActor, ""); err != nil {
			return err
		}
	}
	if c.Action != Resolve && (c.As != "" || c.Response != nil) {
		return fmt.Errorf("only resolve takes a resolution and a response, not %s", c.Action)
	}
	return c.checkResolution()
}

// CheckName validates a name for the audit.
func CheckName(name string) error { return plain("name", name, MaxActor, "who has it?") }

// plain checks text that goes into the audit.
func plain(name, text string, limit int, why string) error {
	switch {
	case strings.TrimSpace(text) == "":
		return fmt.Errorf("%s: required: %s", name, why)
	case len(text) > limit:
		return fmt.Errorf("%s: %d bytes; at most %d", name, len(text), limit)
	case !utf8.ValidString(text) || strings.ContainsFunc(text, unicode.IsControl):
		return fmt.Errorf("%s: it must be one line of text", name)
	}
	return nil
}

// checkResolution validates the action and its resolution.
func (c Change) checkResolution() error {
	switch {
	case c.Action != Resolve && slices.Contains(Actions, c.Action):
		return nil
	case c.Action != Resolve:
		return fmt.Errorf("%.40q is none of %s", c.Action, strings.Join(Actions, ", "))
	case c.As == "not-executed" && c.Response != nil:
		return fmt.Errorf("an operation that was not executed has no response")
	case c.As != "completed" && c.As != "failed" && c.As != "not-executed":
		return fmt.Errorf("as: %.40q is none of completed, failed and not-executed", c.As)
	}
	return nil
}

// Resolution returns the resolution of a valid change. Its error is about the response. outcome
// converts a response, as the HTTP adapter does.
func (c Change) Resolution(outcome func(status int, header http.Header, body []byte) (stet.Outcome, error)) (v stet.Resolution, err error) {
	switch {
	case c.Action == Expire, c.Action == Cancel:
		return v, nil
	case c.Action == Release, c.As == "not-executed":
		return stet.ItDidNotHappen(), nil
	case c.Response == nil:
		return stet.ItHappened(stet.Outcome{Failed: c.As == "failed", Gone: true}), nil
	}
	header := http.Header{} // with names as net/http has them
	for name, values := range c.Response.Header {
		for _, v := range values {
			header.Add(name, v)
		}
	}
	out, err := outcome(c.Response.Status, header, c.Response.Body)
	out.Failed = c.As == "failed"
	return stet.ItHappened(out), err
}

// Possible says early, and in an operator's words, what the store would refuse;
// "" if it would not.
func Possible(action string, r Record) string {
	switch {
	case action == Expire && r.Damage != "":
		return ""
	case r.Damage != "":
		return "its record cannot be read; it can only be expired, and does not run again then"
	case action == Expire && !r.Settled():
		return fmt.Sprintf("it is %s: only a completed or failed operation has a result", r.State)
	case action == Expire:
		return ""
	case action == Cancel && (r.State == store.Accepted.String() || r.State == store.Running.String() && !r.Dead):
		return "" // the engine knows whether it is a job
	case action == Cancel:
		return fmt.Sprintf("it is %s: only a job that waits or runs can be cancelled", r.State)
	case r.State == store.Running.String() && !r.Dead:
		return fmt.Sprintf("it is running, under a lease for %s more: wait for it, or end its process first", r.LeaseLeft)
	case r.State != store.Running.String() && r.State != store.Unknown.String():
		return fmt.Sprintf("it is %s already; only an unknown operation can be resolved", r.State)
	}
	return ""
}

// Audit writes a change down. What cannot be written down is not done.
type Audit func(ctx context.Context, e Entry) error

// Results of an Entry.
const (
	Begun  = "begun"
	Done   = "done"
	Failed = "failed"
	DryRun = "dry run"
)

// Entry is an audit entry: of a change, before and after it is made, and of a stored result,
// before it is shown. It has no key, scope or body. An encrypted reference stays so.
type Entry struct {
	At time.Time `json:"at"`
	Actor
	Why    string `json:"why"`
	Action string `json:"action"`
	Result string `json:"result"` // Begun, Done, Failed or DryRun
	Store  string `json:"store,omitempty"`
	ID     string `json:"id"`
	Scope  string `json:"scope_digest"`
	Names
	From  Stood  `json:"from"`
	To    string `json:"to"`
	Error string `json:"error,omitempty"`
}

// Actor is who makes a change.
type Actor struct {
	Who  string `json:"who"`
	Says string `json:"says,omitempty"` // the name that the caller gave
	Via  string `json:"via,omitempty"`
}

// Stood is where an operation was.
type Stood struct {
	State   string `json:"state"`
	Fence   int64  `json:"fence,string"`
	Attempt int    `json:"attempt"`
	Reason  string `json:"reason,omitempty"` // the last one of its history
}
