package main

import (
	"context"
	"fmt"

	"github.com/stet-go/stet/bench/internal/rounds"
)

// goal is how much more an operation may cost with the most records than with the fewest.
const goal = 1.15

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
func (o *options) tell(name string, places []*place, rates map[string][]float64) {
	fewest := places[0]
	for _, t := range turns {
		base := rates[fmt.Sprint(t.name, " ", fewest.size)]
		for _, p := range places {
			r := rates[fmt.Sprint(t.name, " ", p.size)]
			cost := rounds.Ratio(base, r)
			fmt.Printf("%-10s %-7s %9d records: %8.1f µs, %.2f times the cost at %d", titles[name], t.name, p.size, 1e6/rounds.Median(r), cost, fewest.size)
			if p.written != nil {
				fmt.Printf(", %.0f B of WAL", float64(p.wal[t.name])/float64(p.ops[t.name]))
			}
			fmt.Println()
			if p != fewest {
				rounds.Figure(fmt.Sprintf("scale_%s_%s_%d", name, t.name, p.size), cost, fmt.Sprintf("x the cost at %d (goal: at most %v)", fewest.size, goal))
			}
			if p.written != nil {
				rounds.Figure(fmt.Sprintf("scale_%s_%s_wal_%d", name, t.name, p.size), float64(p.wal[t.name])/float64(p.ops[t.name]), "B")
			}
		}
	}
}
