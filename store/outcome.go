package store

import "fmt"

// Adapter is what an operation came in by, and so what can replay its outcome exactly.
type Adapter uint8

const (
	// AdapterEngine is the engine itself, or a program that calls Begin and Settle.
	AdapterEngine Adapter = iota
	// AdapterHTTP is package stethttp.
	AdapterHTTP
	// AdapterGo is stet.Do, and the workers of package stetwork.
	AdapterGo
	// AdapterGRPC is a gRPC service.
	AdapterGRPC
	// AdapterMessage is package stetmsg.
	AdapterMessage
	// AdapterSQL is a service that settles by SQL.
	AdapterSQL
)

var faceNames = [...]string{"stet", "http", "go", "grpc", "msg", "sql"}

// String returns the adapter's name in lower case.
func (f Adapter) String() string {
	if int(f) < len(faceNames) {
		return faceNames[f]
	}
	return fmt.Sprintf("adapter(%d)", uint8(f))
}

// Reason is why an operation failed.
type Reason uint8

const (
	// ReasonNone: the handler returned the failure. It may have had an effect before.
	ReasonNone Reason = iota
	// ReasonPanicked: the handler panicked, or called runtime.Goexit.
	ReasonPanicked
	// ReasonTimedOut: the run died, and its policy says that it has failed.
	ReasonTimedOut
	// ReasonCancelled: its cancellation was asked for.
	ReasonCancelled
	// ReasonExhausted: its runs died as often as attempts are allowed.
	ReasonExhausted
	// ReasonResolved: an operator or a verifier says so.
	ReasonResolved
	// ReasonNoEffect: the handler returned the failure, and the operation had no effect:
	// its writes were rolled back, or the handler has declared that nothing was executed.
	ReasonNoEffect
)

// Returned reports whether the outcome is the failure that the handler returned.
func (r Reason) Returned() bool { return r == ReasonNone || r == ReasonNoEffect }

var reasonNames = [...]string{"", "panicked", "timed out", "cancelled", "exhausted", "resolved", "no effect"}

// String returns the reason in lower case; "" for ReasonNone.
func (r Reason) String() string {
	if int(r) < len(reasonNames) {
		return reasonNames[r]
	}
	return fmt.Sprintf("reason(%d)", uint8(r))
}

// Field is a header or trailer field with its list of values. Without any, it says
// that the field is not to be there.
type Field struct {
	Name   string
	Values []string
}
