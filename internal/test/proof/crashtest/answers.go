package crashtest

import (
	"cmp"
	"math"
	"slices"
	"strconv"
)

// What an answer to a client says.
const (
	Outcome        = "outcome" // this became of it
	OutcomeUnknown = "unknown"
	AcceptedOnly   = "accepted" // it will be done
	InProgress     = "in progress"
	Mismatched     = "mismatch" // it was asked for something else under this key
	Nonsense       = "nonsense" // a reply that no client should get
)

// told are the definite answers that say something.
func (s *subject) replies(kind string) (calls []call) {
	for _, a := range s.asks {
		if a.out.Kind == OK && a.out.Says == kind {
			calls = append(calls, a)
		}
	}
	return calls
}

// answers judges the replies to clients.
func (j *judge) answers(s *subject) {
	outcomes, unknown := s.replies(Outcome), s.replies(OutcomeUnknown)
	fresh := make(map[string]int)
	known := int64(math.MaxInt64) // when the outcome had been told
	for _, a := range outcomes {
		j.outcome(s, a)
		known = min(known, a.to)
	}
	j.same(s, outcomes)
	j.same(s, s.replies(AcceptedOnly))
	attempts, ended := 0, slices.SortedFunc(slices.Values(s.asks), func(a, b call) int { return cmp.Compare(a.to, b.to) })
	for _, a := range s.asks {
		if a.out.Kind != OK {
			continue
		}
		if a.out.Fresh {
			fresh[a.out.Says]++
		}
		switch late := a.from > known; {
		case a.out.Says == Nonsense:
			j.accuse(Acknowledged, s, "answered %d: %s", a.out.Status, a.out.Why)
		case late && (a.out.Says == OutcomeUnknown || a.out.Says == InProgress || a.out.Says == AcceptedOnly && a.in.Waits):
			j.accuse(Stable, s, "got %s after its outcome was returned", a.out.Says)
		}
		for ; ended[0].to < a.from; ended = ended[1:] { // a status says how often it was tried
			attempts = max(attempts, ended[0].out.Attempt)
		}
		if a.out.Attempt > 0 && a.out.Attempt < attempts {
			j.accuse(Stable, s, "its attempts went back from %d to %d", attempts, a.out.Attempt)
		}
	}
	for what, n := range fresh {
		if n > 1 {
			j.accuse(Stable, s, "%d clients got an %s that is not a replay", n, what)
		}
	}
	j.v.TimesUnknown += len(unknown)
	may := j.Unknown(s.asked.Name)
	if len(unknown) > 0 && !may && !s.asked.Patient {
		j.accuse(Settled, s, "told unknown, where nothing may be unknown")
	}
	effects := len(s.effects())
	switch {
	case len(outcomes) > 0:
		j.v.Once++
	case len(unknown) > 0 && may:
		j.v.Unknown++
		j.v.UnknownCharged += min(effects, 1)
	case effects > 0:
		j.accuse(Acknowledged, s, "charged %+v, and no client got the outcome", s.entries)
	}
}

// same judges that all answers of a sort are equal.
func (j *judge) same(s *subject, told []call) {
	for _, a := range told {
		if a.out.Digest != told[0].out.Digest {
			j.accuse(Stable, s, "two answers: %+v and %+v", told[0].out, a.out)
		}
	}
}

// outcome judges one answer that says what became of it.
func (j *judge) outcome(s *subject, a call) {
	said := a.out.Said
	switch {
	case said == nil && a.out.Of == nil && !s.asked.Cancels:
		j.accuse(Acknowledged, s, "told an outcome, but not of what")
	case said == nil && a.out.Of == nil: // it was cancelled
	case said == nil:
		j.names(s, a.out.Of)
	case said.Scope != s.scope || said.Key != s.key:
		j.accuse(Scope, s, "got %s/%s", said.Scope, said.Key)
	case a.in.Fingerprint != Asking(said.Amount):
		j.accuse(Mismatch, s, "asked for %s, got %d", a.in.Fingerprint, said.Amount)
	case !slices.ContainsFunc(s.entries, func(e Effect) bool { return e.Charge == *said }):
		j.accuse(Acknowledged, s, "got %+v, but the ledger has %+v", *said, s.entries)
	}
}

// Asking is the client's own word for a request for an amount.
func Asking(amount int) string { return "amount=" + strconv.Itoa(amount) }

// mismatches judges refusals: if and only if the request differs from the stored
// one. Until a request is stored durably, a crash may undo it.
func (j *judge) mismatches(s *subject) {
	standing := ""
	first := int64(math.MaxInt64)
	for _, a := range s.replies(Outcome) {
		standing, first = a.in.Fingerprint, min(first, a.to)
	}
	definite := make(map[string]bool)
	for _, a := range s.asks {
		if a.out.Kind == OK {
			definite[a.in.Fingerprint] = true
		}
	}
	for _, a := range s.asks {
		if !definite[a.in.Fingerprint] {
			j.accuse(Settled, s, "no definite answer to %s", a.in.Fingerprint)
			definite[a.in.Fingerprint] = true // once is enough
		}
	}
	for _, a := range s.replies(Mismatched) {
		j.v.Refused++
		others := func(b call) bool { return b.in.Fingerprint != a.in.Fingerprint && b.from < a.to }
		switch {
		case !slices.ContainsFunc(s.asks, others):
			j.accuse(Mismatch, s, "%s was refused as another request, and there is no other", a.in.Fingerprint)
		case a.in.Fingerprint == standing && a.from > first:
			j.accuse(Mismatch, s, "%s was refused as another request after it had been charged", a.in.Fingerprint)
		}
	}
}
