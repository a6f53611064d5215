package model

import (
	"github.com/stet-go/stet/store"
)

// What workers, the operator and bad luck can do. Each step calls emit with the
// state after it, and whether it takes a fault. A step that changes nothing is
// none.

type emit func(next state, fault bool, what string)

// steps are all steps from s.
func (m *explorer) steps(s state, emit emit) {
	for i := range s.workers {
		m.work(s, i, emit)
	}
	m.arrive(s, emit)
	m.operate(s, emit)
	if s.rec.state == store.Running {
		if next := s; !s.rec.lapsed {
			next.rec.lapsed = true
			emit(next, false, "the lease runs out")
		} else if m.Rule != "no sweeps" {
			m.markUnknown(&next)
			emit(next, false, "a sweep marks the record unknown")
		}
	}
}

// work is what worker i can do.
func (m *explorer) work(s state, i int, emit emit) {
	w := s.workers[i]
	if w.phase != idle && w.phase != over {
		next := s
		next.workers[i] = worker{phase: over}
		emit(next, true, "a worker crashes")
	}
	switch w.phase {
	case idle:
		if i > 0 && s.workers[i-1].phase == idle && m.other(i) == m.other(i-1) {
			return // workers that ask for the same are alike: the first goes first
		}
		next := s
		next.workers[i] = worker{phase: claiming, minted: 1, owner: s.free()}
		emit(next, true, "a worker asks") // optional
	case claiming, settling, releasing, resolving:
		m.call(s, i, emit)
	case running:
		m.run(s, i, emit)
	case asking:
		next := s
		next.workers[i].phase = resolving
		next.workers[i].out = m.ask(&next, w.fence)
		emit(next, false, "the verifier answers")
	case abandoning:
		next := s
		next.workers[i] = worker{phase: over}
		if r := s.rec; r.owner == w.owner || m.Rule == "anybody's claim abandoned" {
			m.release(&next, message{fence: r.fence})
			if m.Rule == "anybody's claim abandoned" && r.state == store.Running {
				next.rec.state = store.Retryable
			}
		}
		emit(next, false, "a lost claim is released")
		next = s
		next.workers[i] = worker{phase: over}
		emit(next, true, "a lost claim is left")
	}
}

// ask asks the other side about a fence. The other side then refuses that run if it has not seen it.
func (m *explorer) ask(s *state, fence uint8) out {
	if s.effects&bit(fence) != 0 {
		return success.of(fence)
	}
	s.refused |= bit(fence)
	return none
}

// message is what worker i has to say to the store.
func (s *state) message(i int) message {
	w := s.workers[i]
	switch {
	case w.phase == claiming:
		return message{verb: claim, owner: w.owner}
	case w.phase == settling || w.phase == resolving && w.out != none:
		return message{verb: settle, fence: w.fence, out: w.out}
	}
	return message{verb: release, fence: w.fence}
}

// other reports whether worker i asks for something else.
func (m *explorer) other(i int) bool { return m.Other && i == Workers-1 }

// call is worker i's call to the store.
func (m *explorer) call(s state, i int, emit emit) {
	msg := s.message(i)
	msg.other = msg.verb == claim && m.other(i)

	next := s
	answer := false
	switch msg.verb {
	case claim:
		answer = m.claim(&next, msg)
	case settle:
		answer = m.settle(&next, msg)
	default:
		answer = m.release(&next, msg)
	}
	if next != s {
		lost := next
		emit(lost, true, "an answer is lost")
	}
	m.hear(&next, i, answer)
	emit(next, false, "a call is answered")

	m.overtake(s, msg, func(next state) { emit(next, true, "a message is overtaken") })

	next = s // the worker gives up
	next.workers[i] = worker{phase: over}
	if msg.verb == claim {
		next.workers[i] = worker{phase: abandoning, owner: s.workers[i].owner}
	}
	if m.Rule == "released when settling fails" && s.workers[i].phase == settling {
		next.workers[i] = worker{phase: releasing, fence: msg.fence}
	}
	emit(next, true, "a worker gives up")
}

// overtake leaves a copy of msg in progress, if there is room.
func (m *explorer) overtake(s state, msg message, then func(state)) {
	if s.lates == m.Late {
		return
	}
	for j := range s.late {
		if s.late[j].verb == nothing {
			s.late[j] = msg
			s.lates++
			then(s)
			return
		}
	}
}

// hear is what worker i makes of the answer to its call.
func (m *explorer) hear(s *state, i int, ok bool) {
	w := &s.workers[i]
	switch w.phase {
	case settling:
		if ok {
			m.tell(s, w.out)
		}
		*w = worker{phase: over}
	case releasing:
		*w = worker{phase: over}
	case resolving: // done, or another caller was faster: read again
		s.again(i)
	case claiming:
		if !ok {
			*w = worker{phase: over} // told: another request
			return
		}
		m.enter(s, i)
	}
}

// again claims anew, as another owner.
func (s *state) again(i int) {
	w := &s.workers[i]
	if w.minted == owners {
		*w = worker{phase: over} // told: in flight
		return
	}
	*w = worker{phase: claiming, minted: w.minted + 1, owner: s.free()}
}

// enter is what worker i makes of the record that its claim brought.
func (m *explorer) enter(s *state, i int) {
	w, r := &s.workers[i], s.rec
	if r.other != m.other(i) {
		m.accuse("another request was not refused")
	}
	switch {
	case r.state == store.Running && r.owner == w.owner:
		*w = worker{phase: running, fence: r.fence}
	case r.state.Settled():
		m.tell(s, r.out)
		*w = worker{phase: over}
	case r.state == store.Retryable:
		s.again(i)
	case r.state == store.Running: // told: in flight
		*w = worker{phase: over}
	case r.owner == w.owner || m.Policy == TakeOver || m.Rule == "unknown released":
		*w = worker{phase: resolving, minted: w.minted, fence: r.fence}
	case m.Policy == Verify:
		*w = worker{phase: asking, minted: w.minted, fence: r.fence}
	case m.Policy == Fail:
		*w = worker{phase: resolving, minted: w.minted, fence: r.fence, out: gaveUp.of(r.fence)}
	default: // told: unknown
		*w = worker{phase: over}
	}
}

func (m *explorer) tell(s *state, o out) {
	// A settled record never changes, so all callers get the same.
	if !s.rec.state.Settled() || s.rec.out != o {
		m.accuse("a returned outcome is not the stored one")
	}
}

// run is what the handler of worker i can do.
func (m *explorer) run(s state, i int, emit emit) {
	w := s.workers[i]
	end := func(next state, ph phase, o out) state {
		next.workers[i] = worker{phase: ph, fence: w.fence, out: o}
		return next
	}
	msg := message{verb: effect, fence: w.fence}
	next := s
	if m.effect(&next, msg) {
		emit(end(next, settling, success.of(w.fence)), false, "an effect")
		emit(end(next, settling, unclear.of(w.fence)), true, "an effect, whose answer is lost")
	} else {
		emit(end(next, releasing, none), false, "an effect is refused")
	}
	emit(end(s, settling, unclear.of(w.fence)), true, "an effect is lost")
	m.overtake(s, msg, func(next state) {
		emit(end(next, settling, unclear.of(w.fence)), true, "an effect is overtaken")
	})
	emit(end(s, releasing, none), true, "a handler declines")

	beat := message{verb: extend, fence: w.fence}
	next = s
	if m.extend(&next, beat); next != s {
		emit(next, true, "a heartbeat") // a fault only in that it puts the end off
	}
	m.overtake(s, beat, func(next state) { emit(next, true, "a heartbeat is overtaken") })
}

// arrive has a message that was overtaken arrive, or vanish.
func (m *explorer) arrive(s state, emit emit) {
	for j, msg := range s.late {
		if msg.verb == nothing {
			continue
		}
		next := s
		next.late[j] = message{}
		emit(next, true, "a late message vanishes")
		m.do(&next, msg)
		emit(next, false, "a late message arrives")
	}
}

// operate is what the operator can do: ask the other side about a marked unknown run,
// and then write its answer, also if the record has changed in the meantime.
func (m *explorer) operate(s state, emit emit) {
	next := s
	switch {
	case s.operator.busy:
		next.operator = operator{}
		if s.operator.out == none {
			m.release(&next, message{fence: s.operator.fence})
		} else {
			m.settle(&next, message{fence: s.operator.fence, out: s.operator.out})
		}
		emit(next, false, "the operator writes")
	case s.rec.state == store.Unknown && s.operations < m.Operations:
		next.operations++
		next.operator = operator{busy: true, fence: s.rec.fence, out: m.ask(&next, s.rec.fence)}
		emit(next, true, "the operator asks") // optional
	}
}
