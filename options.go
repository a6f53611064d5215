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

// NoWait as Policy.Wait or Op.Wait means: do not wait, whatever the default is.
const NoWait = time.Nanosecond

// Policy says how the operations of one class are run. The zero value of each
// field stands for its default.
type Policy struct {
	// Lease is how long a claim lives without a heartbeat. Heartbeats begin
	// at a third of it. Default 30 s; MinLease to MaxLease.
	Lease time.Duration
	// RunTimeout bounds a run: its context ends then, and so do its
	// heartbeats. Default 5 min; at most MaxRunTimeout.
	RunTimeout time.Duration
	// Wait is how long a duplicate waits for a run in flight before it is
	// refused with KindInFlight. At most MaxWait. Default 0: in a class, the Wait of
	// Options.Policy; there, NoWait.
	Wait time.Duration
	// Stale is the resolution on an expired run that Verify does not know about, or if there is
	// none. A run is dead when its lease has run out; an effect may have happened.
	//
	//   - CannotKnow, the default: the operation stays Unknown until Verify or an operator
	//     resolves it. A class says so where Options.Policy has another resolution.
	//   - MayRunAgain: it runs again. Only for handlers that are idempotent themselves: the
	//     effect may happen a second time. What died in a StepOnce stays Unknown.
	//   - ItHappened, with a failed outcome: it is settled with that, and with
	//     store.ReasonTimedOut unless it has a Reason. HTTP answers 504, or with the
	//     response that stethttp.Outcome has made of it. The effect may have happened
	//     nevertheless, and callers are told so.
	Stale Resolution
	// Verify, if set, finds out what became of an operation whose run died: by looking in
	// the business tables, or by asking the processor. It is asked about an Unknown record
	// before anyone is told KindUnknown, and before Stale decides. If it fails, the record
	// stays Unknown whatever Stale says. It may be asked more than once, and from several
	// processes at a time. Its context does not end with the caller. Beginning the same
	// operation from it is KindInFlight, after a while.
	//
	// The Status has Op, with Name and Ref of the expired run, Record, with its Fence, Attempt
	// and ClaimedAt, and Doubt. Package reconcile asks about accepted operations, and about
	// those of which KeepKey keeps the key: other records keep neither scope nor key, and
	// what is not found by an empty key may have happened. See its Options.ByRef.
	Verify func(context.Context, Status) (Resolution, error)
	// VerifyTimeout bounds a call of Verify. Default 10 s.
	VerifyTimeout time.Duration
	// Retention says how long outcomes and tombstones are kept.
	Retention store.Retention
	// MaxResult is the greatest result that is stored, in bytes; a larger
	// one is stored as Gone. Default 1 MiB, or what the store keeps if that is less
	// (see store.Limiter); at most that, and MaxResultLimit.
	MaxResult int
	// ForgetReleased leaves no record of a released run, if it was the key's
	// first: nothing was executed under the key, so that there is nothing to
	// remember, and callers that are turned away cannot fill the store. What
	// comes next under the key, the same request or another one, is a first
	// attempt again, with a greater fence. Later runs are remembered for
	// Retention.Result: one before them may have been taken over after it had
	// an effect. So is a run that has stored a Step, or whose claim had to be
	// sent twice, or that ended with an error that is Repeatable: it may have had its
	// effect. Default: all are remembered.
	ForgetReleased bool
	// Outside says that a service settles, by Lease.Claim, in one transaction with its
	// writes, outside of this process: by the SQL function stet_settle, for one. Whatever
	// the handler returns or declares, the run ends with what the record says then. If it
	// is settled, that is the outcome. If not, the claim ends, so that a transaction that
	// comes late cannot commit: nothing was executed, which is KindRetryable. A run that
	// dies is not Unknown but Retryable, when its lease has run out. It is for Begin, on a
	// store.OutsideStore; what it settles is not encrypted. ForgetReleased does not count.
	Outside bool
	// KeepScope keeps an operation's scope with its reference, for as long as the record is
	// kept, so that a verifier can be asked by package reconcile, without a retry: otherwise
	// records have a digest of it. It is encrypted where results are. In the stored
	// label, the reference begins with "kept:" then, and has all that is kept as a query
	// of a URL. Accepted operations keep scope and key until they end in any case.
	KeepScope bool
	// KeepKey keeps the key, too. It needs KeepScope: a key names an operation only within
	// its scope, and what a verifier finds under the same key of another one is not it.
	KeepKey bool
	// Values says how the values that Do and DoTx, their steps and workers return are stored,
	// and read again. What it does not support is JSON. Default codec.JSON().
	Values codec.Values
	// Errors says what is kept of an error that an operation fails with, beside its text, so
	// that errors.Is and errors.As find in a replay what they find in the first answer.
	// Default: the text alone, and the first caller of Do gets the error of its function.
	Errors codec.Errors
}

// Resolution says what became of an expired run: ItHappened, ItDidNotHappen, MayRunAgain or
// CannotKnow, which the zero Resolution is as well.
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

// ItHappened: the operation was executed with this outcome, which is settled. What
// its run emitted (see Run.Emit) is not known, and is not sent.
func ItHappened(out Outcome) Resolution { return Resolution{kind: itHappened, outcome: out} }

// ItDidNotHappen: what the expired run had begun, and is not known to have done, had
// no effect and, its owner being dead, will have none. It is run again. Steps that
// are known to have been done stay done.
func ItDidNotHappen() Resolution { return Resolution{kind: itDidNotHappen} }

// MayRunAgain: whether it happened is not known, and does not matter: it is run again. Where the expired run had begun a StepOnce, and is
// not known to have done it, the record stays Unknown.
func MayRunAgain() Resolution { return Resolution{kind: mayRunAgain} }

// CannotKnow: Policy.Stale decides; by default the record stays Unknown.
func CannotKnow() Resolution { return Resolution{kind: cannotKnow} }

// Options configure an Engine. The zero value is usable.
type Options struct {
	// Namespace goes into every key's digest. Change it ("v2") to start
	// afresh on the same store: operations accepted before are still run, with
	// the same derived keys. At most MaxScope bytes. Default "".
	Namespace string
	// Policy is for operations without a class.
	Policy Policy
	// Classes are the policies of operation classes, by Op.Class. Zero
	// fields are taken from Policy.
	Classes map[string]Policy
	// MaxWaiters bounds how many calls wait for runs in flight, in all;
	// more are told KindInFlight at once. So are those above sixteen times as
	// many that wait while another call of their key, in this process, asks the
	// store. Default 1024.
	MaxWaiters int
	// StoreTimeout bounds each store call, its repetitions included; a call
	// may have up to half as much again. Default 5 s.
	StoreTimeout time.Duration
	// SweepEvery is how often a store that needs it is cleaned up, from a
	// goroutine that Close ends. Default 1 min; negative: never.
	SweepEvery time.Duration
	// CheckMessage refuses what cannot be sent: Run.Emit returns its error. The
	// packages of the brokers each have one, Check. What is emitted and cannot be
	// sent stays in the outbox. Default: only what no broker takes is refused.
	CheckMessage func(Message) error
	// Encryption of stored results. Default: none.
	Encryption Encryption
	// ErrorLog gets failed calls of the store, transactions that were rolled back because
	// of what their function did, unknown outcomes, lost leases, runs out of time and
	// messages that were not sent: of each kind at most one line in 10 s, without keys or
	// bodies. The text of an error is the store's or the service's own. Default
	// slog.Default(); slog.New(slog.DiscardHandler) for none, if an Observer logs events.
	ErrorLog *slog.Logger
	// Observer gets every event. Default: no observer.
	Observer observe.Observer
}

// withDefaults fills zero fields from def.
func (p Policy) withDefaults(def Policy) Policy {
	p.Lease = cmp.Or(p.Lease, def.Lease)
	p.RunTimeout = cmp.Or(p.RunTimeout, def.RunTimeout)
	p.Wait = cmp.Or(p.Wait, def.Wait)
	if p.Stale.kind == noVerdict {
		p.Stale = def.Stale
	}
	if out := &p.Stale.outcome; out.Failed && out.Reason == store.ReasonNone {
		out.Reason = store.ReasonTimedOut // without one, its words would be the handler's, which has executed
	}
	if p.Verify == nil {
		p.Verify = def.Verify
	}
	p.VerifyTimeout = cmp.Or(p.VerifyTimeout, def.VerifyTimeout)
	p.Retention.Result = cmp.Or(p.Retention.Result, def.Retention.Result)
	if p.Retention.Tombstone == 0 {
		// A class that keeps results longer than the default tombstone
		// need not say so twice.
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

// check returns all that is wrong with a policy whose defaults are filled in.
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
		bad("Stale must be CannotKnow, MayRunAgain, or ItHappened with an outcome that is Failed: it is said of dead runs that no verifier knows about")
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

// fits refuses a policy that asks for greater results than the store keeps.
func (p Policy) fits(most int) error {
	if most > 0 && p.MaxResult > most {
		return fmt.Errorf("MaxResult is %d, but the store keeps results of at most %d bytes here: ask for that or less, or use a store without such a limit", p.MaxResult, most)
	}
	return nil
}

// policies are the checked policies of an engine, by class.
type policies map[string]*Policy

// newPolicies checks the policies. The store keeps results of most bytes; 0: of any
// length.
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
