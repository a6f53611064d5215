package sqlite

import (
	"bytes"
	"database/sql/driver"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/stet-go/stet"
)

// errDamaged is what an unreadable row or file gives.
var errDamaged = errors.New("the file is damaged")

// micros is a time of the store: microseconds since 1970; 0 where none applies.
type micros = int64

// row is a record as it is kept.
type row struct {
	stet.Record
	claimed, lease, settled, expires, forget micros
}

// load reads the row of id; nil if there is none.
func load(s session, id stet.ID) (r *row, err error) {
	err = s.rows(qSelect, func(v []driver.Value) error {
		r = &row{}
		return r.scan(id, v)
	}, id[:])
	if err != nil {
		return nil, err
	}
	return r, nil
}

// scan fills r from the values of columns. It trusts nothing.
func (r *row) scan(id stet.ID, v []driver.Value) error {
	ok := true
	digest := func(v driver.Value, into []byte) {
		b, is := v.([]byte)
		ok = ok && is && copy(into, b) == len(into) && len(b) == len(into)
	}
	number := func(v driver.Value) int64 {
		n, is := v.(int64)
		ok = ok && (is || v == nil)
		return n
	}
	r.ID = id
	digest(v[0], r.Scope[:])
	digest(v[1], r.Fingerprint[:])
	digest(v[2], r.Owner[:])
	state := number(v[3])
	r.Fence, r.Attempt, r.Gone = number(v[4]), int(number(v[5])), number(v[6]) != 0
	r.claimed, r.lease, r.settled, r.expires, r.forget = number(v[7]), number(v[8]), number(v[9]), number(v[10]), number(v[11])
	if v[12] != nil {
		result, is := v[12].([]byte)
		ok = ok && is
		r.Result = result // both kinds of session hand out a copy
	}
	if !ok || state < int64(stet.Running) || state > int64(stet.Accepted) || r.Fence <= 0 {
		return fmt.Errorf("%w: the record of %v is unreadable", errDamaged, id)
	}
	r.State = stet.State(state)
	return nil
}

// forgotten reports whether the record counts as none.
func (r *row) forgotten(now micros) bool { return r.forget != 0 && now >= r.forget }

// lapsed reports whether the lease has run out.
func (r *row) lapsed(now micros) bool { return r.State == stet.Running && now >= r.lease }

// at returns the record as it is at now.
func (r *row) at(now micros) stet.Record {
	rec := r.Record
	rec.ClaimedAt, rec.SettledAt, rec.ExpiresAt, rec.ForgetAt = instant(r.claimed), instant(r.settled), instant(r.expires), instant(r.forget)
	if rec.State == stet.Running {
		rec.LeaseLeft = time.Duration(r.lease-now) * time.Microsecond
	}
	if r.expires != 0 && now >= r.expires {
		rec.Result, rec.Gone = nil, true
	}
	return rec
}

func instant(t micros) time.Time {
	if t == 0 {
		return time.Time{}
	}
	return time.UnixMicro(t)
}

// span is d in the store's unit, rounded up: nothing ends before its time.
func span(d time.Duration) micros {
	n := d.Microseconds()
	if d%time.Microsecond > 0 {
		n++
	}
	return n
}

// draw gives the next fence of the store.
type draw func() (int64, error)

// asked is a claim, or with work an acceptance.
type asked struct {
	*stet.ClaimRequest
	work  []byte // nil: to be run now
	after time.Duration
}

// verb is what granting it does to the record.
func (a *asked) verb() stet.Verb {
	if a.work != nil {
		return stet.VerbAccept
	}
	return stet.VerbClaim
}

// claim is the body of stet.Store.Claim and stet.WorkStore.Accept, in a write
// transaction. A lapsed record is parked.
func claim(s session, a *asked, now micros, fence draw) (stet.Record, error) {
	next, err := fence()
	if err != nil {
		return stet.Record{}, err
	}
	r := &row{Record: stet.Record{ID: a.ID}}
	if err := r.grant(a, now, next); err != nil {
		return stet.Record{}, err
	}
	n, err := r.insert(s, a, now)
	if err != nil {
		return stet.Record{}, err
	}
	if n == 1 {
		return r.at(now), nil
	}
	old, err := load(s, a.ID)
	if err != nil {
		return stet.Record{}, err
	}
	switch {
	case old == nil:
		return stet.Record{}, fmt.Errorf("%w: the record of %v is in the index but not in the table", errDamaged, a.ID)
	case old.forgotten(now):
		old.State, old.Attempt = stet.None, 0
		return regrant(s, old, a, now, next)
	case old.Fingerprint != a.Fingerprint:
		return old.at(now), stet.ErrMismatch
	case old.lapsed(now) && old.Owner != a.Owner:
		return park(s, old, now)
	case old.State == stet.Retryable && old.Owner != a.Owner:
		return regrant(s, old, a, now, next)
	}
	return old.at(now), nil
}

// grant makes r what is asked for.
func (r *row) grant(a *asked, now micros, fence int64) error {
	if err := r.own(a.verb(), a.Owner, fence, now); err != nil {
		return err
	}
	r.Scope, r.Fingerprint = a.Scope, a.Fingerprint
	if r.State == stet.Running {
		r.Attempt++
		r.lease = now + span(a.Lease)
	}
	return nil
}

// own gives r to an owner, by a verb that the state machine must allow.
func (r *row) own(verb stet.Verb, owner stet.Owner, fence int64, now micros) error {
	to, ok := r.State.Next(verb)
	if !ok || fence <= r.Fence {
		return fmt.Errorf("%w: the record of %v is %v with fence %d, and fence %d was drawn", errDamaged, r.ID, r.State, r.Fence, fence)
	}
	r.State, r.Fence, r.Owner, r.claimed = to, fence, owner, now
	r.Result, r.Gone = nil, false
	r.lease, r.settled, r.expires, r.forget = 0, 0, 0, 0
	return nil
}

// insert writes a record that is new; 0 if there is one.
func (r *row) insert(s session, a *asked, now micros) (int64, error) {
	if a.work != nil {
		return s.exec(qAccept, r.Fence, a.ID[:], a.Scope[:], a.Fingerprint[:], a.Owner[:],
			int64(r.State), int64(r.Attempt), r.claimed, now+span(a.after), a.work)
	}
	return s.exec(qInsert, r.Fence, a.ID[:], a.Scope[:], a.Fingerprint[:], a.Owner[:],
		int64(r.State), int64(r.Attempt), r.claimed, r.lease, r.lease)
}

// regrant grants a record that there is.
func regrant(s session, r *row, a *asked, now micros, fence int64) (stet.Record, error) {
	was := r.Fence
	if err := r.grant(a, now, fence); err != nil {
		return stet.Record{}, err
	}
	var lease, due, work any = r.lease, nil, nil
	if a.work != nil {
		lease, due, work = nil, now+span(a.after), a.work
	}
	_, err := s.exec(qGrant, r.Scope[:], r.Fingerprint[:], r.Owner[:], int64(r.State), r.Fence, int64(r.Attempt),
		r.claimed, lease, lease, now, due, work, was, r.ID[:])
	return r.at(now), err
}

// park makes a dead run's record unknown.
func park(s session, r *row, now micros) (stet.Record, error) {
	to, ok := r.State.Next(stet.VerbPark)
	if !ok {
		return stet.Record{}, fmt.Errorf("%w: the record of %v is %v", errDamaged, r.ID, r.State)
	}
	r.State, r.settled, r.lease = to, now, 0
	_, err := s.exec(qPark, now, r.Fence, r.ID[:], now)
	return r.at(now), err
}

// settle is the body of stet.Store.Settle, in a write transaction.
func settle(s session, c stet.Claim, out stet.Outcome, keep stet.Retention, now micros) error {
	wrote, err := settleOnce(s, c, out, keep, now)
	if wrote || err != nil {
		return err
	}
	r, err := load(s, c.ID)
	if err != nil {
		return err
	}
	if r == nil || r.forgotten(now) || r.Fence != c.Fence || !r.came(out.State, out, now) {
		return stet.ErrFenced
	}
	return nil // the reply to the first time was lost
}

// came reports whether the record is settled in that state with the outcome, as far
// as can be known.
func (r *row) came(state stet.State, out stet.Outcome, now micros) bool {
	was := r.at(now)
	return was.State == state && (was.Gone || !out.Gone && bytes.Equal(was.Result, out.Result))
}

// settleOnce settles a record that is not settled yet, and reports whether it was
// there.
func settleOnce(s session, c stet.Claim, out stet.Outcome, keep stet.Retention, now micros) (wrote bool, err error) {
	if !out.State.Settled() {
		return false, fmt.Errorf("%w: an outcome is completed or failed, not %v", stet.ErrInvalid, out.State)
	}
	expires := now + span(keep.Result)
	forget := any(now + span(keep.Tombstone))
	var outbox, relay any
	if out.Outbox != nil { // not forgotten before it was relayed
		forget, outbox, relay = nil, out.Outbox, now
	}
	due, gone, result := any(expires), int64(0), any(out.Result)
	if out.Gone {
		due, gone, result = forget, 1, nil
	}
	n, err := s.exec(qSettle, int64(out.State), gone, result, now, expires, forget, due, outbox, relay, c.Fence, c.ID[:])
	return n == 1, err
}

// release is the body of stet.Store.Release, in a write transaction.
func release(s session, c stet.Claim, keep stet.Retention, now micros) error {
	forget := now + span(keep.Result)
	n, err := s.exec(qRelease, now, forget, forget, c.Fence, c.ID[:])
	if err != nil || n == 1 {
		return err
	}
	n, err = s.exec(qReturn, now, now, c.Fence, c.ID[:]) // of an accepted operation
	if err != nil || n == 1 {
		return err
	}
	return doneBefore(s, c, now, stet.Retryable, stet.Accepted)
}

// doneBefore finds out that something was done before, whose reply was lost: the
// record has the claim's fence and one of states. Otherwise it is stet.ErrFenced.
func doneBefore(s session, c stet.Claim, now micros, states ...stet.State) error {
	r, err := load(s, c.ID)
	if err != nil {
		return err
	}
	if r == nil || r.forgotten(now) || r.Fence != c.Fence || !slices.Contains(states, r.State) {
		return stet.ErrFenced
	}
	return nil
}

// extend is the body of stet.Store.Extend, in a write transaction.
func extend(s session, claims []stet.Claim, lease time.Duration, now micros) (lost []stet.Claim, err error) {
	end := now + span(lease)
	for _, c := range claims {
		n, err := s.exec(qExtend, end, end, c.Fence, c.ID[:])
		if err != nil {
			return nil, err
		}
		if n == 0 {
			lost = append(lost, c)
		}
	}
	return lost, nil
}
