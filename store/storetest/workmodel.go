package storetest

import (
	"bytes"
	"errors"
	"fmt"
	"time"

	"github.com/stet-go/stet"
)

// workModel is what a stet.WorkStore keeps besides the rest of a record.
type workModel struct {
	work       bool   // of an accepted operation that has not ended
	notes      string // with their version
	cancelling bool
	outbox     string // of a settled record

	atOnce bool   // it is due
	due    moment // else when; for accepted records, and those with an outbox
}

// wait makes the record due.
func (m *model) wait(after time.Duration, now moment) {
	m.kept.atOnce, m.kept.due = after == 0, now.add(after)
}

// waits reports whether the record waits for that.
func (m *model) waits(what stet.Due) bool {
	if what == stet.DueRelay {
		return m.state.Settled() && m.kept.outbox != ""
	}
	return m.state == stet.Accepted
}

// accept is claim for Accept.
func (m *model) accept(req stet.ClaimRequest, after time.Duration, now moment) error {
	switch {
	case m.state != stet.None && m.fingerprint != req.Fingerprint:
		return stet.ErrMismatch
	case m.state == stet.Running && m.owner != req.Owner && now.reached(m.leaseEnd):
		m.to(stet.VerbPark)
	case m.state == stet.Retryable && m.owner == req.Owner:
	case m.to(stet.VerbAccept):
		m.fingerprint, m.owner, m.fence = req.Fingerprint, req.Owner, 0
		m.kept.work = true
		m.wait(after, now)
	}
	return nil
}

// take leaves the fence of a grant 0, for the caller to learn.
func (m *model) take(owner stet.Owner, lease time.Duration, now moment) {
	switch {
	case m.state == stet.Running && m.owner != owner && now.reached(m.leaseEnd):
		m.to(stet.VerbPark)
	case m.state == stet.Accepted && m.owner != owner:
		m.to(stet.VerbTake)
		m.owner, m.fence, m.attempt = owner, 0, m.attempt+1
		m.leaseEnd = now.add(lease)
	}
}

func (m *model) giveBack(fence int64, after time.Duration, now moment) error {
	switch {
	case m.state == stet.None || m.fence != fence || !m.kept.work:
		return stet.ErrFenced
	case m.state == stet.Accepted:
		return nil
	case !m.to(stet.VerbReturn):
		return stet.ErrFenced
	}
	m.wait(after, now)
	return nil
}

func (m *model) cancel(fence int64, out stet.Outcome, keep stet.Retention, now moment) error {
	switch {
	case m.state == stet.None || m.fence != fence:
		return stet.ErrFenced
	case m.state == stet.Running && m.kept.work:
		m.kept.cancelling = true
		return nil
	case m.state == out.State && (m.gone || m.result == string(out.Result)):
		return nil
	case !m.to(stet.VerbCancel):
		return stet.ErrFenced
	}
	m.result, m.expires, m.forget = string(out.Result), now.add(keep.Result), now.add(keep.Tombstone)
	m.kept = workModel{}
	return nil
}

// save is Save for a record in that state.
func (m *model) save(fence int64, notes []byte, in stet.State) error {
	if m.state != in || m.fence != fence {
		return stet.ErrFenced
	}
	was := m.kept.notes
	switch bytes.Compare(notes[:8], []byte(was[:min(8, len(was))])) {
	case -1:
		return stet.ErrFenced
	case 1:
		m.kept.notes = string(notes)
	}
	return nil
}

func (m *model) relayed(fence int64, keep stet.Retention, now moment) error {
	if !m.state.Settled() || m.fence != fence {
		return stet.ErrFenced
	}
	if m.kept.outbox != "" {
		m.kept, m.forget = workModel{}, now.add(keep.Tombstone)
	}
	return nil
}

// handOut says what is wrong with a record having been handed out, or not.
func (m *model) handOut(what stet.Due, got bool, again time.Duration, now moment) error {
	want := m.waits(what) && (m.kept.atOnce || now.reached(m.kept.due))
	if want != got {
		return fmt.Errorf("it was handed out: %v; by the model: %v", got, want)
	}
	if got {
		m.wait(again, now)
	}
	return nil
}

// holds says how what Look returned differs from the model.
func (m *model) holds(rec stet.Record) error {
	want := stet.Record{Notes: []byte(m.kept.notes), Cancelling: m.kept.cancelling}
	if m.kept.work {
		want.Work = workOf(rec.ID)
	}
	if m.kept.outbox != "" {
		want.Work = []byte(m.kept.outbox)
	}
	if d := workDiff(want, stet.Record{Work: rec.Work, Notes: rec.Notes, Cancelling: rec.Cancelling}); d != "" {
		return errors.New("by the model and then by the store: " + d)
	}
	return nil
}
