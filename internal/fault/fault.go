// Package fault names the places where a crash, a pause or a lost reply is worth
// trying. In production a place costs one nil check.
package fault

import "sync/atomic"

// Point is a place in the product where a test may interfere.
type Point string

// The places, in the order in which an operation passes them.
const (
	ClaimBefore     Point = "claim.before"
	ClaimAfter      Point = "claim.after"
	HandlerBefore   Point = "handler.before"
	HandlerAfter    Point = "handler.after"
	SettleBefore    Point = "settle.before"
	SettleAfter     Point = "settle.after"
	CommitBefore    Point = "commit.before"
	CommitAfter     Point = "commit.after"
	ReleaseBefore   Point = "release.before"
	ReleaseAfter    Point = "release.after"
	HeartbeatBefore Point = "heartbeat.before"
	HeartbeatAfter  Point = "heartbeat.after"
	TakeoverBefore  Point = "takeover.before"
	TakeoverAfter   Point = "takeover.after"
	SweepBefore     Point = "sweep.before"
	SweepAfter      Point = "sweep.after"
	ResponseBefore  Point = "response.before"
	ResponseAfter   Point = "response.after"

	AcceptBefore Point = "accept.before"
	AcceptAfter  Point = "accept.after"
	StepBefore   Point = "step.before" // a step is about to be stored
	StepAfter    Point = "step.after"
	RelayBefore  Point = "relay.before" // messages are about to be sent
	RelaySent    Point = "relay.sent"   // and were; the store does not know yet
	RelayAfter   Point = "relay.after"

	IntentBefore  Point = "intent.before" // the client is about to write its intent to the journal
	IntentAfter   Point = "intent.after"
	SendBefore    Point = "send.before"
	Answered      Point = "answered"       // the header of the response is there
	OutcomeBefore Point = "outcome.before" // the client is about to write the outcome to the journal
	OutcomeAfter  Point = "outcome.after"
)

// Points lists every place that an operation passes which runs at once.
var Points = []Point{
	ClaimBefore, ClaimAfter, HandlerBefore, HandlerAfter, SettleBefore, SettleAfter, CommitBefore, CommitAfter,
	ReleaseBefore, ReleaseAfter, HeartbeatBefore, HeartbeatAfter, TakeoverBefore, TakeoverAfter,
	SweepBefore, SweepAfter, ResponseBefore, ResponseAfter,
}

// WorkPoints lists the places that only accepted operations, and messages that
// leave, pass.
var WorkPoints = []Point{AcceptBefore, AcceptAfter, StepBefore, StepAfter, RelayBefore, RelaySent, RelayAfter}

// ClientPoints lists the places that a client's call with a journal passes.
var ClientPoints = []Point{IntentBefore, IntentAfter, SendBefore, Answered, OutcomeBefore, OutcomeAfter}

var hook atomic.Pointer[func(Point)]

// At runs the hook, if a test has set one.
func At(p Point) {
	if h := hook.Load(); h != nil {
		(*h)(p)
	}
}

// Set makes h the hook of this process; nil removes it. Only tests call it.
func Set(h func(Point)) {
	if h == nil {
		hook.Store(nil)
		return
	}
	hook.Store(&h)
}
