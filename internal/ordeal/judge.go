package ordeal

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"net/http"
	"slices"
	"strconv"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/fault"
)

// The promises that the judge holds a history to, by the names that violations
// have.
const (
	OneEffect    = "more than one effect"
	Acknowledged = "what was told is not what happened"
	Stable       = "outcome not stable"
	Mismatch     = "mismatch"
	Fencing      = "fence"
	Scope        = "scope"
	Settled      = "not settled at the end"
	Leasing      = "lease"
	Linear       = "record not linearizable"
)

// Violation is a broken promise.
type Violation struct {
	Promise string // one of the constants above
	Detail  string
}

// String is for people.
func (v Violation) String() string { return v.Promise + ": " + v.Detail }

// Fates are what became of operations whose process died at a point.
type Fates struct {
	NotExecuted int // by the process that died; the retry ran
	Executed    int // by the process that died, and every retry was told so
	Unknown     int // and told so
	Repeated    int // the request was a retry of what another process had run: says nothing
}

// Verdict is what the judge found.
type Verdict struct {
	Payments       int // keys of scopes
	Requests       int // of clients
	Calls          int // of stores
	Once           int // payments charged once and told so
	Unknown        int // payments told unknown at last
	UnknownCharged int // those of them that the ledger has
	Refused        int // requests refused because they asked for something else
	Undecided      int // records whose history was too long to be checked in time
	Fates          map[fault.Point]Fates
	Violations     []Violation
}

func (v *Verdict) add(o Verdict) {
	v.Payments += o.Payments
	v.Requests += o.Requests
	v.Calls += o.Calls
	v.Once += o.Once
	v.Unknown += o.Unknown
	v.UnknownCharged += o.UnknownCharged
	v.Refused += o.Refused
	v.Undecided += o.Undecided
	v.Violations = append(v.Violations, o.Violations...)
	if v.Fates == nil {
		v.Fates = make(map[fault.Point]Fates)
	}
	for p, f := range o.Fates {
		was := v.Fates[p]
		v.Fates[p] = Fates{was.NotExecuted + f.NotExecuted, was.Executed + f.Executed, was.Unknown + f.Unknown, was.Repeated + f.Repeated}
	}
}

// call is an invocation and its end.
type call struct {
	in, out  Event // out.Kind is "" if the process died in the middle
	from, to int64
}

// payments of one key of one scope, and all that was seen of it.
type subject struct {
	id, scope, key string
	asks           []call // of clients
	calls          []call // of stores
	intents        []Event
	entries        []Entry
	looked         *Event
}

// judge is one judgement.
type judge struct {
	mayBeUnknown bool
	subjects     map[string]*subject
	deaths       []Event
	v            Verdict
}

// Judge compares what clients were told and what stores answered with the ledger
// and with each other. mayBeUnknown is whether a dead run may leave a payment
// unknown for ever.
func Judge(events []Event, ledger []Entry, mayBeUnknown bool) Verdict {
	j := &judge{mayBeUnknown: mayBeUnknown, subjects: make(map[string]*subject)}
	j.v.Fates = make(map[fault.Point]Fates)
	j.sort(events)
	for _, e := range ledger {
		s := j.subject(idOf(e.Scope, e.Key))
		s.entries = append(s.entries, e)
	}
	for _, id := range slices.Sorted(maps.Keys(j.subjects)) {
		s := j.subjects[id]
		j.v.Requests += len(s.asks)
		j.v.Calls += len(s.calls)
		if len(s.asks) == 0 {
			j.accuse(Scope, s, "a record or a charge that nobody has asked for")
			continue
		}
		j.v.Payments++
		j.answers(s)
		j.mismatches(s)
		j.end(s)
		j.fences(s)
		j.leases(s)
		j.linear(s)
	}
	for _, d := range j.deaths {
		j.fates(d)
	}
	return j.v
}

func (j *judge) accuse(promise string, s *subject, format string, args ...any) {
	j.v.Violations = append(j.v.Violations, Violation{promise, fmt.Sprintf("%s/%s: ", s.scope, s.key) + fmt.Sprintf(format, args...)})
}

func (j *judge) subject(id string) *subject {
	s := j.subjects[id]
	if s == nil {
		s = &subject{id: id}
		j.subjects[id] = s
	}
	return s
}

// sort ties ends to invocations, and both to their subjects.
func (j *judge) sort(events []Event) {
	type name struct {
		process int
		call    int64
	}
	ends := make(map[name]Event)
	for _, ev := range events {
		if ev.Call != 0 && ev.Kind != Invoke {
			ends[name{ev.Process, ev.Call}] = ev
		}
	}
	for _, ev := range events {
		switch ev.Kind {
		case Invoke:
			c := call{in: ev, from: ev.At, to: math.MaxInt64}
			if end, ok := ends[name{ev.Process, ev.Call}]; ok {
				c.out, c.to = end, end.At
			}
			s := j.subject(ev.ID)
			if ev.Verb == verbAsk {
				s.scope, s.key = ev.Scope, ev.Key
				s.asks = append(s.asks, c)
			} else {
				s.calls = append(s.calls, c)
			}
		case Intent:
			s := j.subject(ev.ID)
			s.intents = append(s.intents, ev)
		case Looked:
			j.subject(ev.ID).looked = &ev
		case Die:
			j.deaths = append(j.deaths, ev)
		}
	}
	for _, s := range j.subjects {
		byTime := func(a, b call) int { return cmp.Compare(a.from, b.from) }
		slices.SortFunc(s.asks, byTime)
		slices.SortFunc(s.calls, byTime)
	}
}

// told are the answers of a status.
func (s *subject) told(status int) (told []call) {
	for _, a := range s.asks {
		if a.out.Kind == OK && a.out.Status == status {
			told = append(told, a)
		}
	}
	return told
}

// answers judges what the clients were told.
func (j *judge) answers(s *subject) {
	if len(s.entries) > 1 {
		j.accuse(OneEffect, s, "charged %d times: %+v", len(s.entries), s.entries)
	}
	charged, unknown := s.told(statusCharged), s.told(statusUnknown)
	firstHand := 0
	first := int64(math.MaxInt64)
	for _, a := range charged {
		j.charge(s, a)
		if a.out.Digest != charged[0].out.Digest {
			j.accuse(Stable, s, "two answers: %+v and %+v", charged[0].out, a.out)
		}
		if !a.out.Replayed {
			firstHand++
		}
		first = min(first, a.to)
	}
	if firstHand > 1 {
		j.accuse(Stable, s, "%d clients were answered first hand, as by a run each", firstHand)
	}
	for _, a := range unknown {
		if !j.mayBeUnknown {
			j.accuse(Settled, s, "told unknown, where nothing may be unknown")
		}
		if a.from > first { // before that, its owner may have settled late
			j.accuse(Stable, s, "told unknown after it was told charged")
		}
	}
	switch {
	case len(charged) > 0:
		j.v.Once++
	case len(unknown) > 0:
		j.v.Unknown++
		j.v.UnknownCharged += min(len(s.entries), 1)
	case len(s.entries) > 0:
		j.accuse(Acknowledged, s, "charged %+v, and nobody was told", s.entries)
	}
	for _, a := range s.asks {
		if a.out.Kind == OK && !slices.Contains([]int{statusCharged, statusUnknown, http.StatusUnprocessableEntity}, a.out.Status) {
			j.accuse(Acknowledged, s, "answered %d", a.out.Status)
		}
	}
}

// charge judges one answer that says that a charge was made.
func (j *judge) charge(s *subject, a call) {
	said := a.out.Said
	switch {
	case said == nil:
		j.accuse(Acknowledged, s, "told charged, but not what")
	case said.Scope != s.scope || said.Key != s.key:
		j.accuse(Scope, s, "told of %s/%s", said.Scope, said.Key)
	case a.in.Fingerprint != asking(said.Amount):
		j.accuse(Mismatch, s, "asked for %s, told of %d", a.in.Fingerprint, said.Amount)
	case !slices.ContainsFunc(s.entries, func(e Entry) bool { return e.Charge == *said }):
		j.accuse(Acknowledged, s, "told of %+v, but the ledger has %+v", *said, s.entries)
	}
}

// asking is the client's own word for a request for an amount.
func asking(amount int) string { return "amount=" + strconv.Itoa(amount) }

// mismatches judges refusals: 422 if and only if the request differs from the one
// that stands. Until one stands for good, a crash may undo it.
func (j *judge) mismatches(s *subject) {
	standing := ""
	first := int64(math.MaxInt64)
	for _, a := range s.told(statusCharged) {
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
	for _, a := range s.told(http.StatusUnprocessableEntity) {
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

// end judges the record as it was when all was over.
func (j *judge) end(s *subject) {
	if s.looked == nil {
		return // of records that are not judged
	}
	state, effects := s.looked.State, len(s.entries)
	switch {
	case state == stet.Running.String():
		j.accuse(Settled, s, "still running, with fence %d", s.looked.Fence)
	case state == stet.Unknown.String() && !j.mayBeUnknown:
		j.accuse(Settled, s, "unknown, where nothing may be unknown")
	case state == stet.Completed.String() && effects == 0:
		j.accuse(Acknowledged, s, "completed, and never charged")
	case effects > 0 && (state == stet.None.String() || state == stet.Retryable.String()):
		j.accuse(Acknowledged, s, "charged, and the record is %s", state)
	}
}

// fates counts what became of the operations whose process died.
func (j *judge) fates(d Event) {
	p := fault.Point(d.Point)
	f := j.v.Fates[p]
	for _, id := range d.Under {
		s := j.subjects[id]
		if s == nil {
			continue
		}
		stillUnknown := len(s.told(statusCharged)) == 0 && len(s.told(statusUnknown)) > 0
		own, released := s.begunBy(d.Process)
		own = own && p != fault.ClaimBefore
		switch {
		case slices.ContainsFunc(s.entries, func(e Entry) bool { return e.Process != d.Process && e.At < d.At }):
			f.Repeated++
		case stillUnknown && own && released:
			f.NotExecuted++ // a later run became unknown
		case stillUnknown && own:
			f.Unknown++
		case stillUnknown:
			f.Repeated++
		case slices.ContainsFunc(s.entries, func(e Entry) bool { return e.Process == d.Process }):
			f.Executed++
		default:
			f.NotExecuted++
		}
	}
	j.v.Fates[p] = f
}

// begunBy reports whether a process was granted the operation, or may have been,
// at last, and whether it gave it back after that.
func (s *subject) begunBy(process int) (begun, released bool) {
	for _, c := range s.calls {
		switch {
		case c.in.Process != process:
		case c.in.Verb == verbClaim || c.in.Verb == verbTransact:
			if c.out.Kind == "" || c.out.Kind == Unsure || c.out.Kind == OK && c.out.Owner == c.in.Owner {
				begun, released = true, false
			}
		case c.in.Verb == verbRelease && c.out.Kind == OK:
			released = true
		}
	}
	return begun, released
}
