package storetest

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/stet-go/stet/store"
	"pgregory.net/rapid"
)

var workHistoryChecks = []check{
	{"random histories of work and messages agree with the model", "tables try what their author thought of; histories also try the rest.",
		func(f *fixture) { randomHistories(f, f.can.steps()) }},
}

// steps are mostly calls of which a bug needs several.
func (can abilities) steps() *rapid.Generator[[]step] {
	verbs := plainVerbs
	if can.works != nil {
		verbs = slices.Concat(verbs, []string{"look", "return", "cancel", "amend"},
			slices.Repeat([]string{"accept", "pass"}, 3), slices.Repeat([]string{"take", "save", "due"}, 5))
	}
	if can.outbox != nil {
		verbs = slices.Concat(verbs, []string{"relay", "relayed"})
	}
	return drawSteps(verbs)
}

// drawWork draws what a verb of a store.WorkStore needs.
func (s *step) drawWork(t *rapid.T) {
	draw := func(name string, from ...int) int { return rapid.SampledFrom(from).Draw(t, name) }
	s.claim = draw("fence", 0, 0, 0, 1, 2, -1)
	switch s.verb {
	case "accept":
		s.owner, s.fingerprint, s.after = draw("owner", 0, 1, 2), draw("fingerprint", 0, 0, 0, 1), draw("after", 0, 0, 1)
	case "take":
		s.owner, s.lease, s.repeats = draw("owner", 0, 1, 2), draw("lease", 1, 100), draw("repeatable", 0, 1) == 1
	case "return":
		s.after = draw("after", 0, 0, 1)
	case "cancel", "relayed":
		s.keep = draw("keep", 0, 1, 2)
	case "save", "amend":
		s.version, s.repeats = draw("version", 1, 2, 3), draw("repeatable", 0, 1) == 1
	case "due", "relay":
		s.after = draw("again", 1, 100)
	}
}

// aboutWork is String for such a verb.
func (s step) aboutWork(fence string) string {
	switch s.verb {
	case "accept":
		return fmt.Sprintf("accept key %d by owner %d, fingerprint %d, due after %d", s.key, s.owner, s.fingerprint, s.after)
	case "take":
		return fmt.Sprintf("take key %d by owner %d, lease %d, repeatable: %v", s.key, s.owner, s.lease, s.repeats)
	case "return":
		return fmt.Sprintf("return key %d with the %s, due after %d", s.key, fence, s.after)
	case "cancel", "relayed":
		return fmt.Sprintf("%s key %d with the %s, keep %d", s.verb, s.key, fence, s.keep)
	case "save", "amend":
		return fmt.Sprintf("%s version %d of key %d with the %s, repeatable: %v", s.verb, s.version, s.key, fence, s.repeats)
	case "due", "relay":
		return fmt.Sprintf("Due for %s, and again after %d", s.verb, s.after)
	}
	return s.verb
}

// outcome is what s settles a key as. In histories of work half of them have
// messages.
func (s step) outcome() store.Settlement {
	out := outs[s.out]
	if s.version > 0 {
		out.Outbox = []byte("messages")
	}
	return out
}

// takeWork takes a step that only a store.WorkStore knows.
func (h *history) takeWork(s step, m *model) error {
	w, c, keep, units := h.f.can.works, h.fence(s), h.keep(s.keep), time.Duration(s.after)*h.f.unit
	var err, want error
	var now moment
	switch s.verb {
	case "accept", "take":
		return h.acceptOrTake(s, m)
	case "due":
		return h.callDue(s, false, func() ([]store.Record, error) { return w.Due(h.f.ctx, store.MaxBrowse, units) })
	case "relay":
		return h.callDue(s, true, func() ([]store.Record, error) { return h.f.can.outbox.DueMessages(h.f.ctx, store.MaxBrowse, units) })
	case "return":
		now = h.call(func() { err = w.Return(h.f.ctx, c, units) })
		m.tick(now)
		want = m.giveBack(c.Fence, units, now)
	case "cancel":
		out := failed("cancelled")
		now = h.call(func() { _, err = w.Cancel(h.f.ctx, c, out, keep) })
		m.tick(now)
		want = m.cancel(c.Fence, out, keep, now)
	case "save":
		notes := version(uint64(s.version), "noted")
		now = h.call(func() { err = w.Save(h.f.ctx, c, notes, s.repeats) })
		m.tick(now)
		want = m.save(c.Fence, notes, store.Running, s.repeats)
	case "amend":
		notes := version(uint64(s.version), "amended")
		now = h.call(func() { err = w.Amend(h.f.ctx, c, notes) })
		m.tick(now)
		want = m.save(c.Fence, notes, store.Unknown, false)
	case "look":
		now = h.call(func() { _, err = w.Look(h.f.ctx, c.ID) })
		m.tick(now)
	case "relayed":
		now = h.call(func() { err = h.f.can.outbox.Relayed(h.f.ctx, c, keep) })
		m.tick(now)
		want = m.relayed(c.Fence, keep, now)
	}
	h.note("%v: %v", s, answer(err))
	return sameAnswer(want, err)
}

func (h *history) acceptOrTake(s step, m *model) error {
	req := store.ClaimRequest{ID: h.ids[s.key], Scope: testScope, Owner: h.owners[s.owner], Lease: time.Duration(s.lease) * h.f.unit,
		Fingerprint: []store.Fingerprint{fingerprintA, fingerprintB}[s.fingerprint]}
	after := time.Duration(s.after) * h.f.unit
	var rec store.Record
	var err, want error
	var now moment
	if s.verb == "accept" {
		now = h.call(func() { rec, err = h.f.can.works.Accept(h.f.ctx, req, workOf(req.ID), after) })
		m.tick(now)
		want = m.accept(req, after, now)
	} else {
		take := store.TakeRequest{ID: req.ID, Owner: req.Owner, Lease: req.Lease, Repeatable: s.repeats}
		now = h.call(func() { rec, err = h.f.can.works.Take(h.f.ctx, take) })
		m.tick(now)
		m.take(take, now)
	}
	h.note("%v: %v, %v", s, answer(err), show(rec))
	if e := sameAnswer(want, err); e != nil {
		return e
	}
	if m.fence == 0 && m.state != store.None && rec.Owner == req.Owner {
		if e := m.learn(rec); e != nil {
			return e
		}
		h.grants[s.key] = append(h.grants[s.key], rec.Claim())
	}
	if s.verb == "take" {
		if e := m.holds(rec); e != nil {
			return e
		}
	}
	return m.matches(rec, now)
}

// callDue calls Due. It may return more records than the history's own: the
// store is used by others before it.
func (h *history) callDue(s step, messages bool, ask func() ([]store.Record, error)) error {
	var recs []store.Record
	var err error
	now := h.call(func() { recs, err = ask() })
	h.note("%v: %v", s, answer(err))
	for key := range h.models {
		h.models[key].tick(now)
		same := func(rec store.Record) bool { return rec.ID == h.ids[key] }
		i := slices.IndexFunc(recs, same)
		if i >= 0 && slices.ContainsFunc(recs[i+1:], same) {
			return errors.New("Due returned it twice")
		}
		if e := h.models[key].dueError(messages, i >= 0, time.Duration(s.after)*h.f.unit, now); e != nil {
			return fmt.Errorf("key %d: %w", key, e)
		}
	}
	return err
}

// leave ends what waits: it must not burden the histories to come.
func (h *history) leave() {
	w, outbox := h.f.can.works, h.f.can.outbox
	for key, m := range h.models { // an error is no news by now
		c := store.Claim{ID: h.ids[key], Owner: m.owner, Fence: m.fence}
		switch {
		case m.kept.repeats:
			_ = w.Settle(h.f.ctx, c, failed("left"), h.keep(0))
		case m.waits(false):
			_, _ = w.Cancel(h.f.ctx, c, failed("left"), h.keep(0))
		case m.waits(true):
			_ = outbox.Relayed(h.f.ctx, c, h.keep(0))
		}
	}
}

// checkWork compares what a store.WorkStore keeps of a key with its model.
func (h *history) checkWork(key int) error {
	if h.f.can.works == nil {
		return nil
	}
	var rec store.Record
	var err error
	now := h.call(func() { rec, err = h.f.can.works.Look(h.f.ctx, h.ids[key]) })
	if err != nil {
		return err
	}
	m := &h.models[key]
	if m.tick(now); m.state == store.None {
		return nil
	}
	if err := m.matches(rec, now); err != nil {
		return fmt.Errorf("by Look: %w", err)
	}
	return m.holds(rec)
}
