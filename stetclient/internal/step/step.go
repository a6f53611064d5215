// Package step names the places of a journaled call where the client's death is
// worth trying. In production a place costs one nil check.
package step

import "sync/atomic"

// Step is a place in a call.
type Step string

// The steps, in the order in which a journaled call takes them.
const (
	AddBefore    Step = "add.before"
	AddAfter     Step = "add.after"
	SendBefore   Step = "send.before"
	Answered     Step = "answered" // the header of the response is there
	SettleBefore Step = "settle.before"
	SettleAfter  Step = "settle.after"
)

// Steps lists them all.
var Steps = []Step{AddBefore, AddAfter, SendBefore, Answered, SettleBefore, SettleAfter}

var hook atomic.Pointer[func(Step)]

// At runs the hook, if a test has set one.
func At(s Step) {
	if h := hook.Load(); h != nil {
		(*h)(s)
	}
}

// Set makes h the hook of this process; nil removes it. Only tests call it.
func Set(h func(Step)) {
	if h == nil {
		hook.Store(nil)
		return
	}
	hook.Store(&h)
}
