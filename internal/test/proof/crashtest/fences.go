package crashtest

import (
	"slices"
	"time"

	"github.com/stet-go/stet/store"
)

// grant is a claim that was granted.
type grant struct {
	owner    string
	fence    int64
	from, to int64
}

// grants are the claims of a subject that were granted, or committed at once.
func (s *subject) grants() (all []grant) {
	for _, c := range s.calls {
		if c.out.Kind != OK || c.out.Owner != c.in.Owner {
			continue
		}
		claimed := c.in.Verb == verbClaim && c.out.State == store.Running.String()
		committed := c.in.Verb == verbTransact && c.out.State != store.Running.String()
		if claimed || committed {
			all = append(all, grant{c.in.Owner, c.out.Fence, c.from, c.to})
		}
	}
	return all
}

// fences judges that fences grow with every claim, and that nothing is written
// under one after a greater one was granted.
func (j *judge) fences(s *subject) {
	grants := s.grants()
	for i, a := range grants {
		for _, b := range grants[i+1:] {
			switch {
			case a.owner == b.owner:
			case a.fence == b.fence:
				j.accuse(Fencing, s, "%d was granted twice", a.fence)
			case a.to < b.from && b.fence < a.fence:
				j.accuse(Fencing, s, "%d was granted after %d", b.fence, a.fence)
			}
		}
	}
	for _, g := range grants {
		for _, c := range s.calls {
			writes := c.in.Verb == verbSettle || c.in.Verb == verbRelease || c.in.Verb == verbExtend
			if writes && c.out.Kind == OK && c.in.Fence < g.fence && c.from > g.to {
				j.accuse(Fencing, s, "%s under %d, after %d had been granted", c.in.Verb, c.in.Fence, g.fence)
			}
		}
		for _, e := range s.entries {
			if e.Fence < g.fence && e.At > g.to {
				j.accuse(Fencing, s, "charged under %d, after %d had been granted", e.Fence, g.fence)
			}
		}
	}
}

// clockTolerance is what the store's clock, which may count in milliseconds, and
// the histories' may differ by over a lease.
const clockTolerance = int64(5 * time.Millisecond)

// leases judges that no claim was marked unknown while its lease lived: no caller may see a
// record unknown earlier than that after its last renewal was sent.
func (j *judge) leases(s *subject) {
	seen := make(map[int64]int64) // by fence, when it was first seen unknown, at the latest
	for _, c := range s.calls {
		if c.out.State != store.Unknown.String() || c.out.Kind != OK {
			continue
		}
		if t, ok := seen[c.out.Fence]; !ok || c.to < t {
			seen[c.out.Fence] = c.to
		}
	}
	if len(seen) == 0 {
		return
	}
	sent := make(map[string]int64) // by owner, when its claim was first sent: the reply may have been to a repetition
	for _, c := range s.calls {
		if _, again := sent[c.in.Owner]; c.in.Verb == verbClaim && !again {
			sent[c.in.Owner] = c.from
		}
		if c.out.Kind != OK {
			continue
		}
		fence, from := c.in.Fence, c.from
		switch {
		case c.in.Verb == verbClaim && c.out.Owner == c.in.Owner && c.out.State == store.Running.String():
			fence, from = c.out.Fence, sent[c.in.Owner]
		case c.in.Verb != verbExtend:
			continue
		}
		if t, ok := seen[fence]; ok && t < from+c.in.Lease-clockTolerance && !s.shortened(c, fence, t) {
			j.accuse(Leasing, s, "seen unknown %v after a lease of %v was begun or renewed", time.Duration(t-from), time.Duration(c.in.Lease))
		}
	}
}

// shortened reports whether an Extend after c gave its claim a shorter lease, which ended before it was
// seen unknown at t. The engine does so for claims that it gives up.
func (s *subject) shortened(c call, fence, t int64) bool {
	return slices.ContainsFunc(s.calls, func(d call) bool {
		return d.in.Verb == verbExtend && d.out.Kind != Fail && d.in.Fence == fence && d.to > c.from && d.in.Lease < c.in.Lease && t >= d.from+d.in.Lease-clockTolerance
	})
}
