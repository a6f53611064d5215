package crashtest

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/stet-go/stet/internal/fault"
)

// Report is the result of a crash test, or of several.
type Report struct {
	Resolution
	Tally
}

// Add adds another report to this one.
func (r *Report) Add(o Report) {
	if r.At == nil {
		r.Tally = newTally()
	}
	r.Tally.add(o.Tally)
	r.Resolution.add(o.Resolution)
}

// NetworkFaults is the number of all faults of the network.
func (t Tally) NetworkFaults() (n int) {
	for _, k := range t.Network {
		n += k
	}
	return n
}

// Print writes the report for people.
func (r *Report) Print(w io.Writer, name string) {
	fmt.Fprintf(w, "%s: %d kills (%d missed their point, %d could not start), %d server kills, %d stops, %d network faults, %d full disks\n",
		name, r.Kills, r.Missed, r.Failed, r.Restarts, r.Stops, r.NetworkFaults(), r.Fills)
	fmt.Fprintf(w, "  %d payments, %d requests, %d store calls: %d charged once, %d unknown (%d of them charged), %d refused; %d violations, %d records undecided\n",
		r.Operations, r.Requests, r.Calls, r.Once, r.Unknown, r.UnknownCharged, r.Refused, len(r.Violations), r.Undecided)
	if r.Flushes > 0 {
		fmt.Fprintf(w, "  %d flushes of Redis: %d operations had a claim in flight, %d were settled\n", r.Flushes, r.AtRisk, r.Outlived)
	}
	for _, f := range slices.Sorted(maps.Keys(r.Network)) {
		fmt.Fprintf(w, "  network: %-20s %4d\n", f, r.Network[f])
	}
	fmt.Fprintf(w, "  %-18s %5s  %s\n", "killed at", "kills", "operations there: not executed, executed, unknown (and retries)")
	for _, p := range fault.Points {
		if n := r.At[p]; n > 0 {
			f := r.Fates[p]
			fmt.Fprintf(w, "  %-18s %5d  %d, %d, %d (%d)\n", p, n, f.NotExecuted, f.Executed, f.Unknown, f.Repeated)
		}
	}
	for _, v := range r.Violations {
		fmt.Fprintf(w, "  VIOLATION: %v\n%s", v, v.Calls)
	}
}

const mostListed = 100 // calls of an operation

// listed is what the stores were asked and answered, in milliseconds since the first call.
func (s *subject) listed() string {
	var b strings.Builder
	for i, c := range s.calls {
		if i == mostListed {
			fmt.Fprintf(&b, "    and %d more\n", len(s.calls)-i)
			break
		}
		ms := func(t int64) float64 { return float64(t-s.calls[0].from) / 1e6 }
		fmt.Fprintf(&b, "    %9.3f to %9.3f process %d: %s fence %d owner %.8s lease %v: %s %s state %s fence %d owner %.8s\n", ms(c.from), ms(c.to), c.in.Process,
			c.in.Verb, c.in.Fence, c.in.Owner, time.Duration(c.in.Lease), c.out.Kind, c.out.Why, c.out.State, c.out.Fence, c.out.Owner)
	}
	return b.String()
}
