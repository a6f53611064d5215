package crashtest

import "testing"

// shorten changes a claim's lease.
func (s *story) shorten(to int64) {
	s.call(Event{Verb: verbExtend, Owner: "o1", Fence: 10, Lease: to}, Event{Kind: OK})
}

// seenUnknown ends a story in which the run is marked unknown.
func (s *story) seenUnknown() {
	s.read(unknown, "o1", 10, "")
	s.ask(5, toldUnknown)
	s.look(unknown, "o1", 10, 1, "")
}

func TestJudgeKnowsShortenedLeases(t *testing.T) {
	var s story
	s.claim("o1", 10, 1)
	s.shorten(tick)
	s.time += tick
	s.seenUnknown()
	if v := s.judge(true); len(v.Violations) > 0 {
		t.Errorf("unknown after a lease was shortened: %q", v.Violations)
	}
	bites(t, "unknown before the end of a shortened lease", Leasing, func(s *story) {
		s.claim("o1", 10, 1)
		s.shorten(lease / 2)
		s.seenUnknown()
	})
	bites(t, "unknown although the shorter lease was refused", Leasing, func(s *story) {
		s.claim("o1", 10, 1)
		s.call(Event{Verb: verbExtend, Owner: "o1", Fence: 10, Lease: tick}, Event{Kind: Fail, Why: whyFenced})
		s.time += tick
		s.seenUnknown()
	})
	bites(t, "unknown although renewed after it was shortened", Leasing, func(s *story) {
		s.claim("o1", 10, 1)
		s.shorten(tick)
		s.shorten(lease)
		s.time += 10 * tick
		s.seenUnknown()
	})
}
