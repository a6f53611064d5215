package model

import (
	"math/bits"
	"slices"

	"github.com/stet-go/stet/store"
)

// plain returns s without what makes no difference: which of two workers that
// ask for the same is which, in which order late messages are listed, what
// owners and fences are called, and names that no message will use again. Two
// states that are plainly the same have the same future.
func (m *explorer) plain(s state) state {
	if s.rec.state.Settled() {
		s.rec.owner = noOwner
	}
	alike := s.workers[:]
	if m.Other {
		alike = alike[:Workers-1]
	}
	slices.SortFunc(alike, func(a, b worker) int { return s.rank(a) - s.rank(b) })
	slices.SortFunc(s.late[:], func(a, b message) int { return b.rank() - a.rank() })
	s.renameOwners()
	s.renameFences()
	slices.SortFunc(s.late[:], func(a, b message) int { return b.rank() - a.rank() })
	return s
}

// rank orders workers by all but what their owners are called.
func (s *state) rank(w worker) int {
	r := int(w.phase)<<24 | int(w.minted)<<16 | int(w.fence)<<8 | int(w.out)
	if w.owner == 0 {
		return r
	}
	if s.rec.owner == w.owner {
		r |= 1 << 32
	}
	for _, l := range s.late {
		if l.verb == claim && l.owner == w.owner {
			r += 1 << 33
		}
	}
	return r
}

// rank orders messages by all but what their owners are called, if it can.
func (m message) rank() int {
	return int(m.verb)<<24 | int(m.fence)<<16 | int(m.out)<<8 | int(m.owner)
}

// renameOwners calls owners by the place where they are first named.
func (s *state) renameOwners() {
	var names [noOwner + 1]uint8
	next := uint8(1)
	name := func(o *uint8) {
		if *o == 0 || *o == noOwner {
			return
		}
		if names[*o] == 0 {
			names[*o] = next
			next++
		}
		*o = names[*o]
	}
	for i := range s.workers {
		name(&s.workers[i].owner)
	}
	for i := range s.late {
		name(&s.late[i].owner)
	}
	if s.rec.state == store.None || s.rec.owner != noOwner && names[s.rec.owner] == 0 {
		s.rec.owner = noOwner
	}
	name(&s.rec.owner)
}

// free is an unused owner.
func (s *state) free() uint8 {
	for o := uint8(1); ; o++ {
		taken := s.rec.owner == o
		for _, w := range s.workers {
			taken = taken || w.owner == o
		}
		for _, l := range s.late {
			taken = taken || l.owner == o
		}
		if !taken {
			return o
		}
	}
}

// renameFences counts fences without gaps, in their order.
func (s *state) renameFences() {
	var acting uint16 // that may have their effect yet
	named := bit(s.rec.fence) | bit(s.rec.out.fence()) | bit(s.operator.fence) | bit(s.operator.out.fence()) | s.effects
	for _, w := range s.workers {
		named |= bit(w.fence) | bit(w.out.fence())
		if w.phase == running {
			acting |= bit(w.fence)
		}
	}
	for _, l := range s.late {
		named |= bit(l.fence) | bit(l.out.fence())
		if l.verb == effect {
			acting |= bit(l.fence)
		}
	}
	s.refused &= acting
	s.marked &= acting | s.effects | bit(s.rec.fence)
	named |= 1 // no fence
	if named&(named+1) == 0 {
		return // no gaps
	}
	name := func(f uint8) uint8 { return uint8(bits.OnesCount16(named & (bit(f) - 1))) }
	rename := func(f *uint8, o *out) {
		*f = name(*f)
		if *o != none {
			*o = *o&^fences | out(name(o.fence()))
		}
	}
	set := func(fs uint16) (renamed uint16) {
		for ; fs != 0; fs &= fs - 1 {
			renamed |= bit(name(uint8(bits.TrailingZeros16(fs))))
		}
		return renamed
	}
	rename(&s.rec.fence, &s.rec.out)
	rename(&s.operator.fence, &s.operator.out)
	for i := range s.workers {
		rename(&s.workers[i].fence, &s.workers[i].out)
	}
	for i := range s.late {
		rename(&s.late[i].fence, &s.late[i].out)
	}
	s.effects, s.refused, s.marked = set(s.effects), set(s.refused), set(s.marked)
}
