// Package observe holds what an engine tells its observer: one Event for each thing that
// happens to an operation. Packages stetlog, stetmetrics and stettrace have observers;
// stet.Options.Observer takes one of them, or your own.
package observe

import (
	"context"
	"log/slog"
	"time"

	"github.com/stet-go/stet/store"
)

// Kind says what happened.
type Kind uint8

// The kinds of events.
const (
	Claimed       Kind = iota // a claim was granted; a run begins
	Replayed                  // a settled outcome was returned
	InFlight                  // refused: running elsewhere
	Mismatched                // refused: another fingerprint
	Expired                   // refused: result no longer kept
	ToldUnknown               // refused: outcome unknown
	Settled                   // an outcome was written
	Released                  // a claim was released
	TakenOver                 // an expired run's operation is run again, by policy
	Resolved                  // a verifier, or Resolve, settled or released an unknown record
	MarkedUnknown             // a run ended without knowing its outcome
	LeaseLost                 // a run lost its lease
	Fenced                    // a late write was refused
	StoreFailed               // a store call failed, after retries
	FailedOpen                // a request ran unprotected, by configuration
	Swept                     // a sweep ended
	Accepted                  // an operation was accepted, to be run later
	Returned                  // a run of an accepted operation ended without effect; it is run again
	Cancelled                 // an accepted operation was cancelled, or its run asked to end
	Relayed                   // what an operation emitted has left
	Unsent                    // what an operation emitted was refused, or was not sent in time; it is tried again
	TimedOut                  // a run took longer than its RunTimeout; its context ended
	CutOff                    // a run under a lease had not ended when the engine was closed; its context ended
	Aborted                   // a transaction was rolled back because of what its function did; Err says why
)

var eventNames = [...]string{
	"claimed", "replayed", "in_flight", "mismatched", "expired", "told_unknown", "settled", "released",
	"taken_over", "resolved", "marked_unknown", "lease_lost", "fenced", "store_failed", "failed_open", "swept",
	"accepted", "returned", "cancelled", "relayed", "unsent", "timed_out", "cut_off", "aborted",
}

// String returns the name of the kind, fit for a metric's label.
func (k Kind) String() string {
	if int(k) < len(eventNames) {
		return eventNames[k]
	}
	return "event"
}

// Event is passed to observers. It has no body and no secret. Its Label has a key only if the policy
// stores keys: log what Names returns.
type Event struct {
	Kind    Kind
	ID      store.ID    // zero for Swept
	Class   string      // the operation's class
	Label   store.Label // as stored, if it is known; see Names
	State   store.State // of the record, after the event
	Fence   int64
	Attempt int
	Elapsed time.Duration // for Settled and Released: since the claim; for Claimed in lease mode: what the store took
	Swept   store.Swept   // for Swept
	Why     *Why          // if something went wrong, the cause; else nil
	Err     error         // the error, if there is one; for Settled and Resolved: why the result was not stored
}

// Names returns the known names of the operation: class, name, ref and scope_label.
func (ev Event) Names() (list []slog.Attr) {
	scopeLabel, ref := ev.Label.Names()
	for _, name := range [...][2]string{{"class", ev.Class}, {"name", ev.Label.Name}, {"ref", ref}, {"scope_label", scopeLabel}} {
		if name[1] != "" {
			list = append(list, slog.String(name[0], name[1]))
		}
	}
	return list
}

// Observer receives events. It is called synchronously: it must be quick, must not block, panic
// or call the engine, and must be safe for concurrent use.
type Observer interface {
	Observe(ctx context.Context, ev Event)
}

// Join returns an observer that passes each event to all of observers, in this order. Nil
// observers are left out.
func Join(observers ...Observer) Observer {
	return Func(func(ctx context.Context, ev Event) {
		for _, o := range observers {
			if o != nil {
				o.Observe(ctx, ev)
			}
		}
	})
}

// Func makes an Observer of a function.
type Func func(ctx context.Context, ev Event)

// Observe calls f.
func (f Func) Observe(ctx context.Context, ev Event) { f(ctx, ev) }
