package async

import (
	"encoding/json"
	"net/http"
	"testing"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/proof/crashtest"
	"github.com/stet-go/stet/store"
)

// story makes up a history of one operation, whose key is "k".
type story struct {
	op    *operation
	trial crashtest.Trial
	time  int64
}

func (s *story) add(ev crashtest.Event) {
	s.time++
	ev.At = s.time
	s.trial.Events = append(s.trial.Events, ev)
}

// told adds a request and its answer.
func (s *story) told(method string, waits bool, a reply) {
	in := s.op.asks(waits)
	in.Kind, in.Call = crashtest.Invoke, s.time+1
	s.add(in)
	out := s.op.read(method, a)
	out.Call = in.Call
	s.add(out)
}

// accepted is an answer as the service gives it.
func accepted(body string, header ...string) reply {
	h := http.Header{"Location": {"/operations/a"}}
	for i := 0; i < len(header); i += 2 {
		h.Set(header[i], header[i+1])
	}
	return reply{http.StatusAccepted, h, []byte(body)}
}

func replayed(body string) reply { return accepted(body, "Idempotent-Replayed", "true") }

func answer(status int, body string) reply { return reply{status: status, body: []byte(body)} }

func TestJudgeAccusesAnswersThatAreNotTheTruth(t *testing.T) {
	const (
		done      = `{"state":"completed","attempts":2,"outcome":{"status":200,"result":{"key":"k","ids":["x"]}}}`
		result    = `{"key":"k","ids":["x"]}`
		cancelled = `{"type":"x#operation-cancelled"}`
		failed    = `{"state":"failed","outcome":{"status":409,"problem":` + cancelled + `}}`
	)
	type say = func(*story)
	order := func(a reply) say { return func(s *story) { s.told(http.MethodPost, false, a) } }
	wait := func(a reply) say { return func(s *story) { s.told(http.MethodPost, true, a) } }
	look := func(a reply) say { return func(s *story) { s.told(http.MethodGet, true, a) } }
	for _, c := range []struct {
		name    string
		cancels bool
		said    []say
		guilty  bool
	}{
		{"the same acceptance", false, []say{order(accepted("a")), order(replayed("a")), look(answer(200, done)), order(replayed("a"))}, false},
		{"another body", false, []say{order(accepted("a")), order(replayed("b"))}, true},
		{"another place", false, []say{order(accepted("a")), order(accepted("a", "Location", "/operations/b", "Idempotent-Replayed", "true"))}, true},
		{"accepted twice", false, []say{order(accepted("a")), order(accepted("a"))}, true},
		{"accepted in place of the outcome", false, []say{look(answer(200, done)), wait(replayed("a"))}, true},
		{"the same outcome", false, []say{order(answer(200, result)), look(answer(200, done))}, false},
		{"another outcome", false, []say{order(answer(200, `{"key":"k","ids":["y"]}`)), look(answer(200, done))}, true},
		{"unknown, and then the outcome", false, []say{order(answer(504, "")), order(answer(200, result))}, false},
		{"unknown after the outcome", false, []say{order(answer(200, result)), order(answer(504, ""))}, true},
		{"not now", false, []say{order(answer(503, "")), order(answer(409, "")), look(answer(503, "")), order(accepted("a"))}, false},
		{"not known now, after the outcome", false, []say{order(answer(200, result)), order(answer(504, `{"type":"x#acceptance-unknown"}`)),
			look(answer(504, `{"type":"x#status-unavailable"}`))}, false},
		{"gone", false, []say{order(answer(410, ""))}, true},
		{"lost", false, []say{order(accepted("a")), look(answer(404, "{}"))}, true},
		{"running after the outcome", false, []say{look(answer(200, done)), look(answer(200, `{"state":"running"}`))}, true},
		{"attempts that go back", false, []say{look(answer(200, `{"state":"running","attempts":3}`)), look(answer(200, done))}, true},
		{"failed", false, []say{look(answer(200, `{"state":"failed","outcome":{"status":500,"problem":{}}}`))}, true},
		{"cancelled", true, []say{order(answer(409, cancelled)), look(answer(200, failed))}, false},
		{"cancelled by no client", false, []say{look(answer(200, failed))}, true},
	} {
		s := &story{op: &operation{key: "k", kind: inTx, cancels: c.cancels}}
		for _, say := range c.said {
			say(s)
		}
		v := crashtest.Judge(s.trial, flavours[0].law())
		if guilty := len(v.Violations) > 0; guilty != c.guilty {
			t.Errorf("%s: guilty %v; want %v: %q", c.name, guilty, c.guilty, v.Violations)
		}
	}
}

// client adds a client's reply: the outcome, accepted ("-") or
// unknown ("?"), or something else.
func (s *story) client(told string, st stet.Status) {
	a := answer(200, told)
	switch {
	case told == "-":
		a = accepted("a")
	case told == "?":
		a = answer(504, "")
	case told == "" && s.op.cancels:
		a = answer(409, `{"type":"x#operation-cancelled"}`)
	case told == "":
		a.body = st.Outcome.Body
	}
	s.told(http.MethodPost, false, a)
}

func TestJudgeComparesRecordsWithEffects(t *testing.T) {
	outcome := func(v any) stet.Outcome {
		body, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return stet.Outcome{Body: body}
	}
	in := func(s store.State, open string, out stet.Outcome) stet.Status {
		return stet.Status{Record: store.Record{State: s, Attempt: 1}, OpenStep: open, Outcome: out}
	}
	completed := func(ids ...string) stet.Status {
		return in(store.Completed, "", outcome(receipt{Key: "k", IDs: ids}))
	}
	cancelled := in(store.Failed, "", stet.Outcome{Failed: true, Reason: store.ReasonCancelled})
	plain, ordering := flavours[0].law(), flavours[1].law()
	for _, c := range []struct {
		name    string
		law     crashtest.Law
		op      *operation
		st      stet.Status
		told    string // in place of its outcome
		effects []string
		guilty  bool
	}{
		{"one effect", plain, &operation{kind: inTx}, completed(ship), "", []string{ship}, false},
		{"two effects", plain, &operation{kind: inTx}, completed(ship), "", []string{ship, ship}, true},
		{"no effect", plain, &operation{kind: inTx}, completed(ship), "", nil, true},
		{"a part of another kind", plain, &operation{kind: inTx}, completed(ship), "", []string{ship, charge}, true},
		{"an outcome of another effect", plain, &operation{kind: inTx}, completed("x"), "", []string{ship}, true},
		{"returned another outcome", plain, &operation{kind: inTx}, completed(ship), `{"ids":["ship"]}`, []string{ship}, true},
		{"no client got it", plain, &operation{kind: inTx}, completed(ship), "-", []string{ship}, true},
		{"still running", plain, &operation{kind: inTx}, in(store.Running, "", stet.Outcome{}), "-", nil, true},
		{"still accepted", plain, &operation{kind: inTx}, in(store.Accepted, "", stet.Outcome{}), "-", nil, true},
		{"lost", plain, &operation{kind: inTx}, stet.Status{}, "-", nil, true},
		{"an open step", plain, &operation{kind: once}, in(store.Unknown, charge, stet.Outcome{}), "?", []string{reserve, charge}, false},
		{"an open step that ran twice", plain, &operation{kind: once}, in(store.Unknown, charge, stet.Outcome{}), "?", []string{reserve, charge, charge}, true},
		{"a step after an open one", plain, &operation{kind: once}, in(store.Unknown, charge, stet.Outcome{}), "?", []string{reserve, charge, ship}, true},
		{"an outcome with an open step was returned", plain, &operation{kind: once}, in(store.Unknown, charge, stet.Outcome{}), `{"ids":["reserve"]}`, []string{reserve}, true},
		{"unknown without an open step", plain, &operation{kind: once}, in(store.Unknown, "", stet.Outcome{}), "?", []string{reserve}, true},
		{"an open step that could be resolved", plain, &operation{kind: safe}, in(store.Unknown, charge, stet.Outcome{}), "?", []string{reserve}, true},
		{"cancelled", plain, &operation{kind: inTx, cancels: true}, cancelled, "", nil, false},
		{"cancelled, with an effect", plain, &operation{kind: inTx, cancels: true}, cancelled, "", []string{ship}, true},
		{"cancelled between its steps", plain, &operation{kind: safe, cancels: true}, cancelled, "", []string{reserve}, false},
		{"cancelled, and one open step", plain, &operation{kind: once, cancels: true}, in(store.Failed, charge, cancelled.Outcome), "", []string{reserve}, true},
		{"reported as cancelled, and completed", plain, &operation{kind: inTx, cancels: true}, completed(ship), "", []string{ship}, true},
		{"failed", plain, &operation{kind: inTx}, cancelled, "", nil, true},
		{"one order", ordering, &operation{kind: inTx}, completed(ship), "", []string{ship, ordered}, false},
		{"accepted without its order", ordering, &operation{kind: inTx}, completed(ship), "", []string{ship}, true},
		{"accepted with two orders", ordering, &operation{kind: inTx}, completed(ship), "", []string{ship, ordered, ordered}, true},
	} {
		c.op.key = "k"
		s := &story{op: c.op}
		s.client(c.told, c.st)
		for _, part := range c.effects {
			s.trial.Effects = append(s.trial.Effects, crashtest.Effect{Charge: crashtest.Charge{ID: part, Scope: scope, Key: "k"}, Part: part})
		}
		s.add(end(store.Digest("", scope, "k"), c.st))
		v := crashtest.Judge(s.trial, c.law)
		if guilty := len(v.Violations) > 0; guilty != c.guilty {
			t.Errorf("%s: guilty %v; want %v: %q", c.name, guilty, c.guilty, v.Violations)
		}
	}
}
