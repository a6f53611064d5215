package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/stet-go/stet/bench/internal/chart"
	"github.com/stet-go/stet/bench/internal/rounds"
)

// report is what a run has measured.
type report struct {
	settings
	cells []*cell
	twice []twice
	sums  []sum

	begun     int       // settings
	measured  int       // measurements
	measuring time.Time // since when
}

// add keeps a cell, and tells it.
func (r *report) add(c *cell) {
	r.cells = append(r.cells, c)
	fmt.Printf("%-46s %-6s %5s %2d callers %7.0f/s  p50 %7.2f  p99 %7.2f ms  cpu: service %4.0f, PostgreSQL %4.0f, Redis %4.0f us\n",
		c.says, c.what, tripName(c.trip), c.callers, c.rate(), milliseconds(c.quantile(500)), milliseconds(c.quantile(990)),
		micros(c.each(0)), micros(c.each(1)), micros(c.each(2)))
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
func micros(d time.Duration) float64       { return float64(d) / float64(time.Microsecond) }

// find returns a cell, or nil.
func (r *report) find(name, what string, trip time.Duration, callers int) *cell {
	for _, c := range r.cells {
		if c.contender.name == name && c.what == what && c.trip == trip && c.callers == callers {
			return c
		}
	}
	return nil
}

// print tells all figures, and returns which promises are broken.
func (r *report) print() error {
	for _, c := range r.cells {
		name := c.name()
		rounds.Figure(name+"_rate", c.rate(), "requests/s")
		rounds.Figure(name+"_p50", milliseconds(c.quantile(500)), "ms")
		rounds.Figure(name+"_p99", milliseconds(c.quantile(990)), "ms")
		rounds.Figure(name+"_cpu_service", micros(c.each(0)), "us")
		rounds.Figure(name+"_cpu_postgres", micros(c.each(1)), "us")
		if c.redis {
			rounds.Figure(name+"_cpu_redis", micros(c.each(2)), "us")
		}
	}
	r.printGoals()
	err := r.promises()
	if err != nil || r.docs == "" {
		return err
	}
	return errors.Join(r.draw(), r.write())
}

// promises tells what was executed twice.
func (r *report) promises() (err error) {
	if len(r.twice) > 0 {
		fmt.Printf("\n%d keys, each sent to two processes at once\n", r.keys)
	}
	for _, t := range r.twice {
		fmt.Printf("%-46s %4d executions; %3d keys have two different receipts\n", t.says, t.executions, t.differing)
		rounds.Figure("endtoend_"+t.name+"_double_executions", float64(t.executions-r.keys), fmt.Sprint("of ", r.keys, " keys"))
		rounds.Figure("endtoend_"+t.name+"_double_receipts", float64(t.differing), fmt.Sprint("of ", r.keys, " keys"))
		if t.ours && (t.executions != r.keys || t.differing != 0) {
			err = errors.Join(err, fmt.Errorf("a promise is broken: %s executed a key twice, or gave two answers to one", t.name))
		}
	}
	for _, s := range r.sums {
		if s.ours && (s.rows != s.keys || s.rows != s.requests) {
			err = errors.Join(err, fmt.Errorf("a promise is broken: %s executed %d requests of %d with %d different keys", s.name, s.rows, s.requests, s.keys))
		}
	}
	return err
}

// goal compares a rate with another's: at least so much of it.
type goal struct {
	of, beside string
	what       []string
	least      float64
	applies    func(trip time.Duration, callers int) bool
}

func everywhere(time.Duration, int) bool      { return true }
func manyCallers(_ time.Duration, n int) bool { return n == 64 }

var both = []string{first, replay}

var goals = []goal{
	{"stet_tx", "byhand", both, 1.15, everywhere},
	{"stet_tx", "byhand_plain", both, 1.15, everywhere},
	{"stet_tx", "bare", []string{first}, 0.9, manyCallers},
	{"stet_lease", "byhand", both, 1, everywhere},
	{"stet_sqlite", "byhand", both, 1, everywhere},
	{"stet_redis", "byhand", both, 1, everywhere},
	{"stet_redis", "fiber3_redis", both, 1, everywhere},
	{"stet_redis", "fiber2_redis", both, 1, everywhere},
}

// slowNetwork is where the median of transactions is compared with the bare handler's.
const slowNetwork = 2 * time.Millisecond

func (r *report) printGoals() {
	fmt.Printf("\ngoals: rates are compared round by round; a miss fails nothing\n")
	for _, g := range goals {
		for _, trip := range r.trips {
			for _, callers := range r.callers {
				for _, what := range g.what {
					if g.applies(trip, callers) {
						r.printGoal(g, what, trip, callers)
					}
				}
			}
		}
	}
	for _, callers := range r.callers {
		one, other := r.find("stet_tx", first, slowNetwork, callers), r.find("bare", first, slowNetwork, callers)
		if one != nil && other != nil {
			ratio := float64(one.quantile(500)) / float64(other.quantile(500))
			tell(fmt.Sprintf("endtoend_goal_p50_stet_tx_bare_%s_%d", tripName(slowNetwork), callers), ratio, "at most 1.05", ratio <= 1.05)
		}
	}
}

func (r *report) printGoal(g goal, what string, trip time.Duration, callers int) {
	one, other := r.find(g.of, what, trip, callers), r.find(g.beside, what, trip, callers)
	if one == nil || other == nil {
		return
	}
	ratio := rounds.Ratio(one.rates, other.rates)
	tell(figureName("goal_"+g.of+"_"+g.beside, what, trip, callers), ratio, fmt.Sprint("at least ", g.least), ratio >= g.least)
}

func tell(name string, ratio float64, want string, met bool) {
	rounds.Figure(name, ratio, "x")
	if !met {
		fmt.Printf("goal missed: %s is %.3g, %s was wanted\n", name, ratio, want)
	}
}

// drawn are the contenders in charts: as many as there are colours.
var drawn = []string{"bare", "byhand", "stet_tx", "stet_lease", "stet_redis", "fiber3_redis"}

// labels are their names in legends.
var labels = map[string]string{
	"bare": "bare handler", "byhand": "table by hand", "stet_tx": "stethttp.NewTx", "stet_lease": "stethttp.New, PostgreSQL",
	"stet_redis": "stethttp.New, Redis", "fiber3_redis": "Fiber's, Redis",
}

// draw writes the charts.
func (r *report) draw() error {
	most, middle := r.callers[len(r.callers)-1], r.callers[len(r.callers)/2]
	charts := []struct {
		file, title, unit string
		what              string
		callers           int
		value             func(*cell) float64
	}{
		{"endtoend-rate.svg", fmt.Sprintf("First requests, %d callers", most), "requests/s", first, most, (*cell).rate},
		{"endtoend-p50.svg", fmt.Sprintf("First requests, %d callers: median", middle), "ms", first, middle, func(c *cell) float64 { return milliseconds(c.quantile(500)) }},
		{"endtoend-replay.svg", fmt.Sprintf("Replays, %d callers", most), "requests/s", replay, most, (*cell).rate},
		{"endtoend-cpu.svg", fmt.Sprintf("Processor time of a first request, %d callers", middle), "µs", first, middle, func(c *cell) float64 { return micros(c.total()) }},
	}
	for _, ch := range charts {
		bars := chart.Bars{Title: ch.title, Y: chart.Axis{Name: ch.unit}}
		if rough(r.load) {
			bars.Title += " (rough: a busy machine)"
		}
		for _, trip := range r.trips {
			bars.Groups = append(bars.Groups, "round trip "+ms(trip))
		}
		for _, name := range drawn {
			series := chart.Bar{Name: labels[name]}
			for _, trip := range r.trips {
				if c := r.find(name, ch.what, trip, ch.callers); c != nil {
					series.Values = append(series.Values, ch.value(c))
				}
			}
			if len(series.Values) == len(r.trips) {
				bars.Series = append(bars.Series, series)
			}
		}
		if err := chart.Save(filepath.Join(r.docs, "charts", ch.file), bars); err != nil {
			return err
		}
	}
	return nil
}
