package messages

import (
	"strings"
	"testing"

	"github.com/stet-go/stet"
)

// sound is what is left of an order that went well.
func sound() *evidence {
	return &evidence{
		effects: []effect{{id: "order-1", fence: 7, nonce: "a", emits: true}},
		status:  stet.Status{Record: stet.Record{State: stet.Completed}, Outcome: outcome(byRun, "a")},
		letters: []letter{{ID: "m", Order: "order-1", Nonce: "a"}, {ID: "m", Order: "order-1", Nonce: "a"}},
	}
}

func TestJudgeSeesWhatIsWrong(t *testing.T) {
	for want, spoil := range map[string]func(*evidence){
		"": func(*evidence) {},
		"messages had their effect more than once": func(e *evidence) { e.effects = append(e.effects, e.effects[0]) },
		"messages were lost":                       func(e *evidence) { *e = evidence{} },
		"records are not completed":                func(e *evidence) { e.status.Record.State = stet.Failed },
		"outcomes are unknown":                     func(e *evidence) { e.status.Record.State = stet.Unknown },
		"outcomes are of no effect that there is":  func(e *evidence) { e.status.Outcome = outcome(byRun, "b") },
		"emitted messages were lost":               func(e *evidence) { e.letters = nil },
		"messages came with more than one ID":      func(e *evidence) { e.letters[1].ID = "n" },
		"messages are of a run that was not committed": func(e *evidence) {
			e.letters[0].Nonce = "b"
		},
		"operations emitted a message without settling with it": func(e *evidence) { e.status.Outcome = outcome(byVerifier, "a") },
		"messages with the ID of another's":                     func(e *evidence) { e.letters[1].ID, e.letters[0].ID = "other", "other" },
	} {
		e := sound()
		spoil(e)
		other := sound()
		for i := range other.letters {
			other.letters[i].ID = "other"
		}
		s := &storm{rep: Report{Messages: 2}}
		s.weigh(map[string]*evidence{"order-1": e, "order-2": other})
		got := strings.Join(s.rep.Violations, "; ")
		if want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("the judge says %q; want %q", got, want)
		}
	}
}
