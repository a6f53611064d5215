package store

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the generated parts of docs/")

const (
	pageBegin = "<!-- generated from store/state.go; go test -run TestStateMachinePage -update ./store -->\n"
	pageEnd   = "<!-- end -->\n"
)

// machine returns the diagram and the table of the state machine.
func machine() string {
	var b strings.Builder
	b.WriteString("\n```mermaid\nstateDiagram-v2\n")
	for _, a := range transitions {
		from := a.from.String()
		if a.from == None {
			from = "[*]"
		}
		fmt.Fprintf(&b, "    %s --> %s: %s\n", from, a.to, a.verb)
	}
	b.WriteString("```\n\n| from |")
	for v := range len(verbNames) {
		fmt.Fprintf(&b, " %s |", Verb(v))
	}
	b.WriteString("\n|---|" + strings.Repeat("---|", len(verbNames)) + "\n")
	for s := range len(stateNames) {
		fmt.Fprintf(&b, "| `%s` |", State(s))
		for v := range len(verbNames) {
			if to, ok := State(s).Next(Verb(v)); ok {
				fmt.Fprintf(&b, " `%s` |", to)
			} else {
				b.WriteString(" – |")
			}
		}
		b.WriteString("\n")
	}
	return b.String() + "\n"
}

func TestStateMachinePageIsGenerated(t *testing.T) {
	page := filepath.Join("..", "docs", "state-machine.md")
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(text), pageBegin)
	_, after, ok2 := strings.Cut(rest, pageEnd)
	if !ok || !ok2 {
		t.Fatalf("%s has lost its markers %q and %q", page, pageBegin, pageEnd)
	}
	want := before + pageBegin + machine() + pageEnd + after
	if want == string(text) {
		return
	}
	if !*update {
		t.Fatalf("%s is not what state.go says; run: go test -run TestStateMachinePage -update .", page)
	}
	if err := os.WriteFile(page, []byte(want), 0o644); err != nil {
		t.Fatal(err)
	}
}

// The arrows, written down a second time, so that one is not added or lost in
// passing.
func TestNextHasTheseArrowsAndNoOthers(t *testing.T) {
	arrows := map[State]map[Verb]State{
		None:      {VerbClaim: Running, VerbCommit: Completed, VerbCommitFailure: Failed, VerbAccept: Accepted},
		Running:   {VerbComplete: Completed, VerbFail: Failed, VerbRelease: Retryable, VerbMarkUnknown: Unknown, VerbReturn: Accepted},
		Unknown:   {VerbComplete: Completed, VerbFail: Failed, VerbRelease: Retryable, VerbReturn: Accepted},
		Retryable: {VerbClaim: Running, VerbCommit: Completed, VerbCommitFailure: Failed, VerbAccept: Accepted},
		Accepted:  {VerbTake: Running, VerbCancel: Failed},
	}
	n := 0
	for s := range 256 { // all there are, named or not
		for v := range 256 {
			from, verb := State(s), Verb(v)
			want, ok := arrows[from][verb]
			if !ok {
				want = from
			}
			for range 2 { // the same answer every time
				if got, gotOK := from.Next(verb); got != want || gotOK != ok {
					t.Errorf("%v.Next(%v) = %v, %v; want %v, %v", from, verb, got, gotOK, want, ok)
				}
			}
			if ok {
				n++
			}
		}
	}
	if n != len(transitions) {
		t.Errorf("the table has %d transitions; %d arrows are expected", len(transitions), n)
	}
}

func TestNoTwoTransitionsContradict(t *testing.T) {
	seen := make(map[transition]bool)
	for _, a := range transitions {
		if a.to == None {
			t.Errorf("%v leads from %v back to none", a.verb, a.from)
		}
		key := transition{from: a.from, verb: a.verb}
		if seen[key] {
			t.Errorf("%v from %v is there twice", a.verb, a.from)
		}
		seen[key] = true
	}
}

func TestSettledStatesAreFinal(t *testing.T) {
	for s := range len(stateNames) {
		final := true
		for v := range len(verbNames) {
			if _, ok := State(s).Next(Verb(v)); ok {
				final = false
			}
		}
		if final != State(s).Settled() {
			t.Errorf("%v: nothing leads out of it is %v, Settled is %v", State(s), final, State(s).Settled())
		}
	}
}

// A commit must not lead anywhere that a claim and a settle could not.
func TestCommitIsClaimAndSettle(t *testing.T) {
	for commit, settle := range map[Verb]Verb{VerbCommit: VerbComplete, VerbCommitFailure: VerbFail} {
		for s := range len(stateNames) {
			to, ok := State(s).Next(VerbClaim)
			if ok {
				to, ok = to.Next(settle)
			}
			if got, gotOK := State(s).Next(commit); gotOK != ok || ok && got != to {
				t.Errorf("%v.Next(%v) = %v, %v; claim and %v lead to %v, %v", State(s), commit, got, gotOK, settle, to, ok)
			}
		}
	}
}

func TestUnnamedStatesAndVerbsHaveAName(t *testing.T) {
	if got := State(200).String(); got != "state(200)" {
		t.Errorf("State(200) prints %q", got)
	}
	if got := Verb(200).String(); got != "verb(200)" {
		t.Errorf("Verb(200) prints %q", got)
	}
}
