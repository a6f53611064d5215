package stet

import "github.com/stet-go/stet/internal/coding"

func init() {
	coding.Give = func(outcome any) {
		if o, ok := outcome.(*Outcome); ok && len(o.Body) > 0 {
			o.given = &o.Body[0]
		}
	}
	coding.Keeps = func(engine any) bool {
		e, ok := engine.(*Engine)
		return ok && e.sealer.first == nil
	}
}

// isGiven reports whether the engine may keep the body as it is: see coding.Give.
func (o *Outcome) isGiven() bool { return len(o.Body) > 0 && o.given == &o.Body[0] }
