package stetclient

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/cenkalti/backoff/v5"

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

// Policy says how often and how fast attempts are made. The zero value of each
// field stands for its default.
type Policy struct {
	// MaxAttempts bounds the attempts, the first included; 1 never retries.
	// Default DefaultMaxAttempts; at most MaxMaxAttempts.
	MaxAttempts int
	// MaxElapsed is how long after its start a call may begin another
	// attempt. An attempt that would begin later is not waited for: the call
	// ends at once. Default DefaultMaxElapsed.
	MaxElapsed time.Duration
	// AttemptTimeout bounds each attempt; one that takes longer is given up
	// and may have executed. Default 0: only the caller's context and the
	// RoundTripper below bound an attempt.
	AttemptTimeout time.Duration
	// Base bounds the first wait; each further bound is twice the one
	// before, up to Cap. The wait is drawn evenly from zero to its bound
	// (full jitter), and comes on top of what Retry-After asks for. Defaults
	// DefaultBase and DefaultCap.
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

// Resolution says what an attempt did, and what to do next.
type Resolution struct {
	// Retry: the same request should be sent again.
	Retry bool
	// Execution says whether this attempt executed the operation, as far as
	// its answer tells.
	Execution stet.Execution
	// After is how long to wait at least before the next attempt.
	After time.Duration

	stands bool // it is the operation's outcome, and so speaks for all attempts
}

// attempter makes attempts. It is an interface, and not a function, because a
// method value would cost an allocation.
type attempter interface {
	attempt() Resolution
	// again is asked before the series waits for another attempt; a Reason
	// other than "" ends it.
	again(wait time.Duration) Reason
}

// series is the attempts of one operation, and the backoff.BackOff between them.
type series struct {
	p         *Policy
	ctx       context.Context
	who       attempter
	began     time.Time
	slept     time.Time // when the present wait began
	waited    time.Duration
	attempts  int
	execution stet.Execution // of all attempts together
	earlier   stet.Execution // of all but the last
	last      Resolution
	reason    Reason // why there is no further attempt; "" if the last verdict says so
	expo      backoff.ExponentialBackOff
}

// begin readies a series; known is what is known of attempts before it.
func (s *series) begin(ctx context.Context, p *Policy, who attempter, known stet.Execution) {
	s.ctx, s.p, s.who, s.execution = ctx, p, who, known
	s.began = time.Now()
	// A factor of one spreads the library's waits evenly from zero to twice
	// the interval, which is full jitter for half of it.
	s.expo = backoff.ExponentialBackOff{InitialInterval: (p.Base + 1) / 2, RandomizationFactor: 1, Multiplier: 2, MaxInterval: (p.Cap + 1) / 2}
}

// run makes attempts until a resolution is final or the policy ends them.
func (s *series) run() {
	s.try()
	if s.last.Retry {
		s.repeat()
	}
}

func (s *series) try() {
	s.attempts++
	s.last = s.who.attempt()
	s.earlier = s.execution
	s.execution = together(s.earlier, s.last.Execution)
	if s.last.stands {
		s.execution = s.last.Execution
	}
}

var errAgain = errors.New("another attempt is due")

// repeat continues after a first attempt that is to be retried. It is apart from
// run, so that calls that need no retry do not pay for it.
func (s *series) repeat() {
	first := true
	_, err := backoff.Retry(s.ctx, func() (struct{}, error) {
		if !first {
			s.wake()
			s.try()
		}
		first = false
		if s.last.Retry {
			return struct{}{}, errAgain
		}
		return struct{}{}, nil
	}, backoff.WithBackOff(s), backoff.WithMaxElapsedTime(0)) // NextBackOff bounds the time
	if err != nil && s.reason == "" {
		s.reason = ReasonContext // ended in the attempt, or in the wait
		s.wake()
	}
}

// wake ends a wait, if there is one.
func (s *series) wake() {
	if !s.slept.IsZero() {
		s.waited += time.Since(s.slept)
		s.slept = time.Time{}
	}
}

// NextBackOff implements backoff.BackOff.
func (s *series) NextBackOff() time.Duration {
	wait := s.last.After + s.expo.NextBackOff()
	now := time.Now()
	deadline, has := s.ctx.Deadline()
	switch {
	case s.attempts >= s.p.MaxAttempts:
		s.reason = ReasonAttempts
	case wait < 0 || now.Sub(s.began)+wait > s.p.MaxElapsed, has && deadline.Sub(now) < wait:
		s.reason = ReasonTime
	default:
		s.reason = s.who.again(wait)
	}
	if s.reason != "" {
		return backoff.Stop
	}
	s.slept = now
	return wait
}

// Reset implements backoff.BackOff.
func (s *series) Reset() { s.expo.Reset() }

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

// Retry calls fn until it succeeds, its error is final, or the policy or ctx end it:
// the policy of a Transport for operations that are not HTTP requests. fn must do the
// same each time, under the same key; make the key outside, with stet.NewKey or
// stet.DeriveKey. Its context ends with Policy.AttemptTimeout.
//
// An error is final if it is marked with Final, if it is an *stet.Error of kind
// KindInvalid, KindMismatch, KindExpired, KindFailed or KindDamaged, or a *stetclient.Error
// for ReasonFinal, ReasonRequest, ReasonStale or ReasonRecorded. All others are
// retried, an *stet.Error or *stetclient.Error after its RetryAfter. The error returned
// is an *Error; errors.Is and errors.As find fn's last one through it, and
// stet.ExecutionOf answers for all attempts together. If the last attempt had no
// effect, but an earlier one may have had one, it returns "may have executed".
//
// A policy that is not acceptable is stet.KindInvalid, and fn is not called.
func Retry[T any](ctx context.Context, p Policy, fn func(context.Context) (T, error)) (T, error) {
	var zero T
	p, err := p.withDefaults()
	if err != nil {
		return zero, err
	}
	if cause := context.Cause(ctx); cause != nil {
		return zero, &Error{Reason: ReasonContext, Info: Info{Execution: stet.NotExecuted}, Cause: cause}
	}
	r := repeated[T]{ctx: ctx, p: &p, fn: fn}
	r.series.begin(ctx, &p, &r, stet.NotExecuted)
	r.series.run()
	if r.err == nil {
		return r.value, nil
	}
	return r.value, &Error{Reason: cmp.Or(r.series.reason, ReasonFinal), Info: r.series.info(), RetryAfter: r.series.last.After, Cause: r.err}
}

// repeated is a function as an attempter.
type repeated[T any] struct {
	series series
	ctx    context.Context
	p      *Policy
	fn     func(context.Context) (T, error)
	value  T
	err    error
}

func (r *repeated[T]) again(time.Duration) Reason { return "" }

func (r *repeated[T]) attempt() Resolution {
	ctx := r.ctx
	if r.p.AttemptTimeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, r.p.AttemptTimeout, errAttemptTimeout)
		defer cancel()
	}
	r.value, r.err = r.fn(ctx)
	if r.err == nil {
		return Resolution{Execution: stet.Executed}
	}
	return verdictOfError(r.err)
}

// verdictOfError is the resolution of an error of a function that Retry called.
func verdictOfError(err error) Resolution {
	v := Resolution{Retry: true, Execution: stet.ExecutionOf(err)}
	if f, ok := errors.AsType[*final](err); ok {
		return Resolution{Execution: f.execution}
	}
	if e, ok := errors.AsType[*Error](err); ok {
		v.After = e.RetryAfter
		v.Retry = !e.Reason.final()
	} else if e, ok := errors.AsType[*stet.Error](err); ok {
		v.After = e.RetryAfter
		switch e.Kind {
		case stet.KindInvalid, stet.KindMismatch, stet.KindExpired, stet.KindFailed, stet.KindDamaged:
			v.Retry = false
		default:
		}
	}
	return v
}

// final marks an error that is not to be retried.
type final struct {
	err       error
	execution stet.Execution
}

// Error implements error.
func (f *final) Error() string { return f.err.Error() }

// Unwrap gives errors.Is and errors.As the error that was marked.
func (f *final) Unwrap() error { return f.err }

// Final marks an error of a function that Retry calls: Retry makes no other attempt,
// and x says whether the operation was executed. Final(nil, x) is nil.
func Final(err error, x stet.Execution) error {
	if err == nil {
		return nil
	}
	return &final{err, x}
}
