package demo

import (
	"fmt"
	"io"
	"strings"
)

// WriteTable writes the report side by side, and a sentence of what it means.
func (r Report) WriteTable(w io.Writer) error {
	var b strings.Builder
	line := func(what string, without, with any) { fmt.Fprintf(&b, "%-26s%15v%15v\n", what, without, with) }
	row := func(what string, of func(Result) int) { line(what, of(r.Without), of(r.With)) }
	line("", "without stet", "with stet")
	row("attempts (HTTP requests)", func(r Result) int { return r.Attempts })
	row("payments", func(r Result) int { return r.Operations })
	row("charged once", func(r Result) int { return r.ExecutedOnce })
	row("charged twice or more", func(r Result) int { return r.ExecutedTwice })
	row("lost", func(r Result) int { return r.Lost })
	row("answers replayed", func(r Result) int { return r.Replayed })
	if r.Async {
		row("accepted (202)", func(r Result) int { return r.Accepted })
	}
	row("conflicts (409, in flight)", func(r Result) int { return r.Conflicts })
	row("parked (outcome unknown)", func(r Result) int { return r.Unknown })
	line("charged too much", euros(r.Without.Overcharged), euros(r.With.Overcharged))
	_, err := fmt.Fprintf(w, "%s\n%s\n", b.String(), r.Meaning())
	return err
}

// Meaning says in plain words what came of the storms.
func (r Report) Meaning() string {
	if len(r.Violations) > 0 {
		return "stet did not keep its promise: " + strings.Join(r.Violations, "; ") + "."
	}
	where, killed := "With stet", "the server was"
	if r.Proxied {
		where, killed = "Behind stet's proxy", "service and proxy were"
	}
	got := "got the same answer"
	if r.Async {
		got = "was told the same URL and outcome"
	}
	text := fmt.Sprintf("%s each of the %d payments was charged exactly once, and every client of a payment %s,\n"+
		"although %s killed %d times with %d requests in flight%s.", where, r.With.Operations, got, killed, r.With.Kills, r.With.InFlightAtKills, untold(r.With.CutOff))
	if r.Without.ExecutedTwice == 0 {
		return "The storm was too mild to do harm even without stet: ask for more --payments or --attempts.\n" + text
	}
	return fmt.Sprintf("Without stet %d of %d payments were charged more than once: %s too much.\n",
		r.Without.ExecutedTwice, r.Without.Operations, euros(r.Without.Overcharged)) + text
}

// untold names the moment that matters most, if a kill has met it.
func untold(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf(", at %d of which the charge\nstood already and no client knew", n)
}

func euros(cents int64) string { return fmt.Sprintf("%d.%02d EUR", cents/100, cents%100) }
