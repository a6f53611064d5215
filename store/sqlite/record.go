package sqlite

import (
	"database/sql/driver"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/stet-go/stet/store"
)

// errDamaged is what an unreadable file gives; a record of it has an error of its own.
var errDamaged = errors.New("the file is damaged")

// micros is a time of the store: microseconds since 1970; 0 where none applies.
type micros = int64

// row is a stored record.
type row struct {
	store.Record
	claimed, lease, settled, expires, forget micros
	repeatable                               bool // it runs, and is due when its lease has run out
}

// load reads the row of id; nil if there is none.
func load(s session, id store.ID) (r *row, err error) {
	err = s.rows(qSelect, func(v []driver.Value) error {
		r = &row{}
		return r.scan(id, v)
	}, id[:])
	if err != nil {
		return nil, err
	}
	return r, nil
}

// scan fills r from column values. It validates all of them, and sets the readable ones before
// it fails.
func (r *row) scan(id store.ID, v []driver.Value) error {
	ok := true
	digest := func(v driver.Value, into []byte) {
		b, _ := v.([]byte)
		if len(b) != len(into) {
			ok = false
			return
		}
		copy(into, b)
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
	blob := func(v driver.Value) []byte {
		b, is := v.([]byte) // both kinds of session return a copy
		ok = ok && (is || v == nil)
		return b
	}
	text := func(v driver.Value) string {
		switch v := v.(type) {
		case string:
			return v
		case []byte:
			return string(v)
		}
		ok = false
		return ""
	}
	r.Result = store.Result{Status: int(number(v[12])), Head: blob(v[14]), Body: blob(v[15])}
	if v[13] != nil {
		r.Result.Type = text(v[13])
	}
	r.Label = store.Label{Class: text(v[16]), Name: text(v[17]), Ref: text(v[18])}
	r.repeatable = number(v[19]) != 0
	if !ok || state < int64(store.Running) || state > int64(store.Accepted) || r.Fence <= 0 {
		return unreadable(id, "its columns have unexpected values")
	}
	r.State = store.State(state)
	return nil
}

// forgotten reports whether the record counts as none.
func (r *row) forgotten(now micros) bool { return r.forget != 0 && now >= r.forget }

// lapsed reports whether the lease has run out.
func (r *row) lapsed(now micros) bool { return r.State == store.Running && now >= r.lease }

// at returns the record at the time now.
func (r *row) at(now micros) store.Record {
	rec := r.Record
	rec.ClaimedAt, rec.SettledAt, rec.ExpiresAt, rec.ForgetAt = instant(r.claimed), instant(r.settled), instant(r.expires), instant(r.forget)
	if rec.State == store.Running {
		rec.LeaseLeft = length(r.lease - now)
	}
	if r.expires != 0 && now >= r.expires {
		rec.Result, rec.Gone = store.Result{}, true
	}
	return rec
}

func instant(t micros) time.Time {
	if t == 0 {
		return time.Time{}
	}
	return time.UnixMicro(t)
}

// length is a time in the store's unit as a time.Duration, or the nearest to it.
func length(t micros) time.Duration {
	const most = math.MaxInt64 / int64(time.Microsecond)
	return time.Duration(max(-most, min(most, t))) * time.Microsecond
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
	*store.ClaimRequest
	work  []byte // nil: to be run now
	after time.Duration
}

// verb is what granting it does to the record.
func (a *asked) verb() store.Verb {
	if a.work != nil {
		return store.VerbAccept
	}
	return store.VerbClaim
}

// claim is the body of store.Store.Claim and store.WorkStore.Accept, in a write
// transaction. A lapsed record is marked unknown.
func claim(s session, a *asked, now micros, fence draw) (store.Record, error) {
	next, err := fence()
	if err != nil {
		return store.Record{}, err
	}
	r := &row{Record: store.Record{ID: a.ID}}
	if err := r.grant(a, now, next); err != nil {
		return store.Record{}, err
	}
	n, err := r.insert(s, a, now)
	if err != nil {
		return store.Record{}, err
	}
	if n == 1 {
		return r.at(now), nil
	}
	old, err := load(s, a.ID)
	if err != nil {
		return store.Record{}, err
	}
	switch {
	case old == nil:
		return store.Record{}, unreadable(a.ID, "it is in the index but not in the table")
	case old.forgotten(now):
		old.State, old.Attempt = store.None, 0
		return regrant(s, old, a, now, next)
	case old.Fingerprint != a.Fingerprint:
		return old.at(now), store.ErrMismatch
	case old.lapsed(now) && old.Owner != a.Owner:
		return markUnknown(s, old, now)
	case old.State == store.Retryable && old.Owner != a.Owner:
		return regrant(s, old, a, now, next)
	}
	return old.at(now), nil
}

// grant grants the claim.
func (r *row) grant(a *asked, now micros, fence int64) error {
	if err := r.own(a.verb(), a.Owner, fence, now); err != nil {
		return err
	}
	r.Scope, r.Fingerprint, r.Label = a.Scope, a.Fingerprint, a.Label
	if r.State == store.Running {
		r.Attempt++
		r.lease = now + span(a.Lease)
	}
	return nil
}

// own gives r to an owner, by a verb that the state machine must allow.
func (r *row) own(verb store.Verb, owner store.Owner, fence int64, now micros) error {
	to, ok := r.State.Next(verb)
	if !ok || fence <= r.Fence {
		return unreadable(r.ID, fmt.Sprintf("it is %v with fence %d, and fence %d was drawn", r.State, r.Fence, fence))
	}
	r.State, r.Fence, r.Owner, r.claimed = to, fence, owner, now
	r.Result, r.Gone = store.Result{}, false
	r.lease, r.settled, r.expires, r.forget = 0, 0, 0, 0
	return nil
}

// insert writes a record that is new; 0 if there is one.
func (r *row) insert(s session, a *asked, now micros) (int64, error) {
	if a.work != nil {
		return s.exec(qAccept, r.Fence, a.ID[:], a.Scope[:], a.Fingerprint[:], a.Owner[:],
			int64(r.State), int64(r.Attempt), r.claimed, now+span(a.after), now+span(max(a.after, a.Queued)), a.work, a.Label.Class, a.Label.Name, a.Label.Ref)
	}
	return s.exec(qInsert, r.Fence, a.ID[:], a.Scope[:], a.Fingerprint[:], a.Owner[:],
		int64(r.State), int64(r.Attempt), r.claimed, r.lease, r.lease, a.Label.Class, a.Label.Name, a.Label.Ref)
}

// regrant grants a record that there is.
func regrant(s session, r *row, a *asked, now micros, fence int64) (store.Record, error) {
	was := r.Fence
	if err := r.grant(a, now, fence); err != nil {
		return store.Record{}, err
	}
	var lapses, due, work any = r.lease, nil, nil
	lease := r.lease
	if a.work != nil {
		lease = now + span(a.after) // before that it cannot be taken
		lapses, due, work = nil, now+span(max(a.after, a.Queued)), a.work
	}
	_, err := s.exec(qGrant, r.Scope[:], r.Fingerprint[:], r.Owner[:], r.Label.Class, r.Label.Name, r.Label.Ref, int64(r.State), r.Fence, int64(r.Attempt),
		r.claimed, lease, lapses, now, due, work, was, r.ID[:])
	return r.at(now), err
}

// markUnknown makes an expired run's record unknown, or accepted if the run may be repeated.
func markUnknown(s session, r *row, now micros) (store.Record, error) {
	verb := store.VerbMarkUnknown
	if r.repeatable {
		verb = store.VerbReturn
	}
	to, ok := r.State.Next(verb)
	if !ok {
		return store.Record{}, unreadable(r.ID, fmt.Sprintf("it should become unknown, and is %v", r.State))
	}
	r.State, r.settled, r.lease = to, now, 0
	_, err := s.exec(qPark, now, now, r.Fence, r.ID[:], now)
	return r.at(now), err
}

// settle is the body of store.Store.Settle, in a write transaction.
func settle(s session, c store.Claim, out store.Settlement, keep store.Retention, now micros) error {
	wrote, err := settleOnce(s, c, out, keep, now)
	if wrote || err != nil {
		return err
	}
	r, err := load(s, c.ID)
	if err != nil {
		return err
	}
	if r == nil || r.forgotten(now) || r.Fence != c.Fence || !r.came(out.State, out, now) {
		return store.ErrFenced
	}
	return nil // the reply to the first time was lost
}

// came reports whether the record is settled in that state with the outcome. A result
// that has expired, by itself or by hand, may have been another.
func (r *row) came(state store.State, out store.Settlement, now micros) bool {
	return r.State == state && now < r.expires && r.Gone == out.Gone && (r.Gone || r.Result.Equal(out.Result))
}

// kept are the columns of an outcome's result: status, type, head and body.
func kept(out store.Settlement) (columns [4]any) {
	if out.Gone {
		return columns
	}
	r := out.Result
	if r.Status != 0 {
		columns[0] = int64(r.Status)
	}
	if r.Type != "" {
		columns[1] = r.Type
	}
	if len(r.Head) > 0 {
		columns[2] = r.Head
	}
	if columns[3] = r.Body; r.Body == nil {
		columns[3] = []byte{}
	}
	return columns
}

// settleOnce settles a record that is not settled yet, and reports whether it was
// there.
func settleOnce(s session, c store.Claim, out store.Settlement, keep store.Retention, now micros) (wrote bool, err error) {
	if !out.State.Settled() {
		return false, fmt.Errorf("%w: an outcome is completed or failed, not %v", store.ErrInvalid, out.State)
	}
	expires := now + span(keep.Result)
	forget := any(now + span(keep.Tombstone))
	var outbox, relay any
	if out.Outbox != nil { // not forgotten before it was relayed
		forget, outbox, relay = nil, out.Outbox, now
	}
	due, gone, r := any(expires), int64(0), kept(out)
	if out.Gone {
		due, gone = forget, 1
	}
	n, err := s.exec(qSettle, int64(out.State), gone, r[0], r[1], r[2], r[3], now, expires, forget, due, outbox, relay, c.Fence, c.ID[:])
	return n == 1, err
}

// release is the body of store.Store.Release, in a write transaction.
func release(s session, c store.Claim, keep store.Retention, now micros) error {
	forget := now + span(keep.Result)
	n, err := s.exec(qRelease, now, forget, forget, c.Fence, c.ID[:])
	if err != nil || n == 1 {
		return err
	}
	n, err = s.exec(qReturn, now, now, now, c.Fence, c.ID[:]) // of an accepted operation
	if err != nil || n == 1 {
		return err
	}
	return doneBefore(s, c, now, store.Retryable, store.Accepted)
}

// doneBefore finds out that something was done before, whose reply was lost: the
// record has the claim's fence and one of states. Otherwise it is store.ErrFenced.
func doneBefore(s session, c store.Claim, now micros, states ...store.State) error {
	r, err := load(s, c.ID)
	if err != nil {
		return err
	}
	if r == nil || r.forgotten(now) || r.Fence != c.Fence || !slices.Contains(states, r.State) {
		return store.ErrFenced
	}
	return nil
}

// extend is the body of store.Store.Extend, in a write transaction.
func extend(s session, claims []store.Claim, lease time.Duration, now micros) (lost []store.Claim, h hurt, err error) {
	end := now + span(lease)
	for _, c := range claims {
		n, err := s.exec(qExtend, end, end, end, c.Fence, c.ID[:])
		if err != nil {
			return nil, h, err
		}
		if n == 1 {
			continue
		}
		switch _, err := load(s, c.ID); {
		case err == nil:
			lost = append(lost, c)
		case errors.Is(err, store.ErrDamaged):
			h.add(c, err)
		default:
			return nil, h, err
		}
	}
	return lost, h, nil
}
