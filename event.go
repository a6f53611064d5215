package stet

import (
	"context"
	"time"
)

// EventKind says what happened.
type EventKind uint8

// The kinds of events.
const (
	EventClaimed     EventKind = iota // a claim was granted; a run begins
	EventReplayed                     // a settled outcome was handed out
	EventInFlight                     // refused: running elsewhere
	EventMismatched                   // refused: another fingerprint
	EventExpired                      // refused: result no longer kept
	EventToldUnknown                  // refused: outcome unknown
	EventSettled                      // an outcome was written
	EventReleased                     // a claim was given back
	EventTakenOver                    // a dead run's operation is run again, by policy
	EventResolved                     // a verifier, or Resolve, settled or released an unknown record
	EventParked                       // a run ended without knowing its outcome
	EventLeaseLost                    // a run lost its lease
	EventFenced                       // a late write was refused
	EventStoreFailed                  // a store call failed, after retries
	EventFailedOpen                   // a request ran unprotected, by configuration
	EventSwept                        // a sweep ended
	EventAccepted                     // an operation was accepted, to be run later
	EventReturned                     // a run of an accepted operation ended without effect; it is run again
	EventCancelled                    // an accepted operation was cancelled, or its run asked to end
	EventRelayed                      // what an operation emitted has left
	EventUnsent                       // what an operation emitted was refused, or was not sent in time; it is tried again
)

var eventNames = [...]string{
	"claimed", "replayed", "in_flight", "mismatched", "expired", "told_unknown", "settled", "released",
	"taken_over", "resolved", "parked", "lease_lost", "fenced", "store_failed", "failed_open", "swept",
	"accepted", "returned", "cancelled", "relayed", "unsent",
}

// String returns the name of the kind, fit for a metric's label.
func (k EventKind) String() string {
	if int(k) < len(eventNames) {
		return eventNames[k]
	}
	return "event"
}

// Event is what an observer is told. It holds no key, no body and no secret.
type Event struct {
	Kind    EventKind
	ID      ID     // zero for EventSwept
	Class   string // the operation's class
	State   State  // of the record, after the event
	Fence   int64
	Attempt int
	Elapsed time.Duration // for EventSettled and EventReleased: since the claim; for EventClaimed in lease mode: what the store took
	Swept   Swept         // for EventSwept
	Err     error         // what went wrong, if anything did
}

// Observer is told what happens. It is called synchronously: it must be quick,
// must not block, panic or call the engine, and must be safe for concurrent use.
type Observer interface {
	Observe(ctx context.Context, ev Event)
}

// ObserverFunc makes an Observer of a function.
type ObserverFunc func(ctx context.Context, ev Event)

// Observe calls f.
func (f ObserverFunc) Observe(ctx context.Context, ev Event) { f(ctx, ev) }
