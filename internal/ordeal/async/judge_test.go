package async

import (
	"net/http"
	"testing"

	"github.com/stet-go/stet"
)

// accepted, outcome and status are answers as the service gives them.
func accepted(body string, header ...string) reply {
	h := http.Header{"Location": {"/operations/a"}}
	for i := 0; i < len(header); i += 2 {
		h.Set(header[i], header[i+1])
	}
	return reply{status: http.StatusAccepted, header: h, body: []byte(body)}
}

func replayed(body string) reply { return accepted(body, "Idempotent-Replayed", "true") }

func (a reply) after(settled, waited bool) reply {
	a.settled, a.waited = settled, waited
	return a
}

func TestJudgeAccusesAnswersThatAreNotTheTruth(t *testing.T) {
	status := func(doc string) reply { return reply{status: http.StatusOK, body: []byte(doc)} }
	const done = `{"state":"completed","attempts":2,"outcome":{"status":200,"result":{"key":"k"}}}`
	for _, c := range []struct {
		name    string
		cancels bool
		orders  []reply
		looks   []reply
		guilty  bool
	}{
		{"the same acceptance", false, []reply{accepted("a"), replayed("a"), replayed("a").after(true, false)}, nil, false},
		{"another body", false, []reply{accepted("a"), replayed("b")}, nil, true},
		{"another place", false, []reply{accepted("a"), accepted("a", "Location", "/operations/b", "Idempotent-Replayed", "true")}, nil, true},
		{"accepted twice", false, []reply{accepted("a"), accepted("a")}, nil, true},
		{"accepted in place of the outcome", false, []reply{replayed("a").after(true, true)}, nil, true},
		{"the same outcome", false, []reply{{status: http.StatusOK, body: []byte(`{"key":"k"}`)}}, []reply{status(done)}, false},
		{"another outcome", false, []reply{{status: http.StatusOK, body: []byte(`{"key":"x"}`)}}, []reply{status(done)}, true},
		{"unknown, and then the outcome", false, []reply{{status: http.StatusGatewayTimeout}, {status: http.StatusOK, body: []byte("{}")}}, nil, false},
		{"unknown after the outcome", false, []reply{{status: http.StatusGatewayTimeout, settled: true}}, nil, true},
		{"not now", false, []reply{{status: http.StatusServiceUnavailable}, {status: http.StatusConflict}}, []reply{{status: http.StatusServiceUnavailable}}, false},
		{"gone", false, []reply{{status: http.StatusGone}}, nil, true},
		{"lost", false, []reply{accepted("a")}, []reply{{status: http.StatusNotFound, body: []byte("{}")}}, true},
		{"running after the outcome", false, nil, []reply{{status: http.StatusOK, settled: true, body: []byte(`{"state":"running"}`)}}, true},
		{"attempts that go back", false, nil, []reply{{status: http.StatusOK, tried: 3, body: []byte(done)}}, true},
		{"failed", false, nil, []reply{status(`{"state":"failed","outcome":{"status":500,"problem":{}}}`)}, true},
		{"cancelled", true, []reply{{status: http.StatusConflict, body: []byte(`{"type":"x#operation-cancelled"}`)}},
			[]reply{status(`{"state":"failed","outcome":{"status":409,"problem":{"type":"x#operation-cancelled"}}}`)}, false},
		{"cancelled by nobody", false, nil, []reply{status(`{"state":"failed","outcome":{"status":409,"problem":{"type":"x#operation-cancelled"}}}`)}, true},
	} {
		op := &operation{key: "k", kind: inTx, cancels: c.cancels}
		for _, a := range c.orders {
			op.judgeOrder(a)
		}
		for _, a := range c.looks {
			op.judgeStatus(a)
		}
		if guilty := len(op.wrong) > 0; guilty != c.guilty {
			t.Errorf("%s: %q", c.name, op.wrong)
		}
	}
}

func TestJudgeComparesRecordsWithWhatHasHappened(t *testing.T) {
	completed := func(ids ...string) stet.Status {
		out, err := stet.OutcomeOf(receipt{Key: "k", IDs: ids}, nil)
		if err != nil {
			t.Fatal(err)
		}
		return stet.Status{Record: stet.Record{State: stet.Completed, Attempt: 1}, Outcome: out}
	}
	in := func(s stet.State, doubt string) stet.Status {
		return stet.Status{Record: stet.Record{State: s}, Name: once, Doubt: doubt}
	}
	cancelled, _ := stet.OutcomeOf(nil, stet.ErrCancelled) // the error is what a replay of it is
	had := func(what ...string) (es []entry) {
		for _, w := range what {
			es = append(es, entry{Kind: effect, Key: "k", What: w, ID: w})
		}
		return es
	}
	for _, c := range []struct {
		name    string
		op      *operation
		st      stet.Status
		effects []entry
		orders  map[string]int
		guilty  bool
	}{
		{"one effect", &operation{kind: inTx}, completed(ship), had(ship), nil, false},
		{"two effects", &operation{kind: inTx}, completed(ship), had(ship, ship), nil, true},
		{"no effect", &operation{kind: inTx}, completed(ship), nil, nil, true},
		{"an outcome of another effect", &operation{kind: inTx}, completed("x"), had(ship), nil, true},
		{"told another outcome", &operation{kind: inTx, outcome: []byte("{}")}, completed(ship), had(ship), nil, true},
		{"still running", &operation{kind: inTx}, in(stet.Running, ""), nil, nil, true},
		{"still accepted", &operation{kind: inTx}, in(stet.Accepted, ""), nil, nil, true},
		{"a step in doubt", &operation{kind: once}, in(stet.Unknown, charge), had(reserve, charge), nil, false},
		{"a step in doubt that ran twice", &operation{kind: once}, in(stet.Unknown, charge), had(reserve, charge, charge), nil, true},
		{"a step after one in doubt", &operation{kind: once}, in(stet.Unknown, charge), had(reserve, charge, ship), nil, true},
		{"unknown without doubt", &operation{kind: once}, in(stet.Unknown, ""), had(reserve), nil, true},
		{"doubt that could be cleared up", &operation{kind: safe}, in(stet.Unknown, charge), had(reserve), nil, true},
		{"cancelled", &operation{kind: inTx, cancels: true}, stet.Status{Record: stet.Record{State: stet.Failed}, Outcome: cancelled}, nil, nil, false},
		{"cancelled, with an effect", &operation{kind: inTx, cancels: true}, stet.Status{Record: stet.Record{State: stet.Failed}, Outcome: cancelled}, had(ship), nil, true},
		{"failed", &operation{kind: inTx}, stet.Status{Record: stet.Record{State: stet.Failed}, Outcome: cancelled}, nil, nil, true},
		{"one order", &operation{kind: inTx}, completed(ship), had(ship), map[string]int{"k": 1}, false},
		{"accepted without its order", &operation{kind: inTx}, completed(ship), had(ship), map[string]int{}, true},
		{"accepted with two orders", &operation{kind: inTx}, completed(ship), had(ship), map[string]int{"k": 2}, true},
	} {
		s := &storm{}
		op := c.op
		op.key = "k"
		if op.outcome == nil {
			op.outcome = c.st.Outcome.Result
		}
		s.compare(op, c.st, evidence{effects: map[string][]entry{"k": c.effects}, orders: c.orders})
		if guilty := len(s.rep.Violations) > 0; guilty != c.guilty {
			t.Errorf("%s: %q", c.name, s.rep.Violations)
		}
	}
}

func TestRunThatAVerifierHasVoidedChargesNothing(t *testing.T) {
	l, err := openLedger(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.close() }()
	e := entry{Kind: effect, Key: "k", What: charge, ID: "late", Fence: 1}
	if _, ok, err := l.verify("k", 1); ok || err != nil {
		t.Fatal(ok, err)
	}
	if err := l.charges(e); err == nil {
		t.Error("it did")
	}
	e.Fence, e.ID = 2, "next"
	if err := l.charges(e); err != nil {
		t.Fatal(err)
	}
	if found, ok, err := l.verify("k", 2); !ok || err != nil || found != e {
		t.Error(found, ok, err)
	}
	if err := l.charges(e); err != nil { // nothing but a verifier's word keeps anybody from it
		t.Error(err)
	}
}
