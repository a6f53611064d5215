package stetmsg

import (
	"errors"
	"time"

	"github.com/stet-go/stet"
)

// Action is what a broker is told about a message.
type Action uint8

const (
	// Retry: deliver it again, after Decision.After. The zero value, because it
	// loses nothing.
	Retry Action = iota
	// Ack: it is done; never deliver it again.
	Ack
	// DeadLetter: put it aside with the reason, for people to look at.
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

// Reason says why an Action was chosen, in a word fit for a metric's label.
type Reason string

// The reasons.
const (
	Handled     Reason = "handled"            // ack: it ran, and its outcome is durable
	Replayed    Reason = "replayed"           // ack: it was completed before
	InFlight    Reason = "in-flight"          // retry: it is running elsewhere
	NoEffect    Reason = "no-effect"          // retry: it ran and had no effect
	Unsettled   Reason = "unsettled"          // retry: it ran, and its outcome may not be stored
	Stopped     Reason = "stopped"            // retry: the consumer ends; it did not run
	Unavailable Reason = "unavailable"        // retry: the store cannot be used
	Failed      Reason = "failed"             // dead-letter: it failed, now or before
	Exhausted   Reason = "attempts-exhausted" // dead-letter: it was tried, or delivered, as often as Options.MaxAttempts allows
	Unknown     Reason = "outcome-unknown"    // retry while a verifier may tell, else dead-letter
	Mismatch    Reason = "mismatch"           // dead-letter: another message has had the same key
	Invalid     Reason = "invalid"            // dead-letter: it names no operation, or does not split
)

// Decision is what a message came to.
type Decision struct {
	Action   Action
	Reason   Reason
	After    time.Duration // for Retry: not before
	ID       stet.ID       // the operation's digest; zero for Invalid
	Attempts int           // runs, or the broker's deliveries in a transaction; 0 if it did not run
	// Outcome is the one that stands, for request-reply. It is zero where none
	// is known; its Result is gone where it is no longer kept.
	Outcome stet.Outcome
	// Err is what went wrong. Its text may be the handler's.
	Err error
}

// combine returns what a message of several parts comes to: the one of a part
// that has to be delivered again, or else of one that is to be put aside, or
// else that of the last. It waits as long as the most patient part.
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

// permanent is the error of Permanent.
type permanent struct{ error }

func (p permanent) Unwrap() error { return p.error }

// Permanent marks an error of a handler as final: the operation is settled as
// failed, with the error's text, and the message is dead-lettered. What a
// transactional handler has written is rolled back. Permanent(nil) is nil.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return permanent{err}
}

func isPermanent(err error) bool {
	_, ok := errors.AsType[permanent](err)
	return ok
}

// panicked is the error of a handler that panicked.
type panicked struct{ value any }

func (panicked) Error() string { return "the handler panicked" }

// maxText bounds the text of an error that is stored or sent with a dead letter,
// in bytes.
const maxText = 1 << 10

// Text returns the text of Err, cut to 1 KiB and without control characters, as
// it is sent with a dead letter; "" if there is none.
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

func failure(err error) *stet.Outcome {
	s := err.Error()
	return &stet.Outcome{State: stet.Failed, Result: []byte(s[:min(len(s), maxText)])}
}
