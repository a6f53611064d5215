package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/stet-go/stet/bench/internal/chart"
	"github.com/stet-go/stet/bench/internal/rounds"
)

// goal is how much more an operation may cost with the most records than with the fewest.
const goal = 1.15

// drawing is what the charts show.
type drawing struct {
	costs map[string][]chart.Series // of each store, by operation
	days  []chart.Series            // by store
}

var titles = map[string]string{"postgres": "PostgreSQL", "sqlite": "SQLite", "redis": "Redis"}

// weigh prints what a record takes.
func weigh(ctx context.Context, name string, p *place) error {
	all, err := p.weigh(ctx)
	if err != nil {
		return err
	}
	for _, w := range all {
		of := ""
		if w.what != "" {
			of = "_" + w.what
		}
		rounds.Figure(fmt.Sprintf("scale_%s_bytes%s_%d", name, of, p.size), w.bytes/float64(p.size), "B/record")
	}
	disk, err := p.held(ctx)
	progress("%s: %.2f GB of disk in use", name, disk/1e9)
	return err
}

// tell prints what operations cost by how many records there are.
func (o *options) tell(name string, places []*place, rates map[string][]float64, d *drawing) {
	fewest := places[0]
	for _, t := range turns {
		series := chart.Series{Name: t.name}
		base := rates[fmt.Sprint(t.name, " ", fewest.size)]
		for _, p := range places {
			r := rates[fmt.Sprint(t.name, " ", p.size)]
			cost := rounds.Ratio(base, r)
			fmt.Printf("%-10s %-7s %9d records: %8.1f µs, %.2f times the cost at %d", titles[name], t.name, p.size, 1e6/rounds.Median(r), cost, fewest.size)
			if p.written != nil {
				fmt.Printf(", %.0f B of WAL", float64(p.wal[t.name])/float64(p.ops[t.name]))
			}
			fmt.Println()
			series.Points = append(series.Points, chart.Point{X: float64(p.size), Y: cost})
			if p != fewest {
				rounds.Figure(fmt.Sprintf("scale_%s_%s_%d", name, t.name, p.size), cost, fmt.Sprintf("x the cost at %d (goal: at most %v)", fewest.size, goal))
			}
			if p.written != nil {
				rounds.Figure(fmt.Sprintf("scale_%s_%s_wal_%d", name, t.name, p.size), float64(p.wal[t.name])/float64(p.ops[t.name]), "B")
			}
		}
		d.costs[name] = append(d.costs[name], series)
	}
}

// tellDays prints what has become of a store over days. The first one ends before anything
// is forgotten, so those after it are the ones to compare with.
func (o *options) tellDays(name string, all []dayOf, d *drawing) {
	series := chart.Series{Name: titles[name], Points: []chart.Point{{}}}
	for i, day := range all {
		series.Points = append(series.Points, chart.Point{X: float64(i + 1), Y: day.size / 1e6})
	}
	d.days = append(d.days, series)
	last := all[len(all)-1]
	kept := float64(o.rate) * o.day.Seconds()
	rounds.Figure("scale_days_"+name+"_size", last.size/kept, "B for each record that is kept")
	if last.disk > 0 {
		rounds.Figure("scale_days_"+name+"_files", last.disk/kept, "B for each record that is kept")
	}
	if last.indexes > 0 {
		rounds.Figure("scale_days_"+name+"_dead", last.peak/kept, "dead versions at most, for each record that is kept")
	}
	written := 0.0 // on a day on which Redis writes its file anew, less is seen than was written
	for _, day := range all {
		written = max(written, day.wal)
	}
	if written > 0 {
		rounds.Figure("scale_days_"+name+"_written", written, "B for each request, with its expiry and its removal, on the day with most")
	}
	if len(all) < 5 {
		return
	}
	// Of two days each, as long as it is from one checkpoint to the next.
	grown := func(what string, of func(dayOf) float64) {
		early, late := of(all[1])+of(all[2]), of(all[len(all)-2])+of(last)
		if early > 0 {
			rounds.Figure("scale_days_"+name+"_"+what+"_growth", late/early, fmt.Sprintf("x days 2 and 3, on days %d and %d", len(all)-1, len(all)))
		}
	}
	grown("size", func(d dayOf) float64 { return d.size })
	grown("indexes", func(d dayOf) float64 { return d.indexes })
	grown("dead", func(d dayOf) float64 { return d.peak })
	if name != "redis" {
		grown("written", func(d dayOf) float64 { return d.wal })
	}
}

// save draws the charts.
func (d *drawing) save(dir string) error {
	var err error
	for name, costs := range d.costs {
		err = errors.Join(err, chart.Save(chartFile(dir, "scale-"+name), chart.Lines{
			Title: titles[name] + ": what an operation costs by how many records there are", X: chart.Axis{Name: "records", Log: true},
			Y: chart.Axis{Name: "times the cost with the fewest"}, Series: costs, Marks: []chart.Mark{{Y: goal, Name: "goal: at most"}},
		}))
	}
	if len(d.days) > 0 {
		err = errors.Join(err, chart.Save(chartFile(dir, "scale-days"), chart.Lines{
			Title: "What a store takes over days of requests whose records are forgotten", X: chart.Axis{Name: "days"},
			Y: chart.Axis{Name: "MB (PostgreSQL: table and indexes, SQLite: file, Redis: memory)"}, Series: d.days,
		}))
	}
	return err
}
