package model

import (
	"fmt"
	"math/bits"
	"slices"

	"github.com/stet-go/stet/store"
)

// Result is what an exploration came to.
type Result struct {
	States      int // reached
	Transitions int // between them
	Resting     int // states in which nothing has to happen any more
	// Violation is the first promise found broken, "" if none is, and Trace
	// a shortest way there, a step a line.
	Violation string
	Trace     []string
}

// explorer searches all states.
type explorer struct {
	Options
	index  map[state]uint32
	states []state
	parent []uint32 // over which each was reached first
	accuse func(string)

	res Result
}

// Explore searches every state that can be reached, breadth first, until a
// promise is broken.
func Explore(o Options) Result {
	m := &explorer{Options: o, index: make(map[state]uint32)}
	broken := ""
	m.accuse = func(what string) {
		if broken == "" {
			broken = what
		}
	}
	m.add(m.plain(state{}), 0)
	for at := 0; at < len(m.states); at++ {
		s := m.states[at]
		m.steps(s, func(next state, _ bool, what string) {
			m.res.Transitions++
			if m.check(&s, &next); broken != "" {
				if m.res.Violation == "" {
					m.res.Violation = broken
					m.res.Trace = append(m.trace(uint32(at)), what+describe(next))
				}
				return
			}
			m.add(m.plain(next), uint32(at))
		})
		if m.res.Violation != "" {
			break
		}
	}
	m.res.States = len(m.states)
	if m.res.Violation == "" {
		m.rest()
	}
	return m.res
}

func (m *explorer) add(s state, parent uint32) {
	if _, ok := m.index[s]; ok {
		return
	}
	m.index[s] = uint32(len(m.states))
	m.states = append(m.states, s)
	m.parent = append(m.parent, parent)
}

// check compares a step with the promises.
func (m *explorer) check(s, next *state) {
	a, b := s.rec, next.rec
	switch {
	case a.state.Settled() && b != a:
		m.accuse("a settled outcome changed")
	case b.fence < a.fence || a.state != store.None && b.state == store.None:
		m.accuse("a record was forgotten")
	case b.state == store.Running && a.state != store.Running && b.fence <= a.fence:
		m.accuse("a claim was granted without a new fence")
	case b.state == store.Running && a.state == store.Running && a.fence != b.fence:
		m.accuse("a claim was granted where there is no arrow")
	case b.state == store.Completed && next.effects&bit(b.out.fence()) == 0:
		m.accuse("success without an effect")
	case b.fence > 15:
		panic("model: more claims than there are bits")
	}
	if next.effects == 0 {
		return
	}
	if m.Policy == TakeOver {
		// All but the newest ran under leases that had run out when the next
		// one began.
		newest := uint16(1) << (bits.Len16(next.effects) - 1)
		if next.effects&^newest&^next.marked != 0 {
			m.accuse("two effects without a takeover")
		}
		return
	}
	switch {
	case bits.OnesCount16(next.effects) > 1:
		m.accuse("two effects")
	case b.state == store.None || b.state == store.Retryable:
		m.accuse("an effect was forgotten")
	}
}

// rest shows that from every state, once no fault happens any more and
// no caller asks again, the system comes to rest: no path is a cycle, and where a
// path ends, no call is in progress and the record is at rest.
func (m *explorer) rest() {
	const (
		unseen uint8 = iota
		open
		done
	)
	colour := make([]uint8, len(m.states))
	type frame struct {
		at   uint32
		next []uint32
	}
	for root := range m.states {
		if colour[root] != unseen {
			continue
		}
		way := []frame{{uint32(root), m.onward(uint32(root))}}
		colour[root] = open
		for len(way) > 0 {
			f := &way[len(way)-1]
			if len(f.next) == 0 {
				colour[f.at] = done
				way = way[:len(way)-1]
				continue
			}
			to := f.next[0]
			f.next = f.next[1:]
			switch colour[to] {
			case open:
				m.res.Violation = "never at rest"
				m.res.Trace = m.trace(to)
				return
			case unseen:
				colour[to] = open
				way = append(way, frame{to, m.onward(to)})
			}
		}
		if m.res.Violation != "" {
			return
		}
	}
}

// onward are the states that follow without a fault. Where there are none, all
// must be at rest.
func (m *explorer) onward(at uint32) (next []uint32) {
	s := m.states[at]
	m.steps(s, func(to state, fault bool, _ string) {
		to = m.plain(to)
		if !fault && to != s {
			next = append(next, m.index[to])
		}
	})
	if len(next) > 0 {
		return next
	}
	m.res.Resting++
	busy := slices.ContainsFunc(s.workers[:], func(w worker) bool { return w.phase != idle && w.phase != over })
	if busy || s.operator.busy || s.rec.state == store.Running {
		m.res.Violation = "at rest in the middle of something"
		m.res.Trace = m.trace(at)
	}
	return nil
}

// trace is the way to a state.
func (m *explorer) trace(at uint32) (steps []string) {
	for at != 0 {
		from := m.parent[at]
		m.steps(m.states[from], func(next state, _ bool, what string) {
			next = m.plain(next)
			if next == m.states[at] && (len(steps) == 0 || steps[len(steps)-1] != what) {
				what += describe(next)
				if len(steps) == 0 || steps[len(steps)-1] != what {
					steps = append(steps, what)
				}
			}
		})
		at = from
	}
	slices.Reverse(steps)
	return steps
}

// describe says how things stand.
func describe(s state) string {
	text := fmt.Sprintf(": %v, fence %d", s.rec.state, s.rec.fence)
	if s.rec.lapsed {
		text += ", lapsed"
	}
	for i, w := range s.workers {
		if w.phase != idle {
			text += fmt.Sprintf("; worker %d %s", i, phaseNames[w.phase])
		}
	}
	return text
}

var phaseNames = [...]string{"idle", "claims", "runs", "settles", "releases", "asks", "resolves", "gives a claim back", "is over"}
