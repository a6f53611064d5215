package crashtest

import (
	"strings"
	"testing"

	"github.com/stet-go/stet/internal/fault"
	"github.com/stet-go/stet/store"
)

// story makes up a history, a millisecond between events. Its payment is "k" of
// the scope "a".
type story struct {
	events  []Event
	ledger  []Effect
	time    int64
	calls   int64
	process int
}

// judge judges it as payments are.
func (s *story) judge(mayBeUnknown bool) Resolution {
	return Judge(Trial{Events: s.events, Effects: s.ledger}, PaymentLaw(mayBeUnknown))
}

const tick = 1e6 // nanoseconds

func (s *story) add(ev Event) {
	s.time += tick
	ev.At, ev.Process = s.time, s.process
	s.events = append(s.events, ev)
}

// call adds a call and its end.
func (s *story) call(in, out Event) {
	s.pending(in)(out)
}

// pending adds a call, and returns what adds its end.
func (s *story) pending(in Event) func(Event) {
	s.calls++
	n := s.calls
	in.Kind, in.Call = Invoke, n
	if in.ID == "" {
		in.ID = OperationID("a", "k")
	}
	s.add(in)
	return func(out Event) {
		out.Call, out.Verb, out.ID = n, in.Verb, in.ID
		s.add(out)
	}
}

func (s *story) ask(amount int, out Event) {
	in := Event{Verb: VerbRequest, Scope: "a", Key: "k", Fingerprint: Asking(amount)}
	s.call(in, out)
}

const lease = 50 * tick

// claim grants a claim of amount 5 to an owner.
func (s *story) claim(owner string, fence int64, attempt int) {
	s.call(Event{Verb: verbClaim, Owner: owner, Fingerprint: "5", Lease: lease},
		Event{Kind: OK, State: running, Owner: owner, Fence: fence, Attempt: attempt, Fingerprint: "5"})
}

func (s *story) write(verb string, owner string, fence int64, state, digest string, kind Kind) {
	out := Event{Kind: kind}
	if kind == Fail {
		out.Why = whyFenced
	}
	s.call(Event{Verb: verb, Owner: owner, Fence: fence, State: state, Digest: digest}, out)
}

func (s *story) read(state, owner string, fence int64, digest string) {
	s.call(Event{Verb: verbRead}, Event{Kind: OK, State: state, Owner: owner, Fence: fence, Attempt: 1, Fingerprint: "5", Digest: digest})
}

func (s *story) charge(fence int64, amount int) Charge {
	s.time += tick
	c := Charge{ID: "c" + string(rune('0'+len(s.ledger))), Scope: "a", Key: "k", Amount: amount}
	s.ledger = append(s.ledger, Effect{Charge: c, Fence: fence, Process: s.process, At: s.time})
	return c
}

func (s *story) look(state, owner string, fence int64, attempt int, digest string) {
	s.add(Event{Kind: Looked, ID: OperationID("a", "k"), State: state, Owner: owner, Fence: fence, Attempt: attempt, Fingerprint: "5", Digest: digest})
}

func told(c Charge) Event { return Event{Kind: OK, Says: Outcome, Digest: "r", Fresh: true, Said: &c} }

func again(c Charge) Event {
	ev := told(c)
	ev.Fresh = false
	return ev
}

var (
	completed   = store.Completed.String()
	toldUnknown = Event{Kind: OK, Says: OutcomeUnknown}
	refused     = Event{Kind: OK, Says: Mismatched}
)

// well is a history in which all is well: a run, and a retry.
func (s *story) well() Charge {
	s.claim("o1", 10, 1)
	c := s.charge(10, 5)
	s.write(verbSettle, "o1", 10, completed, "r", OK)
	s.ask(5, told(c))
	s.ask(5, again(c))
	return c
}

func (s *story) end() { s.look(completed, "o1", 10, 1, "r") }

// goodStories are histories that keep every promise.
var goodStories = map[string]func(*story){
	"a run and a retry": func(s *story) { s.well(); s.end() },
	"a refusal":         func(s *story) { s.well(); s.ask(6, refused); s.end() },
	"a reply was lost, and the call repeated": func(s *story) {
		s.call(Event{Verb: verbClaim, Owner: "o1", Fingerprint: "5", Lease: lease}, Event{Kind: Unsure})
		s.well()
		s.write(verbSettle, "o1", 10, completed, "r", Unsure)
		s.write(verbSettle, "o1", 10, completed, "r", OK)
		s.end()
	},
	"released, and run again": func(s *story) {
		s.claim("o1", 10, 1)
		s.write(verbRelease, "o1", 10, "", "", OK)
		s.claim("o2", 11, 2)
		c := s.charge(11, 5)
		s.write(verbSettle, "o2", 11, completed, "r", OK)
		s.ask(5, told(c))
		s.write(verbSettle, "o1", 10, completed, "z", Fail)
		s.look(completed, "o2", 11, 2, "r")
	},
	"a claim that was repeated until it was unknown": func(s *story) {
		end := s.pending(Event{Verb: verbClaim, Owner: "o1", Fingerprint: "5", Lease: lease})
		s.time += lease
		end(Event{Kind: OK, State: unknown, Owner: "o1", Fence: 10, Attempt: 1, Fingerprint: "5"})
		s.ask(5, toldUnknown)
		s.look(unknown, "o1", 10, 1, "")
	},
	"a claim without a reply": func(s *story) {
		s.pending(Event{Verb: verbClaim, Owner: "o1", Fingerprint: "5", Lease: lease})
		s.time += lease
		s.read(unknown, "o1", 10, "")
		s.ask(5, toldUnknown)
		s.look(unknown, "o1", 10, 1, "")
	},
	"settled late": func(s *story) {
		s.claim("o1", 10, 1)
		s.time += lease
		s.read(unknown, "o1", 10, "")
		s.ask(5, toldUnknown)
		c := s.charge(10, 5)
		s.write(verbSettle, "o1", 10, completed, "r", OK)
		s.ask(5, again(c))
		s.end()
	},
	"died before the commit of a transaction": func(s *story) {
		s.pending(Event{Verb: verbTransact, Owner: "o1", Fingerprint: "5"})
		s.add(Event{Kind: Intent, ID: OperationID("a", "k"), Owner: "o1", Fence: 3, Attempt: 1, State: completed, Digest: "r"})
		s.transact("o2", 3, "s")
		s.ask(5, told(s.charge(3, 5)))
		s.look(completed, "o2", 3, 1, "s")
	},
	"died after the commit of a transaction": func(s *story) {
		s.pending(Event{Verb: verbTransact, Owner: "o1", Fingerprint: "5"})
		s.add(Event{Kind: Intent, ID: OperationID("a", "k"), Owner: "o1", Fence: 10, Attempt: 1, State: completed, Digest: "r"})
		s.ask(5, told(s.charge(10, 5)))
		s.read(completed, "o1", 10, "r")
		s.end()
	},
}

func TestJudgeFindsNothingWrongWhereAllIsWell(t *testing.T) {
	for name, tell := range goodStories {
		var s story
		tell(&s)
		v := s.judge(true)
		for _, v := range v.Violations {
			t.Errorf("%s: %s", name, v)
		}
		if v.Operations != 1 || v.Once+v.Unknown != 1 {
			t.Errorf("%s: %+v", name, v)
		}
	}
}

// transact commits a transaction.
func (s *story) transact(owner string, fence int64, digest string) {
	s.call(Event{Verb: verbTransact, Owner: owner, Fingerprint: "5"},
		Event{Kind: OK, State: completed, Owner: owner, Fence: fence, Attempt: 1, Fingerprint: "5", Digest: digest})
}

// bite is a story and the promise that it breaks.
type bite struct {
	promise string
	tell    func(*story)
}

func TestJudgeBitesWhereClientsAreWronged(t *testing.T) {
	for name, c := range map[string]bite{
		"charged twice": {OneEffect, func(s *story) { s.well(); s.charge(10, 5); s.end() }},
		"returned, and not charged": {Acknowledged, func(s *story) {
			s.well()
			s.ledger = nil
			s.end()
		}},
		"got another charge": {Acknowledged, func(s *story) { s.well(); s.ledger[0].ID = "other"; s.end() }},
		"returned, but no outcome": {Acknowledged, func(s *story) {
			s.well()
			s.ask(5, Event{Kind: OK, Says: Outcome, Digest: "r"})
			s.end()
		}},
		"completed without a charge": {Acknowledged, func(s *story) {
			s.claim("o1", 10, 1)
			s.write(verbSettle, "o1", 10, completed, "r", OK)
			s.ask(5, toldUnknown)
			s.end()
		}},
		"charged, and never returned": {Acknowledged, func(s *story) {
			s.claim("o1", 10, 1)
			s.charge(10, 5)
			s.ask(5, Event{Kind: Unsure})
		}},
		"charged, and released": {Acknowledged, func(s *story) {
			s.claim("o1", 10, 1)
			s.charge(10, 5)
			s.write(verbRelease, "o1", 10, "", "", OK)
			s.ask(5, toldUnknown)
			s.look(retryable, "o1", 10, 1, "")
		}},
		"answered with an error": {Acknowledged, func(s *story) { s.well(); s.ask(5, Event{Kind: OK, Says: Nonsense, Status: 400}); s.end() }},
		"two bodies": {Stable, func(s *story) {
			ev := again(s.well())
			ev.Digest = "z"
			s.ask(5, ev)
			s.end()
		}},
		"two first hands":              {Stable, func(s *story) { s.ask(5, told(s.well())); s.end() }},
		"charged, then unknown":        {Stable, func(s *story) { s.well(); s.ask(5, toldUnknown); s.end() }},
		"refused without another":      {Mismatch, func(s *story) { s.ask(5, refused) }},
		"refused after it was charged": {Mismatch, func(s *story) { s.well(); s.ask(6, refused); s.ask(5, refused); s.end() }},
		"got another request's answer": {Mismatch, func(s *story) { s.ask(6, again(s.well())); s.end() }},
	} {
		bites(t, name, c.promise, c.tell)
	}
}

func TestJudgeBitesWhereScopesMeetOrNothingIsSettled(t *testing.T) {
	for name, c := range map[string]bite{
		"another scope's answer": {Scope, func(s *story) {
			c := s.well()
			c.Scope = "b"
			s.ask(5, again(c))
			s.end()
		}},
		"a record without a client": {Scope, func(s *story) { s.well(); s.end(); s.call(Event{Verb: verbRead, ID: "other"}, Event{Kind: OK}) }},
		"a charge without a client": {Scope, func(s *story) {
			s.well()
			s.end()
			s.ledger = append(s.ledger, Effect{Charge: Charge{ID: "x", Scope: "b", Key: "k"}})
		}},
		"still running": {Settled, func(s *story) {
			s.claim("o1", 10, 1)
			s.ask(5, toldUnknown)
			s.look(running, "o1", 10, 1, "")
		}},
		"no definite answer": {Settled, func(s *story) { s.ask(5, Event{Kind: Unsure, Status: 409}) }},
	} {
		bites(t, name, c.promise, c.tell)
	}
}

func TestJudgeBitesWhereFencesOrLeasesFail(t *testing.T) {
	for name, c := range map[string]bite{
		"fences fall": {Fencing, func(s *story) {
			s.claim("o1", 10, 1)
			s.write(verbRelease, "o1", 10, "", "", OK)
			s.claim("o2", 9, 2)
			s.ask(5, toldUnknown)
		}},
		"a fence is granted twice": {Fencing, func(s *story) {
			s.claim("o1", 10, 1)
			s.write(verbRelease, "o1", 10, "", "", OK)
			s.claim("o2", 10, 2)
			s.ask(5, toldUnknown)
		}},
		"a stale fence settles": {Fencing, func(s *story) {
			s.claim("o1", 10, 1)
			s.write(verbRelease, "o1", 10, "", "", OK)
			s.claim("o2", 11, 2)
			s.write(verbSettle, "o1", 10, completed, "z", OK)
			s.ask(5, toldUnknown)
		}},
		"a stale fence is renewed": {Fencing, func(s *story) {
			s.claim("o1", 10, 1)
			s.write(verbRelease, "o1", 10, "", "", OK)
			s.claim("o2", 11, 2)
			s.write(verbExtend, "o1", 10, "", "", OK)
			s.ask(5, toldUnknown)
		}},
		"a stale run charges": {Fencing, func(s *story) {
			s.claim("o1", 10, 1)
			s.write(verbRelease, "o1", 10, "", "", OK)
			s.claim("o2", 11, 2)
			s.charge(10, 5)
			s.ask(5, toldUnknown)
		}},
		"marked unknown alive": {Leasing, func(s *story) {
			s.claim("o1", 10, 1)
			s.read(unknown, "o1", 10, "")
			s.ask(5, toldUnknown)
		}},
		"marked unknown although renewed": {Leasing, func(s *story) {
			s.claim("o1", 10, 1)
			s.time += lease - 10*tick
			s.call(Event{Verb: verbExtend, Owner: "o1", Fence: 10, Lease: lease}, Event{Kind: OK})
			s.time += 20 * tick
			s.read(unknown, "o1", 10, "")
			s.ask(5, toldUnknown)
		}},
	} {
		bites(t, name, c.promise, c.tell)
	}
}

// bites requires that the judge name a promise, among others perhaps.
func bites(t *testing.T, name, promise string, tell func(*story)) {
	t.Helper()
	var s story
	tell(&s)
	v := s.judge(true)
	for _, v := range v.Violations {
		if v.Promise == promise {
			if promise == Leasing && !strings.Contains(v.Calls, "process") {
				t.Errorf("%s: the calls are %q", name, v.Calls)
			}
			return
		}
	}
	t.Errorf("%s: want a violation of %q, got %q", name, promise, v.Violations)
}

func TestJudgeReportsForbiddenUnknownOutcomes(t *testing.T) {
	var s story
	s.claim("o1", 10, 1)
	s.time += lease
	s.ask(5, toldUnknown)
	s.look(unknown, "o1", 10, 1, "")
	if v := s.judge(true); len(v.Violations) != 0 || v.Unknown != 1 {
		t.Errorf("got %+v; want len(v.Violations) == 0, v.Unknown == 1", v)
	}
	if v := s.judge(false); len(v.Violations) != 2 || v.Violations[0].Promise != Settled {
		t.Errorf("got %+v; want len(v.Violations) == 2, v.Violations[0].Promise == Settled", v.Violations)
	}
}

// The linear checks above see single calls; these are wrong only together.
func TestJudgeFindsRecordsThatAreNotLinearizable(t *testing.T) {
	for name, tell := range map[string]func(*story){
		"an acknowledged settle is gone": func(s *story) {
			s.claim("o1", 10, 1)
			s.write(verbSettle, "o1", 10, completed, "r", OK)
			s.read(running, "o1", 10, "")
		},
		"a settled outcome changes": func(s *story) {
			s.claim("o1", 10, 1)
			s.write(verbSettle, "o1", 10, completed, "r", OK)
			s.write(verbSettle, "o1", 10, completed, "z", OK)
		},
		"a live claim is deleted": func(s *story) {
			s.claim("o1", 10, 1)
			s.call(Event{Verb: verbRead}, Event{Kind: OK, State: none})
		},
		"claimed twice": func(s *story) {
			s.claim("o1", 10, 1)
			s.claim("o2", 11, 1)
		},
		"an unknown run is run again": func(s *story) {
			s.claim("o1", 10, 1)
			s.time += lease
			s.read(unknown, "o1", 10, "")
			s.claim("o2", 11, 2)
		},
		"an owner claims twice": func(s *story) {
			s.claim("o1", 10, 1)
			s.write(verbRelease, "o1", 10, "", "", OK)
			s.claim("o1", 11, 2)
		},
		"another request is granted": func(s *story) {
			s.claim("o1", 10, 1)
			s.write(verbRelease, "o1", 10, "", "", OK)
			s.call(Event{Verb: verbClaim, Owner: "o2", Fingerprint: "6", Lease: lease},
				Event{Kind: OK, State: running, Owner: "o2", Fence: 11, Attempt: 2, Fingerprint: "6"})
		},
		"a mismatch with itself": func(s *story) {
			s.claim("o1", 10, 1)
			s.call(Event{Verb: verbClaim, Owner: "o2", Fingerprint: "5", Lease: lease}, Event{Kind: Fail, Why: whyMismatch})
		},
		"the newest fence is refused": func(s *story) {
			s.claim("o1", 10, 1)
			s.write(verbSettle, "o1", 10, completed, "r", Fail)
		},
		"a live lease is lost": func(s *story) {
			s.claim("o1", 10, 1)
			s.write(verbExtend, "o1", 10, "", "", Fail)
			s.read(running, "o1", 10, "")
		},
		"two transactions commit": func(s *story) {
			s.transact("o1", 10, "r")
			s.transact("o2", 11, "z")
		},
		"a transaction rolled back is there": func(s *story) {
			s.call(Event{Verb: verbTransact, Owner: "o1", Fingerprint: "5"}, Event{Kind: Fail, Why: whyNothing})
			s.read(completed, "o1", 10, "r")
		},
		"a record is forgotten at the end": func(s *story) {
			s.claim("o1", 10, 1)
			s.look(none, "", 0, 0, "")
		},
	} {
		bites(t, name, Linear, func(s *story) {
			tell(s)
			s.ask(5, toldUnknown)
		})
	}
}

func TestJudgeReportsFates(t *testing.T) {
	die := Event{Kind: Die, Point: string(fault.HandlerAfter), Visit: 1, Under: []string{OperationID("a", "k")}}
	for name, c := range map[string]struct {
		want Fates
		tell func(*story)
	}{
		"before the charge, and unknown": {Fates{Unknown: 1}, func(s *story) {
			s.claim("o1", 10, 1)
			s.add(die)
			s.ask(5, toldUnknown)
		}},
		"after the charge, and reported": {Fates{Executed: 1}, func(s *story) {
			s.claim("o1", 10, 1)
			c := s.charge(10, 5)
			s.add(die)
			s.ask(5, told(c))
		}},
		"before the charge, which the retry makes": {Fates{NotExecuted: 1}, func(s *story) {
			s.claim("o1", 10, 1)
			s.add(die)
			s.process = 2
			s.ask(5, told(s.charge(11, 5)))
		}},
		"a retry of a charge by another process": {Fates{Repeated: 1}, func(s *story) {
			s.process = 2
			c := s.charge(10, 5)
			s.process = 1
			s.add(die)
			s.ask(5, told(c))
		}},
		"after it was released": {Fates{NotExecuted: 1}, func(s *story) {
			s.claim("o1", 10, 1)
			s.write(verbRelease, "o1", 10, "", "", OK)
			s.add(die)
			s.process = 2
			s.claim("o2", 11, 2)
			s.ask(5, toldUnknown)
		}},
		"a retry of an unknown operation": {Fates{Repeated: 1}, func(s *story) {
			s.add(die)
			s.ask(5, toldUnknown)
		}},
	} {
		s := story{process: 1}
		c.tell(&s)
		if got := s.judge(true).Fates[fault.HandlerAfter]; got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}
