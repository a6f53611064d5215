// Package model explores every order in which three workers can use one record:
// with crashes, lost and late messages, leases that run out, takeovers, and an
// operator, anywhere. It is the protocol of package stet written down a second
// time, small enough to be searched to the last state, over the same table of
// transitions.
//
// Time is left out but for one fact: a lease has run out, or it has not. That may
// become so at any moment, which is more than a clock can do.
package model

import (
	"github.com/stet-go/stet/store"
)

// Policy is what becomes of expired runs.
type Policy uint8

const (
	// MarkUnknown leaves them to the operator.
	MarkUnknown Policy = iota
	// Verify asks the other side, which refuses from then on every run that it has not
	// seen.
	Verify
	// TakeOver runs them again.
	TakeOver
	// Fail settles them as failed.
	Fail
)

// Policies lists all policies.
var Policies = []Policy{MarkUnknown, Verify, TakeOver, Fail}

var policyNames = [...]string{"unknown", "verify", "take over", "fail"}

func (p Policy) String() string { return policyNames[p] }

// Workers is how many workers there are. Each asks once.
const Workers = 3

const (
	owners    = 2 // that a worker mints: one more after it has resolved an expired run
	lateSlots = 2 // messages in progress whose caller is gone
)

// Options say what to explore.
type Options struct {
	Policy Policy
	// Other has the last worker ask for something else under the same key.
	Other bool
	// Late is how many messages may be overtaken by their sender's going on.
	Late uint8
	// Operations is how often the operator steps in.
	Operations uint8
	// Rule breaks one rule, for seeing that this is found. "" breaks none.
	Rule string
}

// Rules are the rules that Options.Rule can break.
var Rules = []string{
	"claim without existence check", "mismatch unchecked", "live leases marked unknown", "expired runs run again", "an owner claims twice",
	"fences stay", "no fence on extend", "no fence on settle", "no fence on release", "a second outcome accepted",
	"the other side refuses nothing", "released when settling fails", "unknown released", "anybody's claim abandoned", "no sweeps",
}

// phase is what a worker is at.
type phase uint8

const (
	idle phase = iota
	claiming
	running    // has the claim, and has done nothing yet
	settling   // of its own run
	releasing  // the same
	asking     // the verifier about an expired run
	resolving  // settles an expired run (out) or releases it
	abandoning // has given up on a claim that may have been granted
	over       // told something, or dead
)

// out is an outcome: how it came about, and under which fence.
type out uint8

const (
	none    out = 0
	success out = 1 << 4
	unclear out = 2 << 4 // the handler does not know whether it had its effect
	gaveUp  out = 3 << 4 // of Fail
)

func (o out) of(fence uint8) out { return o | out(fence) }

// fences are the bits of an outcome that are its fence.
const fences out = 1<<4 - 1

func (o out) is(kind out) bool { return o&^fences == kind }

func (o out) fence() uint8 { return uint8(o & fences) }

// worker is one attempt at the operation. Fields that no longer matter are zero,
// so that states that differ in nothing that matters are one.
type worker struct {
	phase  phase
	minted uint8 // owners so far
	owner  uint8
	fence  uint8 // of its claim, or of the run that it resolves
	out    out   // to settle with
}

// record is the store's record.
type record struct {
	state  store.State
	owner  uint8
	fence  uint8
	other  bool // its fingerprint is that of the last worker
	lapsed bool
	out    out
}

// verb is what a message asks for.
type verb uint8

const (
	nothing verb = iota
	claim
	extend
	settle
	release
	effect
)

// message is in progress to the store, or to the other side.
type message struct {
	verb  verb
	owner uint8
	fence uint8
	other bool
	out   out
}

// operator looks at a marked unknown record, and then writes.
type operator struct {
	fence uint8
	out   out // none: release
	busy  bool
}

// state is everything.
type state struct {
	rec        record
	workers    [Workers]worker
	late       [lateSlots]message
	operator   operator
	lates      uint8 // how many messages were overtaken
	operations uint8

	effects uint16 // fences that had their effect
	refused uint16 // fences that the other side refuses
	marked  uint16 // fences that were marked unknown; of TakeOver only
}

// noOwner is the owner of a record whose owner no longer matters.
const noOwner = 0xff

func bit(fence uint8) uint16 { return 1 << fence }
