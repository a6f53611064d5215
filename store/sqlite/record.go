package sqlite

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/stet-go/stet/store"
)

// errDamaged is the error of an unreadable file. Unreadable records have store.ErrDamaged.
var errDamaged = errors.New("the file is damaged")

// micros is a time of the store: microseconds since 1970; 0 for none.
type micros = int64

// row is a stored record. Its State is None if there is no row.
type row struct {
	store.Record
	claimed, lease, settled, expires, forget micros
	repeatable                               bool // it runs, and is due when its lease has expired
}

// Read implements store.Store. It never waits for a writer.
func (s *Store) Read(ctx context.Context, id store.ID) (store.Record, error) {
	rec, err := s.Look(ctx, id)
	rec.Work, rec.Outbox, rec.Notes = nil, nil, store.Notes{}
	return rec, err
}

// Look implements store.WorkStore. It never waits for a writer.
func (s *Store) Look(ctx context.Context, id store.ID) (rec store.Record, err error) {
	err = s.read(ctx, func(r *session) error {
		found, err := load(r, id)
		if err == nil {
			rec = found.whole(r.now)
		}
		return err
	})
	return rec, err
}

// load reads the row of id. An error that wraps store.ErrDamaged comes with the readable columns.
func load(s *session, id store.ID) (*row, error) {
	r := &row{Record: store.Record{ID: id}}
	err := s.rows(qSelect, r.scan, id[:])
	return r, err
}

// columnsOfRow is how many columns scan reads.
const columnsOfRow = 25

// scan fills r from column values. It validates all of them, and sets the readable ones before
// it fails.
func (r *row) scan(v []any) error {
	ok := true
	digest := func(v any, into []byte) {
		b, _ := v.([]byte)
		if len(b) != len(into) {
			ok = false
			return
		}
		copy(into, b)
	}
	number := func(v any) int64 {
		n, is := v.(int64)
		ok = ok && (is || v == nil)
		return n
	}
	blob := func(v any) []byte {
		b, is := v.([]byte)
		ok = ok && (is || v == nil)
		return b
	}
	text := func(v any) string {
		s, is := v.(string)
		ok = ok && (is || v == nil)
		return s
	}
	digest(v[24], r.ID[:])
	digest(v[0], r.Scope[:])
	digest(v[1], r.Fingerprint[:])
	digest(v[2], r.Owner[:])
	state := number(v[3])
	r.Fence, r.Attempt, r.Gone = number(v[4]), int(number(v[5])), number(v[6]) != 0
	r.claimed, r.lease, r.settled, r.expires, r.forget = number(v[7]), number(v[8]), number(v[9]), number(v[10]), number(v[11])
	r.Result = store.Result{Status: int(number(v[12])), Type: text(v[13]), Head: blob(v[14]), Body: blob(v[15])}
	r.Label = store.Label{Class: text(v[16]), Name: text(v[17]), Ref: text(v[18])}
	r.repeatable = number(v[19]) != 0
	r.Cancelling = number(v[21]) != 0
	r.Notes = store.UnmarshalNotes(blob(v[22]))
	work := blob(v[23])
	if number(v[20]) != 0 {
		work = notNil(work)
	}
	if r.State = store.State(state); r.State.Settled() {
		r.Outbox = work
	} else {
		r.Work = work
	}
	if !ok || state < int64(store.Running) || state > int64(store.Accepted) || r.Fence <= 0 {
		return unreadable(r.ID, "its columns have unexpected values")
	}
	return nil
}

// forgotten reports whether the record counts as none.
func (r *row) forgotten(now micros) bool { return r.forget != 0 && now >= r.forget }

// lapsed reports whether the lease has expired.
func (r *row) lapsed(now micros) bool { return r.State == store.Running && now >= r.lease }

// whole returns the record at the time now; with the state None if it is forgotten.
func (r *row) whole(now micros) store.Record {
	if r.forgotten(now) {
		return store.Record{ID: r.ID}
	}
	rec := r.Record
	rec.ClaimedAt, rec.SettledAt, rec.ExpiresAt, rec.ForgetAt = instant(r.claimed), instant(r.settled), instant(r.expires), instant(r.forget)
	if rec.State == store.Running {
		rec.LeaseLeft = length(r.lease - now)
		if r.lapsed(now) {
			rec.LeaseLeft = min(rec.LeaseLeft, 0)
		}
	}
	if r.expires != 0 && now >= r.expires {
		rec.Result, rec.Gone = store.Result{}, true
	}
	return rec
}

// at is whole without job, messages and notes.
func (r *row) at(now micros) store.Record {
	rec := r.whole(now)
	rec.Work, rec.Outbox, rec.Notes, rec.Cancelling = nil, nil, store.Notes{}, false
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

// notNil is b, or an empty slice if b is nil.
func notNil(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}
