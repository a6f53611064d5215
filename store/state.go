package store

import "fmt"

// State says where an operation stands.
type State uint8

const (
	// None is the state of a key that the store knows nothing about.
	None State = iota
	// Running: claimed under a lease; an effect may be happening right now.
	Running
	// Completed: settled with a result that every retry gets.
	Completed
	// Failed: settled with a failure that every retry gets.
	Failed
	// Retryable: a run ended knowing that it had no effect. Fingerprint and
	// fence are kept; the next claim runs again.
	Retryable
	// Unknown: the owner died or lost its lease when an effect may have
	// happened. Nothing runs until a verifier or an operator resolves it.
	Unknown
	// Accepted: to be run later, by a worker that takes it. Its payload is
	// kept with it. See WorkStore.
	Accepted
)

var stateNames = [...]string{"none", "running", "completed", "failed", "retryable", "unknown", "accepted"}

// String returns the state's name in lower case, as docs, metrics and the
// command line spell it.
func (s State) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return fmt.Sprintf("state(%d)", uint8(s))
}

// Settled reports whether the state holds an outcome that can no longer change.
func (s State) Settled() bool { return s == Completed || s == Failed }

// Verb is an action on a record.
type Verb uint8

const (
	// VerbClaim takes the right to run.
	VerbClaim Verb = iota
	// VerbComplete settles with a result.
	VerbComplete
	// VerbFail settles with a failure.
	VerbFail
	// VerbRelease gives the claim back, stating that nothing was executed.
	VerbRelease
	// VerbMarkUnknown records that a lease ran out and the effect is not known.
	VerbMarkUnknown
	// VerbCommit is claim and completion in one transaction: the record comes
	// into being settled.
	VerbCommit
	// VerbCommitFailure is claim and failure in one transaction.
	VerbCommitFailure
	// VerbAccept makes an operation wait for a worker.
	VerbAccept
	// VerbTake is a worker's claim of an accepted operation.
	VerbTake
	// VerbReturn is the release of an accepted operation: it waits again.
	VerbReturn
	// VerbCancel fails an accepted operation before it runs.
	VerbCancel
)

var verbNames = [...]string{"claim", "complete", "fail", "release", "mark unknown", "commit", "commit failure", "accept", "take", "return", "cancel"}

// String returns the verb's name.
func (v Verb) String() string {
	if int(v) < len(verbNames) {
		return verbNames[v]
	}
	return fmt.Sprintf("verb(%d)", uint8(v))
}

// transition is one arrow of the state machine.
type transition struct {
	from State
	verb Verb
	to   State
}

// transitions is the whole state machine. docs/state-machine.md is generated
// from it, and every store is checked against it by store/storetest.
var transitions = []transition{
	{None, VerbClaim, Running},
	{None, VerbCommit, Completed},
	{None, VerbCommitFailure, Failed},
	{Running, VerbComplete, Completed},
	{Running, VerbFail, Failed},
	{Running, VerbRelease, Retryable},
	{Running, VerbMarkUnknown, Unknown},
	{Unknown, VerbComplete, Completed},
	{Unknown, VerbFail, Failed},
	{Unknown, VerbRelease, Retryable},
	{Retryable, VerbClaim, Running},
	{Retryable, VerbCommit, Completed},
	{Retryable, VerbCommitFailure, Failed},
	{None, VerbAccept, Accepted},
	{Retryable, VerbAccept, Accepted},
	{Accepted, VerbTake, Running},
	{Accepted, VerbCancel, Failed},
	{Running, VerbReturn, Accepted},
	{Unknown, VerbReturn, Accepted},
}

// nextState is transitions laid out for lookup; None marks "no arrow", which is
// unambiguous because nothing leads back to None.
var nextState = func() (t [len(stateNames)][len(verbNames)]State) {
	for _, a := range transitions {
		t[a.from][a.verb] = a.to
	}
	return t
}()

// Next returns the state that verb leads to from s, and whether the state
// machine has that arrow. It is pure; stores use it or are checked against it.
func (s State) Next(verb Verb) (State, bool) {
	if int(s) >= len(stateNames) || int(verb) >= len(verbNames) {
		return s, false
	}
	to := nextState[s][verb]
	if to == None {
		return s, false
	}
	return to, true
}
