package model

import (
	"github.com/stet-go/stet/store"
)

// The store, as the contract of store.Store has it, one atomic step a method.
// ok is that it answered success.

// to takes the record along an arrow.
func (r *record) to(v store.Verb) bool {
	next, ok := r.state.Next(v)
	if ok {
		r.state = next
	}
	return ok
}

// claim answers whether the fingerprint was right.
func (m *explorer) claim(s *state, msg message) (matches bool) {
	r := &s.rec
	switch {
	case r.state == store.None:
		r.other = msg.other
		m.grant(s, msg.owner)
	case r.other != msg.other && m.Rule != "mismatch unchecked":
		return false
	case r.state == store.Running && r.owner == msg.owner:
	case r.state == store.Running && (r.lapsed || m.Rule == "live leases marked unknown"):
		m.markUnknown(s)
		if m.Rule == "expired runs run again" {
			r.to(store.VerbRelease)
			m.grant(s, msg.owner)
		}
	case r.state == store.Retryable && (r.owner != msg.owner || m.Rule == "an owner claims twice"):
		if r.owner == msg.owner {
			m.accuse("an owner was granted a second claim")
		}
		m.grant(s, msg.owner)
	case m.Rule == "claim without existence check" && r.state == store.Running:
		m.grant(s, msg.owner)
	}
	return true
}

func (m *explorer) grant(s *state, owner uint8) {
	r := &s.rec
	if _, ok := r.state.Next(store.VerbClaim); !ok {
		r.state = store.Retryable // only under a broken rule
	}
	r.to(store.VerbClaim)
	r.owner, r.lapsed = owner, false
	if m.Rule != "fences stay" || r.fence == 0 {
		r.fence++
	}
}

func (m *explorer) markUnknown(s *state) {
	if !s.rec.lapsed {
		m.accuse("marked unknown under a live lease")
	}
	if m.Policy == TakeOver {
		s.marked |= bit(s.rec.fence)
	}
	s.rec.to(store.VerbMarkUnknown)
	s.rec.lapsed = false
}

func (m *explorer) extend(s *state, msg message) {
	r := &s.rec
	if r.state == store.Running && (r.fence == msg.fence || m.Rule == "no fence on extend") {
		m.written(r, msg)
		r.lapsed = false
	}
}

func (m *explorer) settle(s *state, msg message) (ok bool) {
	r := &s.rec
	if r.fence != msg.fence && m.Rule != "no fence on settle" {
		return false
	}
	v := store.VerbFail
	if msg.out.is(success) {
		v = store.VerbComplete
	}
	if r.state.Settled() {
		if m.Rule == "a second outcome accepted" {
			r.out = msg.out
		}
		return r.out == msg.out
	}
	if !r.to(v) {
		return false
	}
	m.written(r, msg)
	r.out, r.lapsed = msg.out, false
	return true
}

func (m *explorer) release(s *state, msg message) (ok bool) {
	r := &s.rec
	if r.fence != msg.fence && m.Rule != "no fence on release" {
		return false
	}
	if r.state == store.Retryable {
		return true
	}
	if !r.to(store.VerbRelease) {
		return false
	}
	m.written(r, msg)
	r.lapsed = false
	return true
}

// written notes a write under msg's fence.
func (m *explorer) written(r *record, msg message) {
	if r.fence != msg.fence {
		m.accuse("a stale fence wrote")
	}
}

// effect is the other side's part; it answers whether it was done.
func (m *explorer) effect(s *state, msg message) (ok bool) {
	if s.refused&bit(msg.fence) != 0 && m.Rule != "the other side refuses nothing" {
		return false
	}
	s.effects |= bit(msg.fence)
	return true
}

// do carries out a message whose reply no caller receives.
func (m *explorer) do(s *state, msg message) {
	switch msg.verb {
	case claim:
		m.claim(s, msg)
	case extend:
		m.extend(s, msg)
	case settle:
		m.settle(s, msg)
	case release:
		m.release(s, msg)
	case effect:
		m.effect(s, msg)
	}
}
