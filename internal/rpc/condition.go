package rpc

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"strconv"
	"time"

	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/again"
)

// Domain is that of the google.rpc.ErrorInfo in each status that is not a handler's.
const Domain = "stet"

// In the metadata of the ErrorInfo.
const (
	ExecutionName = "execution" // the text of a stet.Execution
	RetryableName = "retryable" // "true" if the same call may be sent again, with the same key
)

// Metadata of responses.
const (
	// KeyName is request metadata: the key.
	KeyName = "idempotency-key"
	// ReplayedName is "true" with replays: in the header of a success, in the trailer
	// of a failure.
	ReplayedName = "idempotent-replayed"
	// ExecutedName is in the trailer of a handler's own failures: whether the operation was
	// executed, as the text of a stet.Execution.
	ExecutedName = "idempotency-execution"
)

// Condition is a reason for an error that the handler did not return itself. docs/problems.md
// has a section for each that HTTP has too.
type Condition struct {
	Reason    string // of the ErrorInfo
	Code      code.Code
	Text      string
	Retryable bool
	Execution stet.Execution
}

// The conditions.
var (
	KeyMissing = Condition{"KEY_MISSING", code.Code_INVALID_ARGUMENT,
		"this operation needs an idempotency key, in the metadata idempotency-key", false, stet.NotExecuted}
	KeyInvalid = Condition{"KEY_INVALID", code.Code_INVALID_ARGUMENT,
		"the idempotency key is not one: it has 1 to 255 bytes of visible ASCII", false, stet.NotExecuted}
	KeyRepeated = Condition{"KEY_REPEATED", code.Code_INVALID_ARGUMENT,
		"the call has more than one idempotency key", false, stet.NotExecuted}
	KeyMisplaced = Condition{"KEY_MISPLACED", code.Code_INVALID_ARGUMENT,
		"the idempotency key belongs in the metadata idempotency-key", false, stet.NotExecuted}
	StreamKeyed = Condition{"STREAM_KEYED", code.Code_INVALID_ARGUMENT,
		"a streaming call cannot be protected by an idempotency key; call it without one", false, stet.NotExecuted}
	StreamUnprotected = Condition{"STREAM_UNPROTECTED", code.Code_FAILED_PRECONDITION,
		"streaming methods cannot be protected, and this one was not said to pass without", false, stet.NotExecuted}
	MethodUnprotected = Condition{"METHOD_UNPROTECTED", code.Code_FAILED_PRECONDITION,
		"this method is not protected, so that an idempotency key would mean nothing; call it without one", false, stet.NotExecuted}
	RequestUnreadable = Condition{"REQUEST_INDIGESTIBLE", code.Code_INVALID_ARGUMENT,
		"this request has no form that is the same in each retry", false, stet.NotExecuted}
	ScopeMissing = Condition{"SCOPE_MISSING", code.Code_PERMISSION_DENIED,
		"the call does not say which account the idempotency key belongs to", false, stet.NotExecuted}
	ScopeFailed = Condition{"SCOPE_FAILED", code.Code_INTERNAL,
		"the server could not find out which account the idempotency key belongs to", true, stet.NotExecuted}
	ScopeTooLong = Condition{"SCOPE_TOO_LONG", code.Code_PERMISSION_DENIED,
		"the name of the account that the idempotency key belongs to is too long", false, stet.NotExecuted}
	Mismatch = Condition{"MISMATCH", code.Code_FAILED_PRECONDITION,
		"this idempotency key was used before for a request that differs from this one", false, stet.NotExecuted}
	InFlight = Condition{"IN_FLIGHT", code.Code_ABORTED,
		"the first call with this idempotency key is still being executed", true, stet.MayHaveExecuted}
	OutcomeUnknown = Condition{"OUTCOME_UNKNOWN", code.Code_UNKNOWN,
		"the operation may have been executed; keep asking with the same key: a new key would risk a second execution", true, stet.MayHaveExecuted}
	ResultExpired = Condition{"RESULT_EXPIRED", code.Code_FAILED_PRECONDITION,
		"the operation was executed before; its response has expired or was too large to keep; it does not run again", false, stet.Executed}
	ResultUnreadable = Condition{"RESULT_UNREADABLE", code.Code_DATA_LOSS,
		"the operation was executed before, but its stored response cannot be read; it does not run again", false, stet.Executed}
	ResultForeign = Condition{"RESULT_FOREIGN", code.Code_FAILED_PRECONDITION,
		"executed, but its result is of another kind", false, stet.Executed}
	StoreUnavailable = Condition{"STORE_UNAVAILABLE", code.Code_UNAVAILABLE,
		"nothing was executed, because it could not have been recorded", true, stet.NotExecuted}
	NotExecuted = Condition{"NOT_EXECUTED", code.Code_UNAVAILABLE,
		"the service did not complete the operation, and nothing was executed", true, stet.NotExecuted}
	MayRunAgain = Condition{"MAY_RUN_AGAIN", code.Code_ABORTED,
		"the service did not complete the operation, which may be run again", true, stet.MayHaveExecuted}
	RequestTimedOut = Condition{"REQUEST_ENDED", code.Code_DEADLINE_EXCEEDED,
		"the call timed out before its operation began", true, stet.NotExecuted}
	RequestCancelled = Condition{"REQUEST_ENDED", code.Code_CANCELLED,
		"the call was cancelled before its operation began", true, stet.NotExecuted}
	ProcessingTimedOut = Condition{"PROCESSING_TIMED_OUT", code.Code_DEADLINE_EXCEEDED,
		"the operation began and did not finish; it may have been executed, and does not run again", false, stet.MayHaveExecuted}
	HandlerPanicked = Condition{"HANDLER_PANICKED", code.Code_INTERNAL,
		"the operation broke off; it may have been executed, and does not run again", false, stet.MayHaveExecuted}
	OperationFailed = Condition{"OPERATION_FAILED", code.Code_INTERNAL,
		"the operation failed; it may have had an effect before, and does not run again", false, stet.MayHaveExecuted}
	OperationCancelled = Condition{"OPERATION_CANCELLED", code.Code_CANCELLED,
		"the operation was cancelled before it began", false, stet.NotExecuted}
	OperationBrokenOff = Condition{"OPERATION_CANCELLED", code.Code_CANCELLED,
		"the operation was cancelled after it began; some of it may have been executed", false, stet.MayHaveExecuted}
	PassedOn = Condition{"PASSED_ON", code.Code_UNKNOWN,
		"the service has passed on the status of another operation", false, stet.Executed}
	TransactionAborted = Condition{"TRANSACTION_ABORTED", code.Code_INTERNAL,
		"the service's transaction could not be committed because of an error in the service; it was rolled back", true, stet.NotExecuted}
	Misconfigured = Condition{"MISCONFIGURED", code.Code_INTERNAL,
		"the server could not begin the operation", false, stet.NotExecuted}
)

// as is the condition of an ended operation of which only the execution is known.
func (c Condition) as(x stet.Execution) Condition {
	switch x {
	case c.Execution:
	case stet.NotExecuted:
		c.Execution, c.Text = x, "the operation was cancelled before it began; it will not run"
	default:
		c.Execution, c.Text = x, "the operation failed, and may have been executed; its stored result has expired or cannot be read; it does not run again"
	}
	return c
}

// End returns the response for a condition. If detail is "", it has the condition's own text.
// after is the time until a retry; 0 omits it.
func (c Condition) End(detail string, after time.Duration, more ...proto.Message) End {
	info := &errdetails.ErrorInfo{Reason: c.Reason, Domain: Domain, Metadata: map[string]string{
		ExecutionName: c.Execution.String(), RetryableName: strconv.FormatBool(c.Retryable)}}
	return c.end(info, detail, after, more)
}

func (c Condition) end(info *errdetails.ErrorInfo, detail string, after time.Duration, more []proto.Message) End {
	st := &status.Status{Code: int32(c.Code), Message: cmp.Or(detail, c.Text)}
	details := []proto.Message{info}
	e := End{Status: st}
	switch {
	case !c.Retryable:
		e.Trailer = Metadata{PushbackName: {"-1"}}
	case after > 0:
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(after)})
		e.Trailer = Metadata{PushbackName: {strconv.FormatInt(int64((after+time.Millisecond-1)/time.Millisecond), 10)}}
	}
	for _, m := range append(details, more...) {
		// Deterministic: the first response and its replay have the same bytes.
		a := new(anypb.Any)
		if err := anypb.MarshalFrom(a, m, proto.MarshalOptions{Deterministic: true}); err == nil { // their texts are ours, or were checked
			st.Details = append(st.Details, a)
		}
	}
	return e
}

// Refusal converts an error of the engine. ended is the error of the call's context; hint is
// the time until a retry if nothing else is known. fault is true for a fault of the server,
// which must be logged.
func Refusal(err, ended error, hint time.Duration) (e End, fault bool) {
	var after time.Duration
	if own, ok := errors.AsType[*stet.Error](err); ok {
		after = own.RetryAfter
	}
	x := stet.ExecutionOf(err)
	switch k := stet.KindOf(err); {
	case k == stet.KindMismatch:
		return Mismatch.End("", 0), false
	case k == stet.KindInFlight:
		return InFlight.End("", max(after, hint)), false
	case k == stet.KindExpired:
		return ResultExpired.as(x).End("", 0), false
	case k == stet.KindDamaged:
		return ResultUnreadable.as(x).End("", 0), true
	case x == stet.NotExecuted && (k == stet.KindStore || k == stet.KindClosed):
		return StoreUnavailable.End("", max(after, hint)), false
	case again.Aborted(err):
		return TransactionAborted.End("", 0), false
	case x == stet.NotExecuted && k == stet.KindRetryable:
		return NotExecuted.End("", max(after, hint)), false
	case x == stet.NotExecuted && errors.Is(ended, context.Canceled):
		return RequestCancelled.End("", 0), false
	case x == stet.NotExecuted && ended != nil:
		return RequestTimedOut.End("", 0), false
	case x == stet.NotExecuted:
		return Misconfigured.End("", 0), true
	}
	return OutcomeUnknown.End("", after), false
}

// Said is what the ErrorInfo of a status says; ok is false if there is none of stet's.
type Said struct {
	Reason    string
	Execution stet.Execution
	Retryable bool
	After     time.Duration // of the RetryInfo
}

// ReadStatus returns what a status says of its operation.
func ReadStatus(st *status.Status) (s Said, ok bool) {
	for _, d := range st.GetDetails() {
		m, err := d.UnmarshalNew()
		if err != nil {
			continue
		}
		switch m := m.(type) {
		case *errdetails.RetryInfo:
			s.After = max(0, m.GetRetryDelay().AsDuration())
		case *errdetails.ErrorInfo:
			if m.GetDomain() != Domain || ok {
				continue
			}
			ok = true
			s.Reason, s.Retryable = m.GetReason(), m.GetMetadata()[RetryableName] == "true"
			s.Execution = ParseExecution(m.GetMetadata()[ExecutionName])
		}
	}
	return s, ok
}

// Own returns the response to a call whose handler returned the status of e. x says whether
// the operation was executed. stored says that the status is the stored outcome, which each
// retry receives again. An ErrorInfo of stet's in the status describes another operation,
// which the handler called. PASSED_ON is then the first detail, and describes this one.
func Own(e End, x stet.Execution, stored bool) End {
	trailer := Metadata{}
	maps.Copy(trailer, e.Trailer)
	trailer[ExecutedName] = []string{x.String()}
	if stored && len(trailer[PushbackName]) == 0 {
		trailer[PushbackName] = []string{"-1"}
	}
	e.Trailer = trailer
	if _, ok := ReadStatus(e.Status); !ok {
		return e
	}
	own := PassedOn
	own.Execution, own.Retryable = x, !stored
	st := proto.CloneOf(e.Status)
	st.Details = append(own.End("", 0).Status.Details, st.Details...)
	e.Status = st
	return e
}

// ParseExecution is the reverse of stet.Execution.String. An unknown text is MayHaveExecuted.
func ParseExecution(text string) stet.Execution {
	for _, x := range []stet.Execution{stet.Executed, stet.NotExecuted} {
		if text == x.String() {
			return x
		}
	}
	return stet.MayHaveExecuted
}
