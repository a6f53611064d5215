package demo

import (
	"encoding/json"
	"fmt"
)

// Result is what came of one storm. The first nine count what the ledger and
// the clients agree or disagree on; the rest says how rough it was.
type Result struct {
	Attempts      int `json:"attempts"`       // HTTP requests sent
	Operations    int `json:"operations"`     // payments
	ExecutedOnce  int `json:"executed_once"`  // payments with one row in the ledger
	ExecutedTwice int `json:"executed_twice"` // payments with two rows or more
	Lost          int `json:"lost"`           // payments acknowledged and not in the ledger as acknowledged, or never answered
	Replayed      int `json:"replayed"`       // answers marked Idempotent-Replayed
	Conflicts     int `json:"conflicts"`      // answers 409: still in flight
	Accepted      int `json:"accepted"`       // answers 202
	Unknown       int `json:"unknown"`        // payments whose last word was 504 outcome unknown

	Differing   int   `json:"differing"`    // payments acknowledged with answers that differ
	Refused     int   `json:"refused"`      // payments refused for good, which none deserved
	Strays      int   `json:"strays"`       // rows of the ledger that no payment asked for
	Charges     int   `json:"charges"`      // rows of the ledger
	Overcharged int64 `json:"overcharged"`  // taken beyond the first charge of each payment, in cents
	HungUp      int   `json:"hung_up"`      // requests that their client gave up
	Broken      int   `json:"broken"`       // requests whose connection failed
	ServerError int   `json:"server_error"` // answers 5xx

	Kills           int     `json:"kills"`
	InFlightAtKills int     `json:"in_flight_at_kills"` // requests in flight, over all kills
	CutOff          int     `json:"cut_off"`            // payments in the ledger at a kill, whose client had no answer yet
	CutShort        bool    `json:"cut_short"`          // the storm did not end by itself within its limit
	Seconds         float64 `json:"seconds"`
}

// observed is what the clients of one payment were told.
type observed struct {
	payment
	acks    map[string]int // the distinct bodies of 2xx answers, or outcomes, and how often each came
	urls    map[string]int // where 202 said that the outcome would be
	refused bool           // a definite answer that was not 2xx
	parked  bool           // the last answer, if not the last request, was 504
}

// account compares what the clients were told with what the ledger says.
func account(told []observed, ledger []charge) (r Result) {
	rows := make(map[string][]charge, len(told))
	asked := make(map[payment]bool, len(told))
	for _, o := range told {
		asked[o.payment] = true
	}
	for _, c := range ledger {
		if !asked[payment{c.Payment, c.Amount}] {
			r.Strays++
		}
		rows[c.Payment] = append(rows[c.Payment], c)
	}
	r.Operations, r.Charges = len(told), len(ledger)
	for _, o := range told {
		booked := rows[o.Payment]
		switch n := len(booked); {
		case n == 1:
			r.ExecutedOnce++
		case n > 1:
			r.ExecutedTwice++
			for _, c := range booked[1:] {
				r.Overcharged += c.Amount
			}
		}
		switch {
		case len(o.acks) > 0:
			if !allBooked(o.acks, booked) {
				r.Lost++
			}
		case o.refused:
			r.Refused++
		case o.parked:
			r.Unknown++
		default:
			r.Lost++
		}
		if len(o.acks) > 1 || len(o.urls) > 1 {
			r.Differing++
		}
	}
	return r
}

// allBooked reports whether each acknowledged answer names a row of the ledger.
func allBooked(acks map[string]int, booked []charge) bool {
	for body := range acks {
		var c charge
		if err := json.Unmarshal([]byte(body), &c); err != nil {
			return false
		}
		found := false
		for _, b := range booked {
			found = found || b == c
		}
		if !found {
			return false
		}
	}
	return true
}

// violations says which promises the storm with stet found broken.
func violations(r Result) []string {
	broken := []string{} // never null in JSON
	for _, v := range []struct {
		n    int
		what string
	}{
		{r.ExecutedTwice, "charged more than once"},
		{r.Lost, "lost: acknowledged but not in the ledger as acknowledged, or never answered"},
		{r.Unknown, "parked as unknown, though it can be known"},
		{r.Differing, "acknowledged with answers that differ"},
		{r.Refused, "refused, though nothing was wrong with them"},
		{r.Strays, "in the ledger that no client asked for"},
	} {
		if v.n > 0 {
			broken = append(broken, fmt.Sprintf("payments %s: %d", v.what, v.n))
		}
	}
	if n := r.Operations - r.ExecutedOnce - r.ExecutedTwice - r.Lost - r.Unknown - r.Refused; n > 0 {
		broken = append(broken, fmt.Sprintf("payments without a charge and without a reason: %d", n))
	}
	if r.CutShort {
		broken = append(broken, "not everybody was answered in time: a machine that is too slow, or requests that hang")
	}
	return broken
}
