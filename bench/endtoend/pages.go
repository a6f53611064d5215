package main

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/stet-go/stet/bench/internal/rounds"
)

// The pages of the documentation have blocks that this command writes:
//
//	<!-- figures NAME -->
//	…
//	<!-- end -->

// rewrite replaces the block of a page.
func rewrite(path, name, block string) error {
	page, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	begin, end := "<!-- figures "+name+" -->\n", "<!-- end -->"
	before, rest, ok := strings.Cut(string(page), begin)
	_, after, closed := strings.Cut(rest, end)
	if !ok || !closed {
		return fmt.Errorf("%s has no block %q … %q", path, begin, end)
	}
	return os.WriteFile(path, []byte(before+begin+"\n"+strings.TrimSpace(block)+"\n\n"+end+after), 0o644)
}

// conditions says when and where figures were taken. load is of the machine as the run began.
func conditions(load float64) string {
	says := fmt.Sprintf("Taken on %s, on %d processors that services, stores, network and callers share.",
		time.Now().Format("2 January 2006"), runtime.NumCPU())
	if rough(load) {
		says += fmt.Sprintf(" **These figures are rough**: the machine was busy with other work (its load was %.0f when the run began).", load)
	}
	return says
}

// rough says that a machine with such a load has other work, too.
func rough(load float64) bool { return load > float64(runtime.NumCPU())/2 }

// loadAverage is how many threads have wanted to run in the last minute; 0 where it is not told.
func loadAverage() float64 {
	b, _ := os.ReadFile("/proc/loadavg")
	first, _, _ := strings.Cut(string(b), " ")
	load, _ := strconv.ParseFloat(first, 64)
	return load
}

// write writes the blocks of all pages.
func (r *report) write() error {
	if err := rewrite(filepath.Join(r.docs, "endtoend.md"), "endtoend", r.endToEnd()); err != nil {
		return err
	}
	return rewrite(filepath.Join(r.docs, "capacity.md"), "cost", r.capacity())
}

// markdown is what tables are written to.
type markdown struct{ strings.Builder }

func (t *markdown) row(cells ...string) { fmt.Fprintf(t, "| %s |\n", strings.Join(cells, " | ")) }

func (t *markdown) head(cells ...string) {
	t.row(cells...)
	fmt.Fprintf(t, "|%s\n", strings.Repeat("---|", len(cells)))
}

// endToEnd are the tables of docs/endtoend.md.
func (r *report) endToEnd() string {
	var t markdown
	fmt.Fprintf(&t, "%s Medians of at most %d rounds of %v, in which all take turns.\n\n", conditions(r.load), r.rounds, r.each)
	fmt.Fprintln(&t, "First requests, as a multiple of the bare handler's rate (a), at the same round trip and callers:")
	fmt.Fprintln(&t)
	r.ratios(&t, first, "bare")
	fmt.Fprintln(&t, "\nReplays, as a multiple of the rate of the table by hand (b):")
	fmt.Fprintln(&t)
	r.ratios(&t, replay, "byhand")
	last := r.trips[len(r.trips)-1]
	fmt.Fprintf(&t, "\nLatency of first requests at a round trip of %s: median and 99th percentile, in ms:\n\n", ms(last))
	r.grid(&t, first, []time.Duration{last}, func(c *cell) string {
		return fmt.Sprintf("%s; %s", short3(milliseconds(c.quantile(500))), short3(milliseconds(c.quantile(990))))
	})
	fmt.Fprintf(&t, "\n%d keys, each sent to two processes at once:\n\n", r.keys)
	t.head("", "executions", "keys with two different receipts")
	for _, w := range r.twice {
		t.row(w.says, fmt.Sprint(w.executions), fmt.Sprint(w.differing))
	}
	return t.String()
}

func ms(trip time.Duration) string { return strings.TrimSuffix(tripName(trip), "ms") + " ms" }

// short3 writes three digits.
func short3(v float64) string { return strconv.FormatFloat(v, 'g', 3, 64) }

// ratios is a table of rates beside another's.
func (r *report) ratios(t *markdown, what, beside string) {
	r.grid(t, what, r.trips, func(c *cell) string {
		other := r.find(beside, what, c.trip, c.callers)
		if other == nil {
			return "–"
		}
		return fmt.Sprintf("%.2f", rounds.Ratio(c.rates, other.rates))
	})
}

// grid is a table with a row for each contender, and a column for each setting.
func (r *report) grid(t *markdown, what string, trips []time.Duration, show func(*cell) string) {
	head := []string{""}
	for _, trip := range trips {
		for _, callers := range r.callers {
			head = append(head, fmt.Sprintf("%s, %d", ms(trip), callers))
		}
	}
	t.head(head...)
	for _, c := range r.compare {
		row := []string{c.says}
		for _, trip := range trips {
			for _, callers := range r.callers {
				if found := r.find(c.name, what, trip, callers); found != nil {
					row = append(row, show(found))
				}
			}
		}
		if len(row) == len(head) {
			t.row(row...)
		}
	}
}

// sized are the contenders of docs/capacity.md.
var sized = []string{"bare", "stet_tx", "stet_lease", "stet_redis", "stet_sqlite"}

// busy is how much of a processor may be in use on average: the rest is for peaks, for what
// stores do in the background, and for a process that fails.
const busy = 0.6

// capacity derives cores and connections, from the settings with the middle trip: processor
// time with the callers that keep the machine busy, the median with one.
func (r *report) capacity() string {
	var t markdown
	trip, many := r.trips[len(r.trips)/2], r.callers[len(r.callers)/2]
	fmt.Fprintf(&t, "%s\n\nCost of a first request, at a round trip of %s to the stores: processor time with %d callers, and the median with %d:\n\n",
		conditions(r.load), ms(trip), many, r.callers[0])
	t.head("", "service", "PostgreSQL", "Redis", "median")
	for _, name := range sized {
		if c := r.find(name, first, trip, many); c != nil {
			row := []string{c.says}
			for i := range c.cpu {
				row = append(row, process(c, i, fmt.Sprintf("%.0f µs", micros(c.each(i)))))
			}
			t.row(append(row, short3(milliseconds(r.alone(c)))+" ms")...)
		}
	}
	fmt.Fprintf(&t, "\nThis gives, with processors that are busy to %.0f %%:\n\n", busy*100)
	t.head("", "requests/s", "cores of services", "cores of PostgreSQL", "cores of Redis", "connections to PostgreSQL")
	for _, name := range sized {
		c := r.find(name, first, trip, many)
		if c == nil {
			continue
		}
		for _, rate := range []int{100, 1000, 10_000} {
			row := []string{c.says, fmt.Sprint(rate)}
			for i := range c.cpu {
				row = append(row, process(c, i, cores(float64(rate)*c.each(i).Seconds()/busy)))
			}
			t.row(append(row, fmt.Sprint(connectionsFor(float64(rate), r.alone(c))))...)
		}
	}
	return t.String()
}

// alone is the median of one caller, who waits for no other.
func (r *report) alone(c *cell) time.Duration {
	if one := r.find(c.contender.name, first, c.trip, r.callers[0]); one != nil {
		return one.quantile(500)
	}
	return c.quantile(500)
}

// process leaves out what a contender does not use.
func process(c *cell, i int, says string) string {
	if i == 2 && !c.redis {
		return "–"
	}
	return says
}

func cores(n float64) string {
	if n < 0.1 {
		return "under 0.1"
	}
	return strconv.FormatFloat(n, 'f', 1, 64)
}

// connectionsFor is how many requests are in progress at a rate (Little's law), twice, for peaks.
func connectionsFor(rate float64, each time.Duration) int {
	return max(2, int(2*rate*each.Seconds()+0.999))
}
