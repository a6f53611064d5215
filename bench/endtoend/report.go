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
	err := r.promises()
	if err != nil || r.docs == "" {
		return err
	}
	return errors.Join(r.draw(), r.write())
}

// promises reports operations that were executed twice.
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
		bars := chart.Bars{Title: ch.title, Unit: ch.unit}
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
