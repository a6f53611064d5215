package stetmsg

import (
	"encoding/json"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/coding"
	"github.com/stet-go/stet/store"
)

// Action is what to do with a message.
type Action uint8

const (
	// Retry: deliver it again, after Decision.After. The zero value, because it
	// loses nothing.
	Retry Action = iota
	// Ack: it is done; never deliver it again.
	Ack
	// DeadLetter: store it elsewhere with the reason, for an operator.
	DeadLetter
)

// String returns "retry", "ack" or "dead-letter", fit for a metric's label.
func (a Action) String() string {
	switch a {
	case Ack:
		return "ack"
	case DeadLetter:
		return "dead-letter"
	default:
		return "retry"
	}
}

// Reason is the reason of an Action, usable as a metric's label.
type Reason string

// The reasons.
const (
	Handled     Reason = "handled"            // ack: it ran, and its outcome is durable
	Replayed    Reason = "replayed"           // ack: it was completed before
	NoHandler   Reason = "no-handler"         // ack: no handler here; it stays accepted, and stetwork publishes it again
	InFlight    Reason = "in-flight"          // retry: it is running elsewhere
	NoEffect    Reason = "no-effect"          // retry: it ran and had no effect
	NotReady    Reason = "not-ready"          // retry: what the handler needs cannot be used; the attempt does not count
	Unsettled   Reason = "unsettled"          // retry: it ran, and its outcome may not be stored
	Stopped     Reason = "stopped"            // retry: the consumer ends; it did not run
	Unavailable Reason = "unavailable"        // retry: the store cannot be used
	Failed      Reason = "failed"             // dead-letter: it failed, now or before
	Exhausted   Reason = "attempts-exhausted" // dead-letter: it was tried, or delivered, as often as Options.MaxAttempts allows
	Unknown     Reason = "outcome-unknown"    // retry while a verifier may tell, or an unreadable record be fixed, else dead-letter
	Mismatch    Reason = "mismatch"           // dead-letter: another message has the same key
	Invalid     Reason = "invalid"            // dead-letter: it has no operation or an unknown class, or cannot be split
)

// Decision is an action on a message, with its reason.
type Decision struct {
	Action   Action
	Reason   Reason
	After    time.Duration // for Retry: not before
	ID       store.ID      // the operation's digest; zero for Invalid
	Attempts int           // runs, or the broker's deliveries in a transaction; 0 if it did not run
	// Outcome is the stored outcome, for request-reply. It is zero if there is none; its
	// Result is empty if it is no longer kept.
	Outcome stet.Outcome
	// Err is what went wrong. Its text may be the handler's.
	Err error
}

// combine returns the decision for a message of several parts: that of a part to be
// delivered again, else that of a part to be dead-lettered, else that of the last. It
// waits as long as the longest wait of a part.
func combine(ds []Decision) Decision {
	sum := Decision{Action: Ack, Reason: Handled}
	weight := map[Action]int{Ack: 0, DeadLetter: 1, Retry: 2}
	for _, d := range ds {
		after := max(sum.After, d.After)
		if weight[d.Action] >= weight[sum.Action] {
			sum = d
		}
		sum.After = after
	}
	return sum
}

// panicked is the error of what panicked.
type panicked string

func (who panicked) Error() string { return string(who) + " panicked" }

// maxText bounds the text of an error that is stored or sent with a dead letter,
// in bytes.
const maxText = 1 << 10

// Text returns the text of Err for a dead letter, cut to 1 KiB and without control characters,
// or "".
func (d Decision) Text() string {
	if d.Err == nil {
		return ""
	}
	return clean(d.Err.Error())
}

// clean makes a text fit for a header of any broker: visible ASCII and spaces.
func clean(s string) string {
	b := []byte(s[:min(len(s), maxText)])
	for i, c := range b {
		if c < ' ' || c >= 0x7f {
			b[i] = ' '
		}
	}
	return string(b)
}

// failure is the outcome of a message of a class whose handler has failed.
func (c *Consumer[M]) failure(class string, err error) *stet.Outcome {
	s := err.Error()
	p, _ := c.engine.Policy(class)
	return &stet.Outcome{Failed: true, Adapter: store.AdapterMessage, Status: 500, Type: "text/plain; charset=utf-8",
		Body: []byte(s[:min(len(s), maxText)]), Trailer: coding.ErrorField(p.Errors, err)}
}

// succeeded is the outcome of a message whose handler has returned result.
func succeeded(result []byte) stet.Outcome {
	out := stet.Outcome{Adapter: store.AdapterMessage, Status: 200, Body: result}
	switch {
	case len(result) == 0:
		out.Status = 204
	case json.Valid(result):
		out.Type = "application/json"
	default:
		out.Type = "application/octet-stream"
	}
	return out
}
