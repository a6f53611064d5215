package simulate

import (
	"fmt"
	"math/rand/v2"
)

// act is what the scheduler does in a step.
type act uint8

const (
	begin   act = iota // a client asks for an operation
	deliver            // a call is carried out and answered
	lose               // a call is carried out, and its answer is lost
	drop               // a call is lost before it was carried out
	delay              // a call fails, and is carried out later, or never
	arrive             // a delayed call is carried out
	advance            // a quantum of time passes
	crash              // a process dies; the next client finds a new one
	shut               // a process closes its engine; the same
)

var actNames = [...]string{"begin", "deliver", "lose the answer to", "drop", "delay", "late arrives", "a quantum passes", "crash", "close"}

// kind is what a call is about. They are carried out in this order when all are.
type kind uint8

const (
	claim kind = iota
	extend
	settle
	release
	read
	effect
	verify
	wake
	sweep
	enter
	write
	commit
	look
	abort

	// Of accepted operations.
	accept
	take
	giveBack
	cancel
	save
	amend
	relayed
	publish
	workCommit
	peek
	due
	statement
)

var kindNames = [...]string{"Claim", "Extend", "Settle", "Release", "Read", "effect", "Verify", "waking", "Sweep",
	"entering", "write", "COMMIT", "looking", "hanging up",
	"Accept", "Take", "Return", "Cancel", "Save", "Amend", "Relayed", "publishing", "COMMIT", "Look", "Due", "statement"}

// step is one choice of the scheduler. It names its object in a way that
// still means something when steps before it are left out.
type step struct {
	act    act
	proc   int8
	kind   kind
	nth    int8   // among the process's calls of the kind
	client client // to begin
}

func (s step) String() string {
	switch s.act {
	case begin:
		return fmt.Sprintf("process %d: %v", s.proc, s.client)
	case advance:
		return actNames[advance]
	case crash, shut:
		return fmt.Sprintf("process %d: %s", s.proc, actNames[s.act])
	}
	return fmt.Sprintf("process %d: %s %s (%d)", s.proc, actNames[s.act], kindNames[s.kind], s.nth)
}

// generator draws the steps of a schedule.
type generator struct {
	rng     *rand.Rand
	faulty  int // of a hundred calls, how many meet with a fault
	passing int // of a hundred steps, how many let time pass
	deadly  int // of a hundred steps, how many end a process
	stalled int8
	stall   int // steps for which the calls of process stalled stay where they are
}

func newGenerator(rng *rand.Rand) *generator {
	return &generator{rng: rng, faulty: 10 * rng.IntN(6), passing: 8 + rng.IntN(20), deadly: rng.IntN(8), stalled: -1}
}

// next draws a step that is possible in w.
func (g *generator) next(w *world) step {
	switch x := g.rng.IntN(100); {
	case x < g.passing:
		return step{act: advance}
	case x < g.passing+15:
		if w.begun < w.setup.most() {
			return g.begin(w)
		}
	case x < g.passing+15+g.deadly:
		s := step{act: crash, proc: g.process(w)}
		if g.rng.IntN(4) == 0 {
			s.act = shut
		}
		return s
	case x < g.passing+18+g.deadly:
		// As if it were stopped; a bias of the generator, not a step.
		g.stalled, g.stall = g.process(w), 4+g.rng.IntN(8)
	}
	if g.stall--; g.stall <= 0 {
		g.stalled = -1
	}
	if s, ok := g.call(w); ok {
		return s
	}
	if w.begun < w.setup.most() && g.rng.IntN(2) == 0 {
		return g.begin(w)
	}
	return step{act: advance}
}

func (g *generator) process(w *world) int8 { return int8(g.rng.IntN(w.setup.processes)) }

func (g *generator) begin(w *world) step {
	if w.setup.work {
		return g.beginWork(w)
	}
	c := client{key: int8(g.rng.IntN(w.setup.keys)), api: g.rng.IntN(2) == 0, patient: g.rng.IntN(3) == 0, obedient: g.rng.IntN(3) == 0, leaves: g.rng.IntN(6) == 0}
	if g.rng.IntN(6) == 0 {
		c.print = 1
	}
	if w.setup.transactions {
		c.tx = g.rng.IntN(4) > 0
	}
	switch g.rng.IntN(8) {
	case 0:
		c.handler = declines
	case 1:
		c.handler = fails
	}
	return step{act: begin, proc: g.process(w), client: c}
}

// call draws what happens to one of the calls that wait, or that are late.
func (g *generator) call(w *world) (s step, ok bool) {
	waiting, late := sorted(w.pending), sorted(w.late)
	n := len(waiting) + len(late)
	if n == 0 {
		return s, false
	}
	i := g.rng.IntN(n)
	if i >= len(waiting) {
		c := late[i-len(waiting)]
		return step{act: arrive, proc: c.p.n, kind: c.kind, nth: nth(late, i-len(waiting))}, true
	}
	c := waiting[i]
	if c.p.n == g.stalled || c.kind == sweep && g.rng.IntN(2) == 0 {
		return s, false
	}
	s = step{act: deliver, proc: c.p.n, kind: c.kind, nth: nth(waiting, i)}
	if g.rng.IntN(100) < g.faulty {
		s.act = lose + act(g.rng.IntN(3))
	}
	return s, true
}

// nth is how many calls before the i-th are of the same process and kind.
func nth(calls []*call, i int) (n int8) {
	for _, c := range calls[:i] {
		if c.p.n == calls[i].p.n && c.kind == calls[i].kind {
			n++
		}
	}
	return n
}

// find is the reverse of nth; -1 if there is none.
func find(calls []*call, s step) int {
	n := s.nth
	for i, c := range calls {
		if c.p.n != s.proc || c.kind != s.kind {
			continue
		}
		if n == 0 {
			return i
		}
		n--
	}
	return -1
}
