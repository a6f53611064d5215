package crashtest

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/stet-go/stet/internal/fault"
)

// The promises that the judge holds a history to, by the names that violations
// have.
const (
	OneEffect    = "more than one effect"
	Acknowledged = "a reply is not the truth"
	Stable       = "outcome not stable"
	Mismatch     = "mismatch"
	Fencing      = "fence"
	Scope        = "scope"
	Settled      = "not settled at the end"
	Leasing      = "lease"
	Linear       = "record not linearizable"
	Lost         = "lost"
	Emission     = "emitted messages"
)

// Violation is a broken promise.
type Violation struct {
	Promise string // one of the constants above
	Detail  string
	Calls   string // of the stores for the operation, a line each
}

// String is for people.
func (v Violation) String() string { return v.Promise + ": " + v.Detail }

// Fates are what became of operations whose process died at a point.
type Fates struct {
	NotExecuted int // by the process that died; the retry ran
	Executed    int // by the process that died, and every retry got that outcome
	Unknown     int // and reported as unknown
	Repeated    int // the request was a retry of what another process had run: says nothing
}

// Law says what a judge holds a workload to.
type Law struct {
	// Parts are those of an operation of a kind which have one effect each, in their
	// order. Default: one, which is "".
	Parts map[string][]string
	// Always is a part that an operation has however it ended; "" is none.
	Always string
	// Ends reports whether an operation may end like that.
	Ends func(asked, looked Event) bool
	// Unknown reports whether it may stay unknown what became of an operation of a
	// kind.
	Unknown func(kind string) bool
}

// PaymentLaw is the law of payments: they may end without an effect and be asked
// for again, or stay unknown if the policy allows it.
func PaymentLaw(mayBeUnknown bool) Law {
	return Law{
		Ends: func(_, looked Event) bool {
			return looked.State != running && (looked.State != unknown || mayBeUnknown)
		},
		Unknown: func(string) bool { return mayBeUnknown },
	}
}

// Letter is a message that has arrived, which an operation has emitted.
type Letter struct {
	ID string // of the message
	Of Charge // the effect of the run that emitted it
}

// Trial is all that a judge sees.
type Trial struct {
	Events  []Event
	Effects []Effect
	Gave    []Effect // what steps gave their handlers
	Letters []Letter
}

// Resolution is what the judge found.
type Resolution struct {
	Operations     int // that were asked for
	Requests       int // of clients
	Calls          int // of stores
	Once           int // operations whose outcome a client got
	Unknown        int // operations told unknown at last
	UnknownCharged int // those of them that the ledger has
	Refused        int // requests refused because they asked for something else
	AtRisk         int // operations of which Redis may have lost a claim in flight
	Outlived       int // operations that were settled when Redis was flushed
	Undecided      int // records whose history was too long to be checked in time

	Completed, Cancelled, Doubtful int // records
	Attempts                       int // of all records
	TimesUnknown                   int // answers that the outcome is unknown
	Effects                        int
	Affected                       int // operations that have an effect
	Emitted                        int // operations whose run has settled with a message
	Arrived                        int // messages, repetitions included
	Repeated                       int // operations whose message came more than once

	Fates      map[fault.Point]Fates
	Violations []Violation
}

func (v *Resolution) add(o Resolution) {
	for _, n := range [][2]*int{{&v.Operations, &o.Operations}, {&v.Requests, &o.Requests}, {&v.Calls, &o.Calls}, {&v.Once, &o.Once}, {&v.Unknown, &o.Unknown},
		{&v.UnknownCharged, &o.UnknownCharged}, {&v.Refused, &o.Refused}, {&v.AtRisk, &o.AtRisk}, {&v.Outlived, &o.Outlived}, {&v.Undecided, &o.Undecided}} {
		*n[0] += *n[1]
	}
	v.Violations = append(v.Violations, o.Violations...)
	if v.Fates == nil {
		v.Fates = make(map[fault.Point]Fates)
	}
	for p, f := range o.Fates {
		was := v.Fates[p]
		v.Fates[p] = Fates{was.NotExecuted + f.NotExecuted, was.Executed + f.Executed, was.Unknown + f.Unknown, was.Repeated + f.Repeated}
	}
}

// Summary is one line for each promise that was broken: how often, and the first
// examples.
func (v Resolution) Summary(examples int) (lines []string) {
	all := make(map[string][]string)
	for _, b := range v.Violations {
		all[b.Promise] = append(all[b.Promise], b.Detail)
	}
	for _, promise := range slices.Sorted(maps.Keys(all)) {
		lines = append(lines, fmt.Sprintf("%d × %s, such as %q", len(all[promise]), promise, all[promise][:min(examples, len(all[promise]))]))
	}
	return lines
}

// call is an invocation and its end.
type call struct {
	in, out  Event // out.Kind is "" if the process died in the middle
	from, to int64
}

// subject is one operation, and all that was seen of it.
type subject struct {
	id, scope, key string
	asked          *Event // the wanted operation
	asks           []call // of clients
	calls          []call // of stores
	intents        []Event
	entries        []Effect
	gave           []Effect
	letters        []Letter
	looked         *Event
	atRisk         bool // see flushed
}

// judge is one judgement.
type judge struct {
	Law
	subjects map[string]*subject
	recorded bool // the calls of stores are in the histories
	deaths   []Event
	flushes  []flush
	senders  map[string]*subject // of messages, by their ID
	v        Resolution
}

// Judge compares replies to clients, replies of stores and the records
// in the end with the ledger and with each other.
func Judge(t Trial, law Law) Resolution {
	j := &judge{Law: law, subjects: make(map[string]*subject), senders: make(map[string]*subject)}
	j.v.Fates = make(map[fault.Point]Fates)
	j.sort(t.Events)
	for _, e := range t.Effects {
		s := j.subject(OperationID(e.Scope, e.Key))
		s.entries = append(s.entries, e)
	}
	for _, e := range t.Gave {
		s := j.subject(OperationID(e.Scope, e.Key))
		s.gave = append(s.gave, e)
	}
	for _, l := range t.Letters {
		s := j.subject(OperationID(l.Of.Scope, l.Of.Key))
		s.letters = append(s.letters, l)
	}
	for _, id := range slices.Sorted(maps.Keys(j.subjects)) {
		s := j.subjects[id]
		j.v.Requests += len(s.asks)
		j.v.Calls += len(s.calls)
		if s.asked == nil {
			j.accuse(Scope, s, "%s has a record, an effect or a message, and no client asked for it", id)
			continue
		}
		j.v.Operations++
		j.flushed(s)
		if len(s.asks) > 0 {
			j.answers(s)
			j.mismatches(s)
		}
		j.end(s)
		j.emitted(s)
		j.fences(s)
		j.leases(s)
		if j.recorded {
			j.linear(s)
		}
	}
	for _, d := range j.deaths {
		j.fates(d)
	}
	return j.v
}

func (j *judge) accuse(promise string, s *subject, format string, args ...any) {
	if s.atRisk && slices.Contains(inFlight, promise) {
		return
	}
	j.v.Violations = append(j.v.Violations, Violation{promise, fmt.Sprintf("%s/%s: ", s.scope, s.key) + fmt.Sprintf(format, args...), s.listed()})
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
			if ev.Verb == VerbRequest {
				s.wanted(ev)
				s.asks = append(s.asks, c)
			} else {
				j.recorded, s.calls = true, append(s.calls, c)
			}
		case Wanted:
			j.subject(ev.ID).wanted(ev)
		case Intent:
			s := j.subject(ev.ID)
			s.intents = append(s.intents, ev)
		case Looked:
			j.subject(ev.ID).looked = &ev
		case Flushing:
			j.flushes = append(j.flushes, flush{ev.At, math.MaxInt64})
		case Flushed:
			j.flushes[len(j.flushes)-1].to = ev.At
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

func (s *subject) wanted(ev Event) {
	if s.asked == nil {
		s.asked, s.scope, s.key = &ev, ev.Scope, ev.Key
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
		stillUnknown := len(s.replies(Outcome)) == 0 && len(s.replies(OutcomeUnknown)) > 0
		own, released := s.begunBy(d.Process)
		own = own && p != fault.ClaimBefore
		switch {
		case slices.ContainsFunc(s.entries, func(e Effect) bool { return e.Process != d.Process && e.At < d.At }):
			f.Repeated++
		case stillUnknown && own && released:
			f.NotExecuted++ // a later run became unknown
		case stillUnknown && own:
			f.Unknown++
		case stillUnknown:
			f.Repeated++
		case slices.ContainsFunc(s.entries, func(e Effect) bool { return e.Process == d.Process }):
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
