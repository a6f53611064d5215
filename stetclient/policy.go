package stetclient

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/misuse"
)

// Defaults and limits of Policy.
const (
	// DefaultMaxAttempts is Policy.MaxAttempts when that is 0.
	DefaultMaxAttempts = 8
	// MaxMaxAttempts bounds Policy.MaxAttempts.
	MaxMaxAttempts = 10_000
	// DefaultMaxElapsed is Policy.MaxElapsed when that is 0.
	DefaultMaxElapsed = 2 * time.Minute
	// DefaultBase is Policy.Base when that is 0.
	DefaultBase = 200 * time.Millisecond
	// DefaultCap is Policy.Cap when that is 0.
	DefaultCap = 20 * time.Second
)

// Policy limits the attempts. A zero field means its default.
type Policy struct {
	// MaxAttempts bounds the attempts, the first included; 1 never retries.
	// Default DefaultMaxAttempts; at most MaxMaxAttempts.
	MaxAttempts int
	// MaxElapsed is how long after its start a call may begin another attempt. If the next
	// attempt would begin later, the call ends at once. Default DefaultMaxElapsed.
	MaxElapsed time.Duration
	// AttemptTimeout limits each attempt. A longer attempt is cancelled and may have
	// executed. Default 0: only the caller's context and the RoundTripper limit an attempt.
	AttemptTimeout time.Duration
	// Base is the bound of the first wait. The bound doubles with each wait, up to Cap. The
	// wait is random between zero and its bound (full jitter), and is added to Retry-After.
	// Defaults DefaultBase and DefaultCap.
	Base, Cap time.Duration
}

// withDefaults returns the checked policy with its defaults filled in.
func (p Policy) withDefaults() (Policy, error) {
	if p.MaxAttempts < 0 || p.MaxAttempts > MaxMaxAttempts {
		return p, misuse.Errorf("stetclient: Policy.MaxAttempts is %d; it must be 1 to %d, or 0 for %d", p.MaxAttempts, MaxMaxAttempts, DefaultMaxAttempts)
	}
	if min(p.MaxElapsed, p.AttemptTimeout, p.Base, p.Cap) < 0 {
		return p, misuse.Errorf("stetclient: Policy.MaxElapsed (%v), AttemptTimeout (%v), Base (%v) and Cap (%v) must not be negative", p.MaxElapsed, p.AttemptTimeout, p.Base, p.Cap)
	}
	p.MaxAttempts = cmp.Or(p.MaxAttempts, DefaultMaxAttempts)
	p.MaxElapsed = cmp.Or(p.MaxElapsed, DefaultMaxElapsed)
	p.Base = cmp.Or(p.Base, DefaultBase)
	p.Cap = cmp.Or(p.Cap, max(DefaultCap, p.Base))
	if p.Cap < p.Base {
		return p, misuse.Errorf("stetclient: Policy.Cap (%v) is shorter than Policy.Base (%v)", p.Cap, p.Base)
	}
	return p, nil
}

// Resolution is the classification of an attempt.
type Resolution struct {
	// Retry: the same request should be sent again.
	Retry bool
	// Execution says whether this attempt executed the operation.
	Execution stet.Execution
	// After is the minimum wait before the next attempt.
	After time.Duration

	stands bool // it is the operation's outcome, so Execution holds for all attempts
}

// series is the attempts of one operation.
type series struct {
	policy    *Policy
	attempts  int
	waited    time.Duration
	execution stet.Execution // of all attempts together
	earlier   stet.Execution // of all but the last
	last      Resolution
	reason    Reason // why no other attempt was made; "" if the last resolution is final
}

// run makes attempts until a resolution is final, or the policy, ctx or again ends them.
func (s *series) run(ctx context.Context, attempt func() Resolution, again func(wait time.Duration) Reason) {
	began := time.Now()
	for bound := s.policy.Base; ; bound = doubled(bound, s.policy.Cap) {
		s.attempts++
		s.last = attempt()
		s.earlier = s.execution
		s.execution = together(s.earlier, s.last.Execution)
		if s.last.stands {
			s.execution = s.last.Execution
		}
		if !s.last.Retry {
			return
		}
		wait := s.last.After + rand.N(bound) // full jitter
		if s.reason = s.ends(ctx, began, wait); s.reason == "" {
			s.reason = again(wait)
		}
		if s.reason != "" {
			return
		}
		start := time.Now()
		ended := sleep(ctx, wait) != nil
		s.waited += time.Since(start)
		if ended {
			s.reason = ReasonContext
			return
		}
	}
}

// ends returns the reason not to make another attempt after wait; "" if there is none.
func (s *series) ends(ctx context.Context, began time.Time, wait time.Duration) Reason {
	deadline, has := ctx.Deadline()
	switch {
	case ctx.Err() != nil:
		return ReasonContext
	case s.attempts >= s.policy.MaxAttempts:
		return ReasonAttempts
	case wait < 0 || time.Since(began)+wait > s.policy.MaxElapsed, has && time.Until(deadline) < wait:
		return ReasonTime
	}
	return ""
}

// doubled returns twice d, at most limit.
func doubled(d, limit time.Duration) time.Duration {
	if d > limit/2 {
		return limit
	}
	return 2 * d
}

// sleep waits for d, or returns the cause when ctx ends first.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// together says whether any of several attempts executed.
func together(a, b stet.Execution) stet.Execution {
	switch {
	case a == stet.Executed || b == stet.Executed:
		return stet.Executed
	case a == stet.NotExecuted && b == stet.NotExecuted:
		return stet.NotExecuted
	default:
		return stet.MayHaveExecuted
	}
}

// Retry calls fn until it succeeds, its error is final, or the policy or ctx ends the call. It
// is for operations that are not HTTP requests. fn must do the same each time, under the same
// key: make the key outside, with stet.NewKey or stet.DeriveKey. The context of fn ends after
// Policy.AttemptTimeout.
//
// An error is final if it is marked with Final, if it is an *stet.Error of kind
// KindInvalid, KindMismatch, KindExpired, KindFailed or KindDamaged, or a *stetclient.Error
// for ReasonFinal, ReasonRequest, ReasonStale or ReasonRecorded. If an *stetclient.Error wraps a
// marked error, its Reason decides. All others are retried, an *stet.Error or *stetclient.Error after its RetryAfter. The error returned
// is an *Error that wraps the last error of fn. stet.ExecutionOf is for all attempts together:
// if the last attempt had no effect, but an earlier one may have had one, it returns "may
// have executed".
//
// If the policy is invalid, the error is stet.KindInvalid, and fn is not called.
func Retry[T any](ctx context.Context, p Policy, fn func(context.Context) (T, error)) (T, error) {
	var zero T
	p, err := p.withDefaults()
	if err != nil {
		return zero, err
	}
	if cause := context.Cause(ctx); cause != nil {
		return zero, &Error{Reason: ReasonContext, Info: Info{Execution: stet.NotExecuted}, Cause: cause}
	}
	var value T
	attempt := func() Resolution {
		ctx := ctx
		if p.AttemptTimeout > 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeoutCause(ctx, p.AttemptTimeout, errAttemptTimeout)
			defer cancel()
		}
		if value, err = fn(ctx); err != nil {
			return classifyRetried(err)
		}
		return Resolution{Execution: stet.Executed}
	}
	s := series{policy: &p, execution: stet.NotExecuted}
	s.run(ctx, attempt, func(time.Duration) Reason { return "" })
	if err == nil {
		return value, nil
	}
	return value, &Error{Reason: cmp.Or(s.reason, ReasonFinal), Info: s.info(), RetryAfter: s.last.After, Cause: err}
}

// classifyRetried is the resolution of an error of a function that Retry called.
func classifyRetried(err error) Resolution {
	if e, ok := errors.AsType[resolved](err); ok {
		return e.resolution()
	}
	v := Resolution{Retry: true, Execution: stet.ExecutionOf(err)}
	if e, ok := errors.AsType[*stet.Error](err); ok {
		v.After = e.RetryAfter
		switch e.Kind {
		case stet.KindInvalid, stet.KindMismatch, stet.KindExpired, stet.KindFailed, stet.KindDamaged:
			v.Retry = false
		default:
		}
	}
	return v
}

// resolved is a mark of Final, or an *Error. The outer one counts: the Execution of an *Error is
// of all attempts, that of a mark in its Cause is of the last attempt only.
type resolved interface {
	error
	resolution() Resolution
}

// final marks an error that is not retried.
type final struct {
	err       error
	execution stet.Execution
}

func (f *final) resolution() Resolution { return Resolution{Execution: f.execution} }

// Error implements error.
func (f *final) Error() string { return f.err.Error() }

// Unwrap gives errors.Is and errors.As the error that was marked.
func (f *final) Unwrap() error { return f.err }

// Final marks an error of a function that Retry calls, or of the RoundTripper below a Transport, so
// that no other attempt is made. x says whether the operation was executed. If the RoundTripper had
// a connection for the attempt, a Transport takes stet.NotExecuted for stet.MayHaveExecuted.
// Final(nil, x) is nil.
func Final(err error, x stet.Execution) error {
	if err == nil {
		return nil
	}
	return &final{err, x}
}
