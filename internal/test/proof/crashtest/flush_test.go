package crashtest

import "testing"

func (s *story) flush() {
	s.add(Event{Kind: Flushing})
	s.add(Event{Kind: Flushed})
}

// twice is a run that Redis loses, and another one.
func (s *story) twice(lost func()) {
	s.claim("o1", 10, 1)
	s.charge(10, 5)
	lost()
	s.claim("o2", 20, 1)
	c := s.charge(20, 5)
	s.write(verbSettle, "o1", 10, completed, "x", Fail)
	s.write(verbSettle, "o2", 20, completed, "r", OK)
	s.ask(5, told(c))
	s.look(completed, "o2", 20, 1, "r")
}

func TestJudgeExcusesClaimsInFlightThatWereLost(t *testing.T) {
	var s story
	s.twice(s.flush)
	if v := s.judge(true); len(v.Violations) > 0 || v.AtRisk != 1 {
		t.Errorf("two effects of a claim that was lost: %q, at risk: %d", v.Violations, v.AtRisk)
	}
	bites(t, "two effects without a flush", OneEffect, func(s *story) { s.twice(func() {}) })
	bites(t, "two effects before a flush", OneEffect, func(s *story) { s.twice(func() {}); s.flush() })
	bites(t, "two outcomes after a flush", Stable, func(s *story) {
		s.twice(s.flush)
		s.ask(5, Event{Kind: OK, Says: Outcome, Digest: "other", Said: told(s.ledger[0].Charge).Said})
	})
	bites(t, "a settled operation runs after a flush", OneEffect, func(s *story) {
		s.well()
		s.flush()
		s.claim("o2", 20, 1)
		s.charge(20, 5)
		s.end()
	})
}

func TestJudgeKnowsThatSQLHasAnotherFence(t *testing.T) {
	var s story
	s.well()
	s.flush()
	s.read(completed, "o1", 1, "r")
	s.look(completed, "o1", 1, 1, "r")
	if v := s.judge(true); len(v.Violations) > 0 || v.Outlived != 1 {
		t.Errorf("a replay from SQL: %q, outlived: %d", v.Violations, v.Outlived)
	}
}
