// Package admin lets operators read operations and change them by hand: in a store, or by the
// admin API of a process.
package admin

import (
	"context"
	"encoding/hex"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/stet-go/stet/store"
)

// API has the calls of an operator. Errors of a store or an admin API are of type *Error.
type API interface {
	// List returns a page of the selected records, without their results.
	List(ctx context.Context, q Query) (Page, error)
	// Get returns a record, with its result if requested. Without a record, the state is "none".
	Get(ctx context.Context, id store.ID, result bool) (Record, error)
	// Change makes a change if the record has not changed since it was shown, and returns
	// its audit entry.
	Change(ctx context.Context, id store.ID, c Change) (Entry, error)
}

// Record is a record for operators: without its owner, and without its result unless that was
// requested. A fence is text, because many JSON readers round numbers of its size.
type Record struct {
	ID    string `json:"id"`
	Scope string `json:"scope_digest"`
	Label
	State       string `json:"state"`
	Attempt     int    `json:"attempt"`
	Fence       int64  `json:"fence,string"`
	Fingerprint string `json:"fingerprint"`
	Lease
	Kept
	Times
	Outcome
	History
}

// Kept says whether a record can be read and has its result.
type Kept struct {
	Gone   bool   `json:"gone"`             // the result is discarded
	Damage string `json:"damage,omitempty"` // why it cannot be read; of its other fields only digests and the fence may be known
}

// Names are an operation's names for people.
type Names struct {
	Class      string `json:"class,omitempty"`
	Name       string `json:"name,omitempty"`
	Ref        string `json:"ref,omitempty"`         // encrypted if it begins with "sealed:", with what follows then
	ScopeLabel string `json:"scope_label,omitempty"` // see stet.Options.Label
}

// Label has the names of an operation, and the parts of its identity that its policy stores.
type Label struct {
	Names
	KeptScope string `json:"scope,omitempty"` // as the policy stores it (see store.Kept); unprintable characters are question marks
	KeptKey   string `json:"key,omitempty"`
}

// Lease is the lease of a running operation.
type Lease struct {
	LeaseLeft string `json:"lease_left,omitempty"`
	Dead      bool   `json:"dead,omitempty"` // its lease has run out
}

// Times are on the store's clock.
type Times struct {
	ClaimedAt *time.Time `json:"claimed_at,omitempty"`
	SettledAt *time.Time `json:"settled_at,omitempty"`
	ExpiresAt *time.Time `json:"expires_at,omitempty"`
	ForgetAt  *time.Time `json:"forget_at,omitempty"`
}

// Outcome is the outcome of a settled operation.
type Outcome struct {
	Adapter  string    `json:"adapter,omitempty"`  // that stored it
	Reason   string    `json:"reason,omitempty"`   // why it failed, where no handler has said it
	Result   []byte    `json:"result,omitempty"`   // base64
	Response *Response `json:"response,omitempty"` // what a client gets that asks by HTTP
}

// Damaged is the state of a record that cannot be read.
const Damaged = "damaged"

// NewRecord converts a record for operators.
func NewRecord(rec store.Record) Record {
	label, ref := store.CutScopeLabel(rec.Label.Ref)
	kept := store.UnpackKept(ref)
	r := Record{ID: rec.ID.String(), Scope: rec.Scope.String(), State: rec.State.String(), Attempt: rec.Attempt, Fence: rec.Fence, Fingerprint: hex.EncodeToString(rec.Fingerprint[:]), Kept: Kept{Gone: rec.Gone},
		Label: Label{Names: Names{rec.Label.Class, rec.Label.Name, kept.Ref, printable(label)}, KeptScope: printable(kept.Scope), KeptKey: printable(kept.Key)}}
	if r.Damage = rec.Damage; r.Damage != "" {
		r.State = Damaged
	}
	if rec.State == store.Running {
		r.LeaseLeft, r.Dead = rec.LeaseLeft.Round(time.Millisecond).String(), rec.LeaseLeft <= 0
	}
	for _, t := range []struct {
		from time.Time
		to   **time.Time
	}{{rec.ClaimedAt, &r.ClaimedAt}, {rec.SettledAt, &r.SettledAt}, {rec.ExpiresAt, &r.ExpiresAt}, {rec.ForgetAt, &r.ForgetAt}} {
		if !t.from.IsZero() {
			utc := t.from.UTC()
			*t.to = &utc
		}
	}
	return r
}

// printable replaces characters that a terminal would interpret.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, text)
}

// Settled reports whether the record holds an outcome.
func (r Record) Settled() bool {
	return r.State == store.Completed.String() || r.State == store.Failed.String()
}

// Note explains the state to an operator, with the last reason if something went wrong.
func (r Record) Note() string {
	note := r.note()
	switch {
	case r.LastReason == "":
		return note
	case note == "":
		return r.LastReason
	}
	return note + " (" + r.LastReason + ")"
}

func (r Record) note() string {
	switch {
	case r.Damage != "":
		return "it can only be expired: " + r.Damage
	case r.Dead:
		return "dead: its lease has run out"
	case r.State == store.Running.String():
		return "lease for " + r.LeaseLeft
	case r.State == store.Unknown.String():
		return "nothing runs until it is resolved"
	case r.State == store.Accepted.String():
		return "waits for a worker"
	case r.Gone:
		return "its result is no longer kept"
	default:
		return ""
	}
}

// Short returns the last digits of an ID, which a person types to confirm a change. The first
// digits are those of the scope.
func Short(id string) string { return id[max(0, len(id)-shortDigits):] }

const shortDigits = 12

// ParseID returns the digest that text is in hexadecimal.
func ParseID(text string) (id store.ID, err error) {
	if id, err = store.ParseID(strings.ToLower(text)); err != nil {
		return id, fmt.Errorf("a digest has %d hexadecimal digits, as lists show them", 2*len(id))
	}
	return id, nil
}

// States are the names of the states that a record can have.
func States() (names []string) {
	for s := store.Running; s <= store.Accepted; s++ {
		names = append(names, s.String())
	}
	return names
}

// ParseState returns the state of a name that a record can have.
func ParseState(name string) (store.State, error) {
	for s := store.Running; s <= store.Accepted; s++ {
		if s.String() == name {
			return s, nil
		}
	}
	return 0, fmt.Errorf("%.40q is none of %s", name, strings.Join(States(), ", "))
}
