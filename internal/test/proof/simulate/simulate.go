// Package simulate runs stet's own engine, as several processes over one
// store/memory, under a scheduler that a seed decides everything for: which call
// reaches the store next, which is lost, which reply is, which comes late, who
// crashes, and when time passes. A seed that breaks a promise does so again, and
// shrinks to the few steps that it takes.
//
// Every call that an engine sends to its store, every effect of a handler and
// every question to a verifier waits for the scheduler, which lets one of them go
// at a time and waits until all goroutines have come to rest. The clock is that of
// testing/synctest, and moves by one quantum at a time. The engine's jittered
// pauses all begin at a multiple of the quantum and are shorter than one, so
// that the engine's random numbers decide nothing.
//
// With Config.Work clients have operations accepted, work on them, cancel them and
// send their messages; a memory store has all of it.
//
// With Config.Transactions most clients use RunTx and DoTx, over a server of the
// simulation's own (see database) that keeps its records in the memory store, too.
package simulate

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

const (
	// quantum is how far the clock moves at a time. It is longer than the
	// longest jittered pause of the engine.
	quantum = time.Second

	// Of the following, no two ends coincide, except with the end of a
	// quantum: the seed does not decide the order at one instant.
	lease        = 3 * quantum
	storeTimeout = 2303 * quantum / 1000 // and half as much more: no multiple of the 10 ms that a claim which was lost is looked for by
	wait         = 240 * quantum / 100   // of clients that wait
	leave        = 137 * quantum / 100   // of clients that hang up
	runTimeout   = 940 * quantum / 100   // and with it the renewer's tick, a twentieth

	maxProcesses = 3
	maxKeys      = 2
	maxClients   = 7 // begun by a schedule; those of the end not counted
	minSteps     = 8
	moreSteps    = 24

	// restIn is within how many quanta every record is at rest once faults
	// have ended: the lease, the sweep, and one for the last request of all.
	restIn = int(lease/quantum) + 2
)

// Clock is the store's clock. It is the simulation's, plus Skew, by which only a
// defective store moves it.
type Clock struct{ Skew time.Duration }

// Config says what to simulate. The zero value is stet unchanged.
type Config struct {
	// Store puts a store, as a rule a defective one, before the memory store
	// that the judge looks at. Its context tells processes apart, see
	// ProcessOf.
	Store func(*memory.Store, *Clock) store.Store
	// Transactions has most clients use RunTx and DoTx.
	Transactions bool
	// Work has operations accepted, taken and run with steps, cancelled and
	// resolved, and messages sent; see program.
	Work bool
	// Crew plays the clients. Without one each gets a new goroutine, which
	// takes longer and changes nothing else.
	Crew *Crew
	// Log makes reports have a Log. It costs more than the simulation.
	Log bool

	database func(server) database       // a defective one; nil: server itself
	commit   func(*world, *workTx) error // also; nil: world.commitWork
	narrow   func(*setup)                // keeps to schedules where something is likely
}

// setup is what a schedule is about.
type setup struct {
	class        string // of all operations: one of the classes of policies
	processes    int
	keys         int
	transactions bool // some clients use them
	arrive       bool // late calls still arrive when faults end

	work    bool    // operations are accepted
	program program // what runs of them do
	unsure  bool    // a verifier does not know when it is first asked
}

// most is how many clients a schedule begins at most.
func (s setup) most() int {
	if s.work {
		return maxWorkClients
	}
	return maxClients
}

// classes are the policies that are simulated.
var classes = []string{"unknown", "verify", "take over", "fail"}

func policy(class string, verify func(context.Context, stet.Status) (stet.Resolution, error)) stet.Policy {
	switch class {
	case "verify":
		return stet.Policy{Verify: verify}
	case "take over":
		return stet.Policy{Stale: stet.MayRunAgain()}
	case "fail":
		return stet.Policy{Stale: stet.ItHappened(stet.Outcome{Failed: true})}
	}
	return stet.Policy{}
}

// Report is what a schedule came to.
type Report struct {
	Seed uint64
	// Violation is the first promise that was broken, "" if none was, and
	// Detail says how.
	Violation, Detail string
	// Hash is of all that happened; schedules of one hash went the same way.
	Hash uint64
	// Count is what happened, for seeing that it does.
	Count Count
	// Log tells the schedule, if Config.Log is set.
	Log []string

	setup  setup
	script []step
}

// String describes a violation: the broken promise, and the steps.
func (r Report) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d: %s: %s\npolicy %q, %d processes, %d keys", r.Seed, r.Violation, r.Detail, r.setup.class, r.setup.processes, r.setup.keys)
	if r.setup.arrive {
		b.WriteString("; late calls arrive at the end")
	}
	if r.setup.work {
		fmt.Fprintf(&b, "; program: %v; unsure: %t", r.setup.program, r.setup.unsure)
	}
	for i, s := range r.script {
		fmt.Fprintf(&b, "\n%4d. %v", i+1, s)
	}
	return b.String()
}

// Count counts what happened in schedules.
type Count struct {
	Calls, Lost, Dropped, Late, Crashes, Closes, Effects, Grants, Replays, Unknown, TakenOver, Resolved, LeasesLost, Mismatches, Fenced int

	Commits, RolledBack, LookedUp int // of transactions; LookedUp: unacknowledged commits that were read afterwards

	// Of accepted operations. Recalled: results of steps of earlier attempts; OpenSteps:
	// times that a step was not run again.
	Accepted, Returned, Cancelled, Obeyed, Recalled, OpenSteps, Published, Relayed int
}

// Add adds what happened in another schedule.
func (c *Count) Add(d Count) {
	c.Calls += d.Calls
	c.Lost += d.Lost
	c.Dropped += d.Dropped
	c.Late += d.Late
	c.Crashes += d.Crashes
	c.Closes += d.Closes
	c.Effects += d.Effects
	c.Grants += d.Grants
	c.Replays += d.Replays
	c.Unknown += d.Unknown
	c.TakenOver += d.TakenOver
	c.Resolved += d.Resolved
	c.LeasesLost += d.LeasesLost
	c.Mismatches += d.Mismatches
	c.Fenced += d.Fenced
	c.Commits += d.Commits
	c.RolledBack += d.RolledBack
	c.LookedUp += d.LookedUp
	c.Accepted += d.Accepted
	c.Returned += d.Returned
	c.Cancelled += d.Cancelled
	c.Obeyed += d.Obeyed
	c.Recalled += d.Recalled
	c.OpenSteps += d.OpenSteps
	c.Published += d.Published
	c.Relayed += d.Relayed
}

// Run simulates the schedule of a seed. It must be called in a bubble of
// testing/synctest; one bubble may simulate many.
func Run(seed uint64, c Config) Report {
	rng := rand.New(rand.NewPCG(seed, 0x57e7))
	s := setup{
		class:        classes[rng.IntN(len(classes))],
		processes:    1 + rng.IntN(maxProcesses),
		keys:         1 + rng.IntN(2*maxKeys)/(2*maxKeys-1), // mostly one, where things happen
		arrive:       rng.IntN(2) == 0,
		transactions: c.Transactions,
	}
	steps, more := minSteps, moreSteps
	if c.Work {
		s.work, s.unsure = true, rng.IntN(3) == 0
		s.program = program(rng.IntN(1<<parts)) &^ (1 << ordering)
		steps, more = workSteps, moreWorkSteps
	}
	if c.narrow != nil {
		c.narrow(&s)
	}
	w := newWorld(s, c)
	g := newGenerator(rng)
	for range steps + rng.IntN(more) {
		w.settle()
		if w.violation != "" {
			break
		}
		w.perform(g.next(w))
	}
	return w.end(seed)
}

// replay simulates a script, without those of its steps that are not possible
// when their turn comes.
func replay(seed uint64, s setup, script []step, c Config) Report {
	w := newWorld(s, c)
	for _, st := range script {
		w.settle()
		if w.violation != "" {
			break
		}
		w.perform(st)
	}
	return w.end(seed)
}
