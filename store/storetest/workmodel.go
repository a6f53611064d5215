package storetest

import (
	"errors"
	"fmt"
	"time"

	"github.com/stet-go/stet/store"
)

// workModel is what a store.WorkStore and a store.OutboxStore keep besides the rest of a record.
type workModel struct {
	work       bool // of an accepted operation that has not ended
	notes      store.Notes
	cancelling bool
	repeats    bool   // it runs, and may be repeated
	outbox     string // of a settled record

	atOnce bool   // it is due
	due    moment // else when; for accepted records, and those with an outbox
	vague  bool   // its lease was made shorter: it may be due already
	early  bool   // it is to wait
	from   moment // until when
}

// wait makes the record due.
func (m *model) wait(after time.Duration, now moment) {
	m.kept.atOnce, m.kept.due, m.kept.vague = after == 0, now.add(after), false
}

// runs makes a run due when its lease has run out, if it may be repeated.
func (m *model) runs(repeatable bool) {
	if repeatable && !m.kept.repeats {
		m.kept.atOnce, m.kept.due, m.kept.vague = false, m.leaseEnd, false
	}
	m.kept.repeats = repeatable
}

// renewed puts off when a run is due whose lease was renewed.
func (m *model) renewed() {
	if m.leaseEnd.lo >= m.kept.due.lo {
		m.kept.due, m.kept.vague = m.leaseEnd, false
	} else {
		m.kept.vague = true
	}
}

// markUnknown makes an expired run's record unknown, or accepted if the run may be repeated.
func (m *model) markUnknown() {
	if !m.kept.repeats {
		m.to(store.VerbMarkUnknown)
		return
	}
	m.to(store.VerbReturn)
	m.kept.repeats, m.kept.early = false, false
}

// postpone makes the record due, and not to be taken before.
func (m *model) postpone(after time.Duration, now moment) {
	m.wait(after, now)
	m.kept.early, m.kept.from = after != 0, now.add(after)
}

// waits reports whether the record waits to be run, or to have its messages sent.
func (m *model) waits(messages bool) bool {
	if messages {
		return m.state.Settled() && m.kept.outbox != ""
	}
	return m.state == store.Accepted || m.kept.repeats
}

// accept is claim for Accept.
func (m *model) accept(req store.ClaimRequest, after time.Duration, now moment) error {
	switch {
	case m.state != store.None && m.fingerprint != req.Fingerprint:
		return store.ErrMismatch
	case m.state == store.Running && m.owner != req.Owner && now.reached(m.leaseEnd):
		m.markUnknown()
	case m.state == store.Retryable && m.owner == req.Owner:
	case m.to(store.VerbAccept):
		m.fingerprint, m.owner, m.fence = req.Fingerprint, req.Owner, 0
		m.kept.work = true
		m.postpone(after, now)
	}
	return nil
}

// take leaves the fence of a grant 0, for the caller to learn.
func (m *model) take(req store.TakeRequest, now moment) {
	if m.state == store.Running && m.owner != req.Owner && now.reached(m.leaseEnd) {
		m.markUnknown()
	}
	if m.state == store.Accepted && m.owner != req.Owner && (!m.kept.early || now.reached(m.kept.from)) {
		m.to(store.VerbTake)
		m.owner, m.fence, m.attempt = req.Owner, 0, m.attempt+1
		m.leaseEnd = now.add(req.Lease)
		m.runs(req.Repeatable)
	}
}

func (m *model) giveBack(fence int64, after time.Duration, now moment) error {
	switch {
	case m.state == store.None || m.fence != fence || !m.kept.work:
		return store.ErrFenced
	case m.state == store.Accepted:
		return nil
	case !m.to(store.VerbReturn):
		return store.ErrFenced
	}
	m.kept.repeats = false
	m.postpone(after, now)
	return nil
}

func (m *model) cancel(fence int64, out store.Settlement, keep store.Retention, now moment) error {
	switch {
	case m.state == store.None || m.fence != fence:
		return store.ErrFenced
	case m.state == store.Running && m.kept.work:
		m.kept.cancelling = true
		return nil
	case m.state == out.State && !m.gone && m.result.Equal(out.Result):
		return nil
	case !m.to(store.VerbCancel):
		return store.ErrFenced
	}
	m.result, m.expires, m.forget = out.Result, now.add(keep.Result), now.add(keep.Tombstone)
	m.kept = workModel{}
	return nil
}

// save is Save for a record in that state.
func (m *model) save(fence int64, notes store.Notes, in store.State, repeatable bool) error {
	if m.state != in || m.fence != fence {
		return store.ErrFenced
	}
	switch {
	case notes.Version < m.kept.notes.Version:
		return store.ErrFenced
	case notes.Version > m.kept.notes.Version:
		m.kept.notes = notes
		if m.state == store.Running {
			m.runs(repeatable && m.kept.work)
		}
	}
	return nil
}

func (m *model) relayed(fence int64, keep store.Retention, now moment) error {
	if !m.state.Settled() || m.fence != fence {
		return store.ErrFenced
	}
	if m.kept.outbox != "" {
		m.kept, m.forget = workModel{}, now.add(keep.Tombstone)
	}
	return nil
}

// dueError returns an error if Due should not have returned a record, or should have.
func (m *model) dueError(messages, got bool, again time.Duration, now moment) error {
	want := m.waits(messages) && (m.kept.atOnce || m.kept.vague && got || now.reached(m.kept.due))
	if want != got {
		return fmt.Errorf("Due returned it: %v; by the model: %v", got, want)
	}
	if got {
		m.wait(again, now)
	}
	return nil
}

// holds says how what Look returned differs from the model.
func (m *model) holds(rec store.Record) error {
	want := store.Record{Notes: m.kept.notes, Cancelling: m.kept.cancelling}
	if m.kept.work {
		want.Work = workOf(rec.ID)
	}
	if m.kept.outbox != "" {
		want.Outbox = []byte(m.kept.outbox)
	}
	if d := workDiff(want, store.Record{Work: rec.Work, Notes: rec.Notes, Outbox: rec.Outbox, Cancelling: rec.Cancelling}); d != "" {
		return errors.New("by the model and then by the store: " + d)
	}
	return nil
}
