package store

import (
	"errors"
	"fmt"
)

// What a store's errors wrap, for errors.Is. Any other error means that the call may
// or may not have taken effect.
var (
	// ErrInvalid: the store was used wrongly; nothing was done.
	ErrInvalid = errors.New("stet: invalid")
	// ErrMismatch: the key was used before for another request; nothing was done.
	ErrMismatch = errors.New("stet: key reused for another request")
	// ErrFenced: another claim or outcome stands; nothing was written.
	ErrFenced = errors.New("stet: fenced off")
	// ErrUnknown: what became of a commit could not be found out, or what the record
	// says may yet be lost.
	ErrUnknown = errors.New("stet: outcome unknown")
	// ErrDamaged: the record cannot be read; nothing was done to it.
	ErrDamaged = errors.New("stet: stored record unreadable")
)

// ErrNewerTables is wrapped by the errors of opening tables that a newer version of stet has made
// and this program cannot use.
var ErrNewerTables = errors.New("stet: the tables are newer than this program")

// ErrNotDone is wrapped by the error of a call of a Store that is known to have had
// no effect: it waited without effect for its turn, for one. A claim then leaves nothing to
// clean up, and an acceptance is known not to have happened.
var ErrNotDone = errors.New("stet: nothing was done")

// AbortedError is what RunTx and InTx return of a transaction that could not be committed
// because of what the function did in it and did not report: a statement failed, a
// constraint failed at COMMIT, the function ended the transaction, or its session was idle
// for longer than the server allows. Nothing was committed, and the store itself works.
type AbortedError struct{ Cause error }

// Error implements error.
func (e *AbortedError) Error() string { return e.Cause.Error() }

// Unwrap returns the cause.
func (e *AbortedError) Unwrap() error { return e.Cause }

// PartialError is the error of a call about many records of which some could not be reached or
// read. For the other records the call was carried out, and its results are valid.
type PartialError struct {
	// Claims are those of the records that could not be reached or read. Of an
	// unreadable record, only ID and Fence may be known; of a Sweep, nothing.
	Claims []Claim
	// Cause is what went wrong first.
	Cause error
}

// Error implements error. It names no key.
func (e *PartialError) Error() string {
	what := "some records"
	if len(e.Claims) > 0 {
		what = fmt.Sprintf("%d records", len(e.Claims))
	}
	return fmt.Sprintf("%s could not be reached or read: %v", what, e.Cause)
}

// Unwrap returns the cause.
func (e *PartialError) Unwrap() error { return e.Cause }

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrInvalid, fmt.Errorf(format, args...))
}
