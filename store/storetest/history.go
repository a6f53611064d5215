package storetest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/stet-go/stet/store"
	"pgregory.net/rapid"
)

var historyChecks = []check{
	{"random histories agree with the model", "tables try what their author thought of; histories also try the rest.",
		func(f *fixture) { randomHistories(f, steps) }},
}

const (
	historyKeys   = 3
	historyOwners = 3
	historySteps  = 45
)

// step is one call of a history, in numbers that shrink well. Most are on one
// key, which is where things happen. What a verb does
// not need it ignores.
type step struct {
	verb        string
	key         int
	owner       int
	fingerprint int
	lease       int // in units
	keep        int // index into keeps
	out         int // index into outs
	claim       int // how many grants of the key ago; -1: a fence never given
	units       int // of time to pass
	version     int // of notes; of a settle, not 0 if it has messages
	after       int // until it is due, in units
	repeats     bool
}

var plainVerbs = []string{"claim", "claim", "claim", "settle", "settle", "release", "extend", "pass", "sweep"}

// outs are the outcomes of histories.
var outs = []store.Settlement{completed("yes"), completed(""), failed("no"), completed("yes\x00"), {State: store.Completed, Gone: true}}

func (h *history) keep(i int) store.Retention {
	return []store.Retention{
		{Result: 100 * h.f.unit, Tombstone: 200 * h.f.unit},
		{Result: h.f.unit, Tombstone: 200 * h.f.unit},
		{Result: h.f.unit, Tombstone: 2 * h.f.unit},
	}[i]
}

func (s step) String() string {
	fence := "newest fence"
	switch {
	case s.claim < 0:
		fence = "fence never given"
	case s.claim > 0:
		fence = fmt.Sprintf("fence of %d grants ago", s.claim)
	}
	switch s.verb {
	case "claim":
		return fmt.Sprintf("claim key %d by owner %d, fingerprint %d, lease %d", s.key, s.owner, s.fingerprint, s.lease)
	case "settle":
		out := s.outcome()
		return fmt.Sprintf("settle key %d with the %s as %v %s (gone: %v), with messages %q, keep %d", s.key, fence, out.State, shown(out.Result), out.Gone, out.Outbox, s.keep)
	case "release":
		return fmt.Sprintf("release key %d with the %s, keep %d", s.key, fence, s.keep)
	case "extend":
		return fmt.Sprintf("extend key %d with the %s, lease %d", s.key, fence, s.lease)
	case "pass":
		return fmt.Sprintf("let %d units pass", s.units)
	}
	return s.aboutWork(fence)
}

// GoString is how rapid prints a step.
func (s step) GoString() string { return s.String() }

var steps = drawSteps(plainVerbs)

func drawSteps(verbs []string) *rapid.Generator[[]step] {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) step { return drawStep(t, verbs) }), 0, historySteps/3)
}

func drawStep(t *rapid.T, verbs []string) step {
	s := step{verb: rapid.SampledFrom(verbs).Draw(t, "verb"), key: rapid.SampledFrom([]int{0, 0, 0, 0, 1, 2}).Draw(t, "key")}
	switch s.verb {
	case "claim":
		s.owner = rapid.IntRange(0, historyOwners-1).Draw(t, "owner")
		s.fingerprint = rapid.SampledFrom([]int{0, 0, 0, 1}).Draw(t, "fingerprint")
		s.lease = rapid.SampledFrom([]int{1, 100}).Draw(t, "lease")
	case "settle":
		s.out = rapid.IntRange(0, len(outs)-1).Draw(t, "outcome")
		s.claim = rapid.SampledFrom([]int{0, 0, 0, 1, 2, -1}).Draw(t, "fence")
		s.keep = rapid.IntRange(0, 2).Draw(t, "keep")
		if slices.Contains(verbs, "relay") {
			s.version = rapid.IntRange(0, 1).Draw(t, "messages")
		}
	case "release":
		s.claim = rapid.SampledFrom([]int{0, 0, 0, 1, 2, -1}).Draw(t, "fence")
		s.keep = rapid.IntRange(0, 2).Draw(t, "keep")
	case "extend":
		s.claim = rapid.SampledFrom([]int{0, 0, 0, 1, 2, -1}).Draw(t, "fence")
		s.lease = rapid.SampledFrom([]int{1, 100}).Draw(t, "lease")
	case "pass":
		s.units = rapid.IntRange(1, 2).Draw(t, "units")
	default:
		s.drawWork(t)
	}
	return s
}

// randomHistories draws histories until as many were tried as the harness asks
// for; more than rapid does in one go take several.
func randomHistories(f *fixture, steps *rapid.Generator[[]step]) {
	tried, told, failing := 0, 0, false
	for tried < f.h.Histories {
		before := tried
		rapid.Check(f, func(t *rapid.T) {
			if tried >= f.h.Histories && !failing {
				return
			}
			// Three in a row, because rapid keeps slices short.
			drawn := slices.Concat(steps.Draw(t, "steps"), steps.Draw(t, "steps"), steps.Draw(t, "steps"))
			tried++
			h := newHistory(f)
			err := h.run(drawn)
			h.leave()
			if !errors.Is(err, errTooClose) {
				told++
				if err != nil {
					text := fmt.Sprintf("%v\nthe history, and what the store answered:\n%s", err, strings.Join(h.log, "\n"))
					if !failing { // rapid forgets the first, and shows none that does not fail again
						f.Logf("first found: %s", text)
					}
					failing = true // from here on rapid shrinks
					f.certain.Store(true)
					t.Log(text)
					t.Fatal("the store is not what the model says") // rapid shrinks only while this stays the same
				}
			}
		})
		if tried == before {
			break
		}
	}
	if told < (tried+1)/2 {
		f.Errorf("%d of %d histories were not judged, because calls took too long beside Harness.Unit (%v): make it longer",
			tried-told, tried, f.unit)
	}
}

// history runs steps against the store and the models of its keys.
type history struct {
	f        *fixture
	ids      [historyKeys]store.ID
	models   [historyKeys]model
	grants   [historyKeys][]store.Claim
	owners   [historyOwners]store.Owner
	start    time.Time
	advanced time.Duration
	log      []string
}

func newHistory(f *fixture) *history {
	h := &history{f: f, start: time.Now()}
	for i := range h.ids {
		h.ids[i] = f.request(0).ID
	}
	for i := range h.owners {
		h.owners[i] = store.NewOwner()
	}
	return h
}

// call makes a call and returns when, on the store's clock, it took effect. A
// clock that is moved may stand still between moves, or run on.
func (h *history) call(do func()) moment {
	lo := h.advanced
	if h.f.h.Advance == nil {
		lo = time.Since(h.start)
	}
	do()
	return moment{lo - rounding, h.advanced + time.Since(h.start) + rounding}
}

func (h *history) note(format string, args ...any) {
	h.log = append(h.log, fmt.Sprintf("%3d. ", len(h.log)+1)+fmt.Sprintf(format, args...))
}

// run takes the steps one by one. After each call, every key must be as its
// model says.
func (h *history) run(all []step) (err error) {
	defer func() {
		if p := recover(); p != nil {
			if e, ok := p.(error); !ok || !errors.Is(e, errTooClose) {
				panic(p)
			}
			err = errTooClose
		}
	}()
	for _, s := range all {
		if err := h.take(s); err != nil {
			return fmt.Errorf("%v: %w", s, err)
		}
		if s.verb == "pass" {
			continue // the next call must find the due change, before a Read makes it
		}
		for key := range h.models {
			if err := h.check(key, s); err != nil {
				return fmt.Errorf("after %v, Read of key %d: %w", s, key, err)
			}
		}
	}
	return nil
}

func (h *history) check(key int, after step) error {
	var rec store.Record
	var err error
	now := h.call(func() { rec, err = h.f.store.Read(h.f.ctx, h.ids[key]) })
	if err != nil {
		return err
	}
	m := &h.models[key]
	m.tick(now)
	if after.verb == "sweep" {
		m.sweep(rec, now)
	}
	if err := m.matches(rec, now); err != nil {
		return err
	}
	return h.checkWork(key)
}

// fence returns the claim that s means.
func (h *history) fence(s step) store.Claim {
	grants := h.grants[s.key]
	c := store.Claim{ID: h.ids[s.key], Owner: h.owners[0], Fence: h.models[s.key].highest + 1}
	if s.claim >= 0 && s.claim < len(grants) {
		c = grants[len(grants)-1-s.claim]
	}
	return c
}

func (h *history) take(s step) error {
	f, m := h.f, &h.models[s.key]
	var err, want error
	switch s.verb {
	case "claim":
		return h.claim(s, m)
	case "settle":
		c := h.fence(s)
		now := h.call(func() { err = f.store.Settle(f.ctx, c, s.outcome(), h.keep(s.keep)) })
		m.tick(now)
		want = m.settle(c.Fence, s.outcome(), h.keep(s.keep), now)
	case "release":
		c := h.fence(s)
		now := h.call(func() { err = f.store.Release(f.ctx, c, h.keep(s.keep)) })
		m.tick(now)
		want = m.release(c.Fence, h.keep(s.keep), now)
	case "extend":
		return h.extend(s, m)
	case "pass":
		f.pass(s.units)
		h.advanced += h.passed(s.units)
	case "sweep":
		if sweeper := f.can.sweeper; sweeper != nil {
			_, err = sweeper.Sweep(f.ctx, 100)
		}
	default:
		return h.takeWork(s, m)
	}
	h.note("%v: %v", s, answer(err))
	return sameAnswer(want, err)
}

// passed is how far pass has moved a clock that is moved.
func (h *history) passed(units int) time.Duration {
	if h.f.h.Advance == nil {
		return 0
	}
	return time.Duration(units)*h.f.unit + h.f.unit/2
}

func (h *history) claim(s step, m *model) error {
	req := store.ClaimRequest{ID: h.ids[s.key], Scope: testScope, Owner: h.owners[s.owner], Lease: time.Duration(s.lease) * h.f.unit,
		Fingerprint: []store.Fingerprint{fingerprintA, fingerprintB}[s.fingerprint]}
	var rec store.Record
	var err error
	now := h.call(func() { rec, err = h.f.store.Claim(h.f.ctx, req) })
	h.note("%v: %v, %v", s, answer(err), show(rec))
	m.tick(now)
	if e := sameAnswer(m.claim(req, now), err); e != nil {
		return e
	}
	if m.state == store.Running && m.fence == 0 && granted(rec, req) {
		if e := m.learn(rec); e != nil {
			return e
		}
		h.grants[s.key] = append(h.grants[s.key], rec.Claim())
	}
	return m.matches(rec, now)
}

func (h *history) extend(s step, m *model) error {
	c, lease := h.fence(s), time.Duration(s.lease)*h.f.unit
	var lost []store.Claim
	var err error
	now := h.call(func() { lost, err = h.f.store.Extend(h.f.ctx, []store.Claim{c}, lease) })
	h.note("%v: %v, lost %v", s, answer(err), len(lost) > 0)
	if err != nil {
		return err
	}
	m.tick(now)
	if want := m.extend(c.Fence, lease, now); want != (len(lost) > 0) {
		return fmt.Errorf("the claim being lost is %v by the model", want)
	}
	return nil
}

func answer(err error) string {
	if err == nil {
		return "ok"
	}
	return err.Error()
}

// sameAnswer compares errors as far as the contract tells them apart.
func sameAnswer(want, got error) error {
	if errors.Is(got, want) {
		return nil
	}
	return fmt.Errorf("it returned %v; by the model: %v", answer(got), answer(want))
}
