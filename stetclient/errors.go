package stetclient

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/stet-go/stet"
)

// Reason says why a call ended without an outcome.
type Reason string

// The reasons. They do not say whether anything was executed: see Info.Execution.
const (
	// ReasonAttempts: Policy.MaxAttempts are used up.
	ReasonAttempts Reason = "attempts used up"
	// ReasonTime: the next attempt would begin after Policy.MaxElapsed, or after the
	// deadline of the context.
	ReasonTime Reason = "no time for another attempt"
	// ReasonContext: the caller's context ended.
	ReasonContext Reason = "context ended"
	// ReasonFinal: another attempt would get the same error.
	ReasonFinal Reason = "final error"
	// ReasonRefused: the last attempt was refused without effect, by the service, such as with a
	// 401, or by the RoundTripper, with Final(err, stet.NotExecuted). A 401 is no outcome if
	// an earlier attempt may have executed, nor for Resume, because its credentials may be wrong.
	ReasonRefused Reason = "refused without an outcome"
	// ReasonTruncated: the response broke off while it was read.
	ReasonTruncated Reason = "response broke off"
	// ReasonRequest: the request is invalid; nothing was sent.
	ReasonRequest Reason = "invalid request"
	// ReasonJournal: the journal could not be written, and this call sent nothing. An
	// earlier call may have sent the request, or Resume may send it.
	ReasonJournal Reason = "journal unavailable"
	// ReasonStale: the intent is older than Options.MaxAge, or would be at the next
	// attempt. It is not sent again, because the service may have discarded its key.
	ReasonStale Reason = "intent too old to be sent again"
	// ReasonRecorded: the intent has an outcome, but its response was too large for the
	// journal, or was discarded by the service.
	ReasonRecorded Reason = "already executed; its response is not stored"
)

// final reports whether another call would return the same.
func (r Reason) final() bool {
	switch r {
	case ReasonFinal, ReasonRequest, ReasonStale, ReasonRecorded:
		return true
	default:
		return false
	}
}

// Info describes a call. Its Key is not for logs.
type Info struct {
	// Key is the idempotency key, without quotes. Keep it to ask again later.
	Key string
	// Attempts counts the attempts, including attempts that sent nothing. It is
	// 0 if the outcome comes from the journal.
	Attempts int
	// Waited is how long the call waited between attempts.
	Waited time.Duration
	// Replayed: the response is that of an earlier execution.
	Replayed bool
	// Execution says whether the operation was executed, from all attempts together.
	Execution stet.Execution
	// Problem is the problem document of the last response, or nil.
	Problem *Problem
	// Pending: the intent is in the journal without an outcome, and
	// Transport.Resume will send it again.
	Pending bool
}

func (s *series) info() Info {
	return Info{Attempts: s.attempts, Waited: s.waited, Execution: s.execution}
}

// InfoOf returns the Info of the call that returned a response, and false for a response that
// no Transport returned.
func InfoOf(res *http.Response) (Info, bool) {
	if c := callOf(res); c != nil {
		return c.info(), true
	}
	return Info{}, false
}

// Error is the error of a call that ended without an outcome. For stet.KindOf it is
// stet.KindUnknown if the operation may have executed, stet.KindRetryable if it did not,
// and stet.KindExpired if it did but the response is lost; of ReasonRequest it is
// stet.KindInvalid, or stet.KindMismatch where the journal has another request under the
// intent's name. stet.ExecutionOf returns Info.Execution.
type Error struct {
	Info
	// Reason is why the call ended.
	Reason Reason
	// RetryAfter is how long the service asked to wait; 0 if it did not.
	RetryAfter time.Duration
	// Response is the last response, if there was one. Its body is in
	// memory, cut off at Options.MaxResponse, and need not be closed.
	Response *http.Response
	// Cause is the last error, or nil.
	Cause error
}

// Error implements error. It names no key.
func (e *Error) Error() string {
	s := fmt.Sprintf("stetclient: %s after %d attempts (%v)", e.Reason, e.Attempts, e.Execution)
	if e.Response != nil {
		s += fmt.Sprintf(": last status %d", e.Response.StatusCode)
	}
	if e.Cause != nil {
		s += ": " + e.Cause.Error()
	}
	return s
}

// Unwrap returns the kind, as an *stet.Error, and the cause.
func (e *Error) Unwrap() []error {
	all := []error{&stet.Error{Kind: e.kind(), Execution: e.Execution, RetryAfter: e.RetryAfter}}
	if e.Cause != nil {
		all = append(all, e.Cause)
	}
	return all
}

func (e *Error) resolution() Resolution {
	return Resolution{Retry: !e.Reason.final(), Execution: e.Execution, After: e.RetryAfter}
}

func (e *Error) kind() stet.Kind {
	switch k := stet.KindOf(e.Cause); {
	case e.Reason == ReasonRequest && k != 0:
		return k
	case e.Execution == stet.NotExecuted:
		return stet.KindRetryable
	case e.Execution == stet.Executed:
		return stet.KindExpired
	default:
		return stet.KindUnknown
	}
}

// Timeout reports whether the last attempt exceeded a time limit, for (*url.Error).Timeout.
func (e *Error) Timeout() bool {
	var t interface{ Timeout() bool }
	return errors.As(e.Cause, &t) && t.Timeout()
}

var errAttemptTimeout = fmt.Errorf("attempt took longer than Policy.AttemptTimeout: %w", context.DeadlineExceeded)
