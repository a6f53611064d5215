package demo

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
)

// Report has the results of both loads.
type Report struct {
	Without    Result   `json:"without"`
	With       Result   `json:"with"`
	Violations []string `json:"violations"` // the promises that stet broke
	Seed       uint64   `json:"seed"`
}

// Result compares the responses of the clients with the ledger.
type Result struct {
	Requests    int   `json:"requests"`
	Payments    int   `json:"payments"`
	Once        int   `json:"charged_once"`
	Twice       int   `json:"charged_twice"` // or more often
	Lost        int   `json:"lost"`          // without a charge that the response names, or without a response
	Differing   int   `json:"differing"`     // payments whose responses differ
	Replayed    int   `json:"replayed"`
	Conflicts   int   `json:"conflicts"` // responses 409
	Unknown     int   `json:"unknown"`   // payments whose last response was 504
	Overcharged int64 `json:"overcharged"`

	Kills           int `json:"kills"`
	InFlightAtKills int `json:"in_flight_at_kills"`
}

func compare(orders []*order, ledger []charge) (r Result) {
	r.Payments = len(orders)
	rows := map[payment][]charge{}
	for _, c := range ledger {
		rows[c.payment] = append(rows[c.payment], c)
	}
	for _, o := range orders {
		charged := rows[o.payment]
		if len(charged) == 1 {
			r.Once++
		}
		if len(charged) > 1 {
			r.Twice++
			r.Overcharged += int64(len(charged)-1) * o.Amount
		}
		if len(o.responses) > 1 {
			r.Differing++
		}
		lost := len(o.responses) == 0 && !o.unknown
		for body := range o.responses {
			var c charge
			lost = lost || json.Unmarshal([]byte(body), &c) != nil || !slices.Contains(charged, c)
		}
		if lost || o.refused {
			r.Lost++
		}
		if len(o.responses) == 0 && o.unknown {
			r.Unknown++
		}
	}
	return r
}

// violations has the promises that the load with stet found broken.
func violations(r Result) []string {
	broken := []string{} // never null in JSON
	for _, v := range []struct {
		n    int
		what string
	}{
		{r.Twice, "charged more than once"},
		{r.Lost, "lost: refused, without a response, or not in the ledger as the response says"},
		{r.Differing, "with responses that differ"},
		{r.Unknown, "unknown, although a transaction leaves nothing unknown"},
		{r.Payments - r.Once - r.Twice - r.Lost - r.Unknown, "not charged"},
	} {
		if v.n > 0 {
			broken = append(broken, fmt.Sprintf("payments %s: %d", v.what, v.n))
		}
	}
	return broken
}

// WriteTable writes both results side by side, and their meaning.
func (r Report) WriteTable(w io.Writer) error {
	var b strings.Builder
	row := func(what string, without, with any) { fmt.Fprintf(&b, "%-27s%15v%15v\n", what, without, with) }
	row("", "without stet", "with stet")
	row("requests", r.Without.Requests, r.With.Requests)
	row("payments", r.Without.Payments, r.With.Payments)
	row("charged once", r.Without.Once, r.With.Once)
	row("charged twice or more", r.Without.Twice, r.With.Twice)
	row("lost", r.Without.Lost, r.With.Lost)
	row("responses replayed", r.Without.Replayed, r.With.Replayed)
	row("conflicts (409, in flight)", r.Without.Conflicts, r.With.Conflicts)
	row("outcome unknown (504)", r.Without.Unknown, r.With.Unknown)
	row("charged too much", euros(r.Without.Overcharged), euros(r.With.Overcharged))
	_, err := fmt.Fprintf(w, "%s\n%s\n", b.String(), r.Meaning())
	return err
}

// Meaning explains the results.
func (r Report) Meaning() string {
	if len(r.Violations) > 0 {
		return "stet broke its promise: " + strings.Join(r.Violations, "; ") + "."
	}
	with := fmt.Sprintf("With stet each of the %d payments was charged exactly once, and its clients got the same response,\n"+
		"although the service was killed %d times with %d requests in flight.", r.With.Payments, r.With.Kills, r.With.InFlightAtKills)
	if r.Without.Twice == 0 {
		return "Without stet no payment was charged twice this time: ask for more --payments or --clients.\n" + with
	}
	return fmt.Sprintf("Without stet %d of %d payments were charged more than once: %s too much.\n", r.Without.Twice, r.Without.Payments, euros(r.Without.Overcharged)) + with
}

func euros(cents int64) string { return fmt.Sprintf("%d.%02d EUR", cents/100, cents%100) }
