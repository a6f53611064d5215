package stet

import (
	"context"

	"github.com/stet-go/stet/store"
)

// parts are what a call needs besides its ticket: they are allocated with it, in one
// piece. Each is used once. None is used again, nor lent to another call: goroutines that
// a handler left behind, and stores, may still hold it.
type parts struct {
	flight flight
	claim  joined // of the first claim
	run    leased
	settle joined // of the end of the run

	began, claimed, ran bool // what is taken
}

// leased is a run with what is made for each.
type leased struct {
	lease Lease
	run   Run
	ctx   joined
}

// whole returns a ticket with all parts.
func (e *Engine) whole(ctx context.Context, op Op) (*ticket, error) {
	all := new(struct {
		ticket
		parts
	})
	t := &all.ticket
	t.parts = &all.parts
	return t, e.fill(ctx, t, op)
}

// flightOf returns the flight that the call is to lead.
func (p *parts) flightOf(id store.ID, fp store.Fingerprint) *flight {
	if p == nil || p.began {
		return &flight{id: id, fingerprint: fp}
	}
	p.began = true
	p.flight.id, p.flight.fingerprint = id, fp
	return &p.flight
}

// claiming returns the memory for the context of a claim.
func (p *parts) claiming() *joined {
	if p == nil || p.claimed {
		return new(joined)
	}
	p.claimed = true
	return &p.claim
}

// leased returns the memory for a run.
func (p *parts) leased() *leased {
	if p == nil || p.ran {
		return new(leased)
	}
	p.ran = true
	return &p.run
}
