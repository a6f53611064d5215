package stet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/stet-go/stet/codec"
	"github.com/stet-go/stet/observe"
	"github.com/stet-go/stet/store"
)

// NoWait, as Policy.Wait or Op.Wait, turns waiting off, whatever the default is.
const NoWait = time.Nanosecond

// Policy sets how the operations of a class run. A zero field selects its default.
type Policy struct {
	// Lease is how long a claim lives without a renewal. MinLease (50 ms) to MaxLease (24 h). Default 30 s.
	// The engine renews it after a third of that time.
	Lease time.Duration
	// RunTimeout limits a run. The run's context then ends, and the engine stops renewing its
	// lease. At most MaxRunTimeout (7 days). Default 5 min.
	RunTimeout time.Duration
	// Wait is how long a duplicate waits for a run in flight before it fails with KindInFlight.
	// At most MaxWait (5 min). Default: for a class, the Wait of Options.Policy; in Options.Policy,
	// NoWait.
	Wait time.Duration
	// Stale resolves an operation whose lease has expired if Verify is not set or returns
	// CannotKnow. The operation may have had its effect.
	//
	//   - CannotKnow, the default: the operation stays Unknown until Verify or an operator
	//     resolves it. Set it in a class to override another Stale of Options.Policy.
	//   - MayRunAgain: the operation runs again. Use it only for handlers that are idempotent
	//     themselves, because the effect may happen twice. If a StepOnce is unresolved, the
	//     operation stays Unknown.
	//   - ItHappened with a failed outcome: the engine stores that outcome. Its Reason becomes
	//     store.ReasonTimedOut if it has none. HTTP answers 504, or the response that
	//     stethttp.Outcome made. The error says that the operation may have executed.
	Stale Resolution
	// Verify, if set, finds out whether an operation had its effect after its lease has
	// expired. It may read the business tables or query the payment processor. The engine calls
	// it for an Unknown record before it returns KindUnknown, and before it applies Stale. If
	// Verify returns an error, the record stays Unknown, whatever Stale is. The engine may call
	// it more than once, and from several processes at a time. Its context does not end with
	// the caller's. If Verify begins the same operation, that call fails with KindInFlight
	// after a time.
	//
	// The Status has Op, with the Name and Ref of the expired run. It has Record, with its
	// Fence, Attempt and ClaimedAt, and OpenStep. Package reconcile calls Verify for jobs, and for
	// operations whose key KeepKey retains. Other records have neither scope nor key. An empty
	// key finds nothing, which does not mean that nothing happened. See ByRef in the Options of
	// package reconcile.
	Verify func(context.Context, Status) (Resolution, error)
	// VerifyTimeout limits a call of Verify. Default 10 s.
	VerifyTimeout time.Duration
	// Retention sets how long results and records stay in the store. Default 24 h for results,
	// 30 days for records.
	Retention store.Retention
	// MaxResult is the size limit of a stored result, in bytes. A larger result is discarded:
	// its outcome is stored as Gone. At most MaxResultLimit, and at most the store's own limit
	// (see store.Limiter). Default 1 MiB, or the store's own limit if that is lower.
	MaxResult int
	// ForgetReleased deletes the record of a released run if it was the first run of its key.
	// Refused callers then cannot fill the store. The next request with the key may have other
	// content. It is a first attempt again, with a greater fence. Default: records of released
	// runs stay.
	//
	// The record stays for Retention.Result if the run may have had an effect:
	//
	//   - An earlier run has used the key.
	//   - The run has stored a Step.
	//   - The engine sent the claim more than once.
	//   - The run ended with an error that is Repeatable.
	ForgetReleased bool
	// Outside states that a service settles by itself, with Lease.Claim. It does so in one
	// transaction with its writes, outside this process, for example with the SQL function
	// stet_settle. The handler's result and Declare have no effect. The run ends with the state
	// of the record:
	//
	//   - If the service has settled, that is the outcome.
	//   - If not, the engine ends the claim, so a later commit of the service fails. Nothing
	//     was executed, and the error is of KindRetryable.
	//
	// An operation whose lease expires becomes Retryable, not Unknown. Outside works with
	// Begin, and needs a store.OutsideStore. Outcomes that the service settles are not
	// encrypted. ForgetReleased has no effect.
	Outside bool
	// KeepScope stores the operation's scope with its reference, for as long as the record
	// stays. Package reconcile can then call Verify without a retry. Without it, a record has
	// only a digest of the scope. The scope is encrypted if results are. In the stored label,
	// the reference then begins with "kept:", followed by the stored values as a URL query.
	// Jobs always keep scope and key until they end.
	KeepScope bool
	// KeepKey stores the key, too. It needs KeepScope, because a key names an operation only
	// within its scope.
	KeepKey bool
	// Values encodes and decodes the values that Do, DoTx, their steps and workers return. A
	// type that it does not support is stored as JSON. Default codec.JSON().
	Values codec.Values
	// Errors encodes the error of a failed operation beside its text. errors.Is and errors.As
	// then find the same errors in a replay as in the first error. Default: only the text is
	// stored, and the first caller of Do receives the original error.
	Errors codec.Errors
}

// Resolution is the resolution of an operation whose lease has expired. It is ItHappened,
// ItDidNotHappen, MayRunAgain or CannotKnow. The zero Resolution is CannotKnow.
type Resolution struct {
	kind    verdictKind
	outcome Outcome
}

type verdictKind uint8

const (
	noVerdict verdictKind = iota
	cannotKnow
	itHappened
	itDidNotHappen
	mayRunAgain
)

// ItHappened states that the operation was executed. The engine stores out as its outcome.
// Messages that the run emitted (see Run.Emit) are unknown to the engine, and are not sent.
func ItHappened(out Outcome) Resolution { return Resolution{kind: itHappened, outcome: out} }

// ItDidNotHappen states that the unfinished part of the expired run had no effect, and will
// have none because its process is dead. The operation runs again. Completed steps stay
// completed.
func ItDidNotHappen() Resolution { return Resolution{kind: itDidNotHappen} }

// MayRunAgain states that the operation may run again, whether or not it had its effect. If a
// StepOnce is unresolved, the record stays Unknown.
func MayRunAgain() Resolution { return Resolution{kind: mayRunAgain} }

// CannotKnow leaves the decision to Policy.Stale. By default, the record stays Unknown.
func CannotKnow() Resolution { return Resolution{kind: cannotKnow} }

// Options configure an Engine. The zero value is usable.
type Options struct {
	// Namespace is part of every key's digest. A new Namespace, such as "v2", makes all keys
	// unused again on the same store. Jobs that were accepted before still run, and derive the
	// same keys. At most MaxScope bytes (1024). Default "".
	Namespace string
	// Previous is for a change of Namespace in a rolling deployment. It returns the name that an
	// operation had before: the previous namespace, and op with its previous Scope, Key and
	// Fingerprint. A service that derives these in another way also changes its namespace. Two
	// operations must not have the same previous name. Default nil: no change.
	//
	// Each operation runs under one of its two names, and the engine reads the records of both.
	// Deploy the change in three steps. Each must reach all processes before the next begins:
	//
	//  1. Set Namespace to the new one, Previous, and ClaimPrevious. Operations still run under
	//     the previous name, so processes that know no other may run at the same time.
	//  2. Unset ClaimPrevious. New operations run under the new name.
	//  3. Unset Previous when the store has no record of the previous namespace: after
	//     Retention.Tombstone, and after all its jobs and unknown operations have ended.
	//
	// In the meantime, an operation must not change between Begin and TxEngine.Run. The store
	// of a TxEngine must be a store.TxLocker. New, Status and Await call Previous with an Op
	// that has at most a Scope. If two scopes had the same previous scope, Status returns its
	// operations to both.
	Previous func(ctx context.Context, op Op) (namespace string, before Op)
	// ClaimPrevious makes operations without a record run under the previous name. Default
	// false: under the new name.
	ClaimPrevious bool
	// Policy is the policy of operations without a class.
	Policy Policy
	// Classes are the policies of operation classes, by Op.Class. A zero field takes the value
	// of Options.Policy.
	Classes map[string]Policy
	// MaxWaiters limits how many calls wait for runs in flight. Further calls fail with
	// KindInFlight at once. Calls that wait for another call with the same key in this process
	// have a separate limit: 16 × MaxWaiters. Default 1024.
	MaxWaiters int
	// StoreTimeout limits a store call, including its retries. A call may take up to 1.5 ×
	// StoreTimeout. At most MaxStoreTimeout. Default 5 s.
	StoreTimeout time.Duration
	// SweepEvery is how often the engine cleans up a store that needs it. Close ends the
	// cleanup. Default 1 min; a negative value turns it off.
	SweepEvery time.Duration
	// CheckMessage validates a message. If it returns an error, Run.Emit fails with that error.
	// Each broker package has such a function, Check. An emitted message that its broker
	// refuses stays in the outbox. Default: only messages that no broker accepts are refused.
	CheckMessage func(Message) error
	// Encryption of stored results, payloads and messages. Default: none.
	Encryption Encryption
	// Label returns the name of an operation's scope for people, such as the name of a tenant. Lists, logs and
	// spans show it. It is stored without encryption, so it must not be a credential, nor a digest of one. At
	// most store.MaxLabel bytes (255) are stored. It must be quick and safe for concurrent use. Default nil: none.
	Label func(op Op) string
	// ErrorLog receives these events: failed store calls, aborted transactions, unknown
	// outcomes, lost leases, timed-out runs and unsent messages. It gets at most one line of
	// each kind in 10 s, without keys or bodies. The error text comes from the store or the
	// service. Default slog.Default(). Use slog.New(slog.DiscardHandler) to turn it off if an
	// Observer logs events.
	ErrorLog *slog.Logger
	// Observer receives every event. Default: no observer.
	Observer observe.Observer
}

func (p Policy) withDefaults(def Policy) Policy {
	p.Lease = cmp.Or(p.Lease, def.Lease)
	p.RunTimeout = cmp.Or(p.RunTimeout, def.RunTimeout)
	p.Wait = cmp.Or(p.Wait, def.Wait)
	if p.Stale.kind == noVerdict {
		p.Stale = def.Stale
	}
	if out := &p.Stale.outcome; out.Failed && out.Reason == store.ReasonNone {
		out.Reason = store.ReasonTimedOut // ReasonNone means that the handler returned the failure
	}
	if p.Verify == nil {
		p.Verify = def.Verify
	}
	p.VerifyTimeout = cmp.Or(p.VerifyTimeout, def.VerifyTimeout)
	p.Retention.Result = cmp.Or(p.Retention.Result, def.Retention.Result)
	if p.Retention.Tombstone == 0 {
		// A class with a longer Retention.Result needs no Tombstone of its own.
		p.Retention.Tombstone = max(def.Retention.Tombstone, p.Retention.Result)
	}
	p.MaxResult = cmp.Or(p.MaxResult, def.MaxResult)
	p.ForgetReleased = p.ForgetReleased || def.ForgetReleased
	p.Outside = p.Outside || def.Outside
	p.KeepScope = p.KeepScope || def.KeepScope
	p.KeepKey = p.KeepKey || def.KeepKey
	if p.Values == nil {
		p.Values = def.Values
	}
	if p.Errors == nil {
		p.Errors = def.Errors
	}
	return p
}

var defaultPolicy = Policy{
	Stale:         CannotKnow(),
	Lease:         30 * time.Second,
	RunTimeout:    5 * time.Minute,
	VerifyTimeout: 10 * time.Second,
	Retention:     store.Retention{Result: 24 * time.Hour, Tombstone: 30 * 24 * time.Hour},
	MaxResult:     1 << 20,
	Values:        codec.JSON(),
}

// check validates a policy whose defaults are set, and joins all errors.
func (p Policy) check() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if p.Lease < store.MinLease || p.Lease > store.MaxLease {
		bad("Lease is %v; it must be %v to %v", p.Lease, store.MinLease, store.MaxLease)
	}
	if p.RunTimeout < 0 || p.RunTimeout > store.MaxRunTimeout {
		bad("RunTimeout is %v; it must be 0 to %v", p.RunTimeout, store.MaxRunTimeout)
	}
	if p.Wait < 0 || p.Wait > store.MaxWait {
		bad("Wait is %v; it must be 0 to %v", p.Wait, store.MaxWait)
	}
	switch s := p.Stale; {
	case s.kind == itDidNotHappen, s.kind == itHappened && !s.outcome.Failed:
		bad("Stale must be CannotKnow, MayRunAgain, or ItHappened with an outcome that is Failed: it applies to expired runs that no verifier can explain")
	case s.kind == itHappened && !s.outcome.Gone:
		if err := s.outcome.fit(p.MaxResult); err != nil {
			bad("Stale has an outcome that cannot be stored: %w", err)
		}
	}
	if p.KeepKey && !p.KeepScope {
		bad("KeepKey needs KeepScope: a key names an operation only within its scope")
	}
	if p.VerifyTimeout < 0 {
		bad("VerifyTimeout is negative: %v", p.VerifyTimeout)
	}
	if p.MaxResult < 0 || p.MaxResult > store.MaxResultLimit {
		bad("MaxResult is %d; it must be 1 to %d bytes", p.MaxResult, store.MaxResultLimit)
	}
	if p.Retention.Result < 0 {
		bad("Retention.Result is negative: %v", p.Retention.Result)
	}
	if p.Retention.Tombstone < p.Retention.Result {
		bad("Retention.Tombstone (%v) is shorter than Retention.Result (%v)", p.Retention.Tombstone, p.Retention.Result)
	}
	if p.Lease > p.Retention.Result {
		bad("Lease (%v) is longer than Retention.Result (%v)", p.Lease, p.Retention.Result)
	}
	return errors.Join(errs...)
}

// fits fails if MaxResult is above the store's limit.
func (p Policy) fits(most int) error {
	if most > 0 && p.MaxResult > most {
		return fmt.Errorf("MaxResult is %d, but the store keeps results of at most %d bytes here: ask for that or less, or use a store without such a limit", p.MaxResult, most)
	}
	return nil
}

// policies are the validated policies of an engine, by class.
type policies map[string]*Policy

// newPolicies validates the policies. most is the store's limit for results, in bytes; 0 for
// none.
func newPolicies(o Options, most int) (policies, error) {
	def := defaultPolicy
	if most > 0 {
		def.MaxResult = min(def.MaxResult, most)
	}
	def = o.Policy.withDefaults(def)
	if err := errors.Join(def.check(), def.fits(most)); err != nil {
		return nil, invalid("Options.Policy: %w", err)
	}
	ps := policies{"": &def}
	for class, p := range o.Classes {
		if class == "" {
			return nil, invalid("Options.Classes has a class without a name; Options.Policy is its place")
		}
		if why := unfit(class); why != "" {
			return nil, invalid("Options.Classes[%.40q]: the name %s", class, why)
		}
		p = p.withDefaults(def)
		if err := errors.Join(p.check(), p.fits(most)); err != nil {
			return nil, invalid("Options.Classes[%q]: %w", class, err)
		}
		ps[class] = &p
	}
	return ps, nil
}
