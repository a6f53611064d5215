package crash

import (
	"encoding/json"
	"fmt"
)

const (
	statusCharged = 201
	statusUnknown = 504
)

// Answer is what a client was told at last about a payment.
type Answer struct {
	Key    string
	Amount int
	Status int
	Body   string
}

// Verdict is what the judge found.
type Verdict struct {
	Payments   int
	Once       int // charged once and told so
	Unknown    int // told unknown at last, whatever the ledger says
	Violations []string
}

// Judge compares what clients were told with the ledger. Every payment has one
// or more answers: of its first definite one, and of retries of it. mayBeUnknown
// is whether a dead run may leave a payment unknown.
func Judge(answers map[string][]Answer, ledger []Charge, mayBeUnknown bool) Verdict {
	v := Verdict{Payments: len(answers)}
	accuse := func(format string, args ...any) { v.Violations = append(v.Violations, fmt.Sprintf(format, args...)) }
	charges := make(map[string][]Charge)
	for _, c := range ledger {
		charges[c.Key] = append(charges[c.Key], c)
		if _, ok := answers[c.Key]; !ok {
			accuse("charge %s belongs to no payment", c.ID)
		}
	}
	for key, got := range answers {
		made := charges[key]
		if len(made) > 1 {
			accuse("payment %s was charged %d times", key, len(made))
		}
		if len(got) == 0 {
			accuse("payment %s has no definite answer", key)
			continue
		}
		for len(got) > 1 && got[0].Status == statusUnknown && mayBeUnknown {
			got = got[1:] // unknown is no outcome: its owner may have settled late
		}
		for _, a := range got[1:] {
			if a.Status != got[0].Status || a.Body != got[0].Body {
				accuse("payment %s was answered %d %q, then %d %q", key, got[0].Status, got[0].Body, a.Status, a.Body)
			}
		}
		switch a := got[0]; {
		case a.Status == statusCharged:
			var said Charge
			err := json.Unmarshal([]byte(a.Body), &said)
			if err != nil || len(made) != 1 || said != made[0] {
				accuse("payment %s was answered %q, but the ledger has %v", key, a.Body, made)
				continue
			}
			v.Once++
		case a.Status == statusUnknown && mayBeUnknown:
			v.Unknown++
		default:
			accuse("payment %s was answered %d %q at last", key, a.Status, a.Body)
		}
	}
	return v
}
