package model

import (
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stet-go/stet/store"
)

var (
	late       = flag.Uint("late", 0, "how many messages may be overtaken by what their sender does next: 0 to 2")
	operations = flag.Uint("operations", 1, "how often the operator steps in: 0 to 2")
	rule       = flag.String("rule", "", "a rule to break: "+strings.Join(Rules, ", "))
)

func TestNoOrderOfStepsBreaksAPromise(t *testing.T) {
	for _, p := range Policies {
		for _, other := range []bool{false, true} {
			r := Explore(Options{Policy: p, Other: other, Late: uint8(*late), Operations: uint8(*operations), Rule: *rule})
			if r.Violation != "" {
				t.Errorf("policy %v, other %v: %s:\n%s", p, other, r.Violation, strings.Join(r.Trace, "\n"))
			}
			if r.States < 5000 || r.Resting < 10 {
				t.Errorf("policy %v, other %v: %d states, %d of them at rest, are too few to be all", p, other, r.States, r.Resting)
			}
			fmt.Printf("policy %v, other %v: %d states, %d transitions, %d at rest\n", p, other, r.States, r.Transitions, r.Resting)
		}
	}
}

func TestBrokenRulesAreFound(t *testing.T) {
	for _, rule := range Rules {
		var found []string
		for _, p := range Policies {
			r := Explore(Options{Policy: p, Other: rule == "mismatch unchecked", Late: 1, Operations: 1, Rule: rule})
			if r.Violation != "" {
				found = append(found, p.String()+": "+r.Violation)
				t.Logf("%s, policy %v: %s after %d states:\n\t%s", rule, p, r.Violation, r.States, strings.Join(r.Trace, "\n\t"))
				break
			}
		}
		if len(found) == 0 {
			t.Errorf("%q is not found under any policy", rule)
		}
	}
}

// Leaving out what makes no difference must make none.
func TestPlainStatesAreFixed(t *testing.T) {
	m := &explorer{Options: Options{Policy: TakeOver, Late: 1}, index: make(map[state]uint32), accuse: func(string) {}}
	m.add(m.plain(state{}), 0)
	for at := 0; at < len(m.states) && at < 3000; at++ {
		m.steps(m.states[at], func(next state, _ bool, _ string) {
			p := m.plain(next)
			if again := m.plain(p); again != p {
				t.Fatalf("%+v is made plain as %+v, and that as %+v", next, p, again)
			}
			if p.rec.state != next.rec.state || p.rec.lapsed != next.rec.lapsed {
				t.Fatalf("%+v is not %+v", p, next)
			}
			m.add(p, 0)
		})
	}
}

// The model must use all that there is of the table, or it is about another one.
func TestModelTakesEveryArrowOfTheLeaseMode(t *testing.T) {
	taken := make(map[[2]store.State]bool)
	m := &explorer{Options: Options{Policy: Fail, Operations: 1}, index: make(map[state]uint32), accuse: func(string) {}}
	m.add(m.plain(state{}), 0)
	for at := 0; at < len(m.states); at++ {
		from := m.states[at]
		m.steps(from, func(next state, _ bool, _ string) {
			taken[[2]store.State{from.rec.state, next.rec.state}] = true
			m.add(m.plain(next), 0)
		})
	}
	states := []store.State{store.None, store.Running, store.Completed, store.Failed, store.Retryable, store.Unknown}
	verbs := []store.Verb{store.VerbClaim, store.VerbComplete, store.VerbFail, store.VerbRelease, store.VerbMarkUnknown}
	for _, from := range states {
		for _, to := range states {
			arrow := slices.ContainsFunc(verbs, func(v store.Verb) bool {
				next, ok := from.Next(v)
				return ok && next == to
			})
			if arrow != taken[[2]store.State{from, to}] && from != to {
				t.Errorf("from %v to %v: the table says %v, the model %v", from, to, arrow, !arrow)
			}
		}
	}
}
