package mysql

import (
	"context"
	"database/sql"
	"fmt"
	"math"
	"time"

	"github.com/stet-go/stet/store"
)

// micros is a time of the store: microseconds since 1970; 0 for none.
type micros = int64

// row is a stored record. Its State is None if there is no row, or a reserved one.
type row struct {
	store.Record
	times
	queue  string // see schema.go
	conn   int64
	stored bool  // there is a row
	drawn  bool  // its fence is drawn when it is written
	dirty  bool  // it must be written
	broken error // it cannot be read
}

// times are those of a row. A Running row with a queue may be repeated: it is in it when its lease
// has expired.
type times struct{ claimed, lease, settled, expires, forget, due, queueDue micros }

// job is the queue of jobs of that name.
func job(name string) string { return "j" + name }

const (
	messages = "m"
	unknowns = "u"
)

// scan fills r from a row with those columns, and more values. It validates all columns, and sets the
// readable ones before it sets r.broken.
func (r *row) scan(rows *sql.Rows, more ...any) error {
	var id, scope, fingerprint, owner, queue, class, name, ref, head, body, notes, work []byte
	var state, gone, cancelling int64
	var media sql.NullString
	var lease, settled, expires, forget, due, queueDue, conn, status sql.NullInt64
	into := []any{&id, &r.Fence, &scope, &fingerprint, &owner, &state, &r.Attempt, &gone, &cancelling, &r.claimed, &lease, &settled, &expires,
		&forget, &due, &queue, &queueDue, &conn, &class, &name, &ref, &status, &media, &head, &body, &notes, &work}
	if err := rows.Scan(append(into, more...)...); err != nil {
		return err
	}
	ok := true
	digest := func(from, into []byte) {
		ok = ok && len(from) == len(into)
		copy(into, from)
	}
	digest(id, r.ID[:])
	r.stored = true
	r.State = store.State(state)
	if state == 0 { // reserved
		return nil
	}
	digest(scope, r.Scope[:])
	digest(fingerprint, r.Fingerprint[:])
	digest(owner, r.Owner[:])
	r.Gone, r.Cancelling = gone != 0, cancelling != 0
	r.lease, r.settled, r.expires, r.forget, r.due = lease.Int64, settled.Int64, expires.Int64, forget.Int64, due.Int64
	r.queue, r.queueDue, r.conn = string(queue), queueDue.Int64, conn.Int64
	r.Label = store.Label{Class: string(class), Name: string(name), Ref: string(ref)}
	r.Result = store.Result{Status: int(status.Int64), Type: media.String, Head: head, Body: body}
	r.Notes = store.UnmarshalNotes(notes)
	if r.State.Settled() {
		r.Outbox = work
	} else {
		r.Work = work
	}
	if !ok || state < int64(store.Running) || state > int64(store.Accepted) || r.Fence <= 0 {
		r.broken = unreadable(r.ID, "its columns have unexpected values")
	}
	return nil
}

// values are those of the columns, in their order.
func (r *row) values() []any {
	null := func(n int64) any {
		if n == 0 {
			return nil
		}
		return n
	}
	bytes := func(b []byte) any {
		if b == nil {
			return nil
		}
		return b
	}
	var queue, media any
	if r.queue != "" {
		queue = []byte(r.queue)
	}
	if r.Result.Type != "" {
		media = []byte(r.Result.Type)
	}
	fence, work := any(r.Fence), r.Work
	if r.drawn {
		fence = nil
	}
	if r.State.Settled() {
		work = r.Outbox
	}
	return []any{r.ID[:], fence, r.Scope[:], r.Fingerprint[:], r.Owner[:], int64(r.State), int64(r.Attempt), r.Gone, r.Cancelling, r.claimed,
		null(r.lease), null(r.settled), null(r.expires), null(r.forget), null(r.due), queue, null(r.queueDue), null(r.conn),
		[]byte(r.Label.Class), []byte(r.Label.Name), []byte(r.Label.Ref), null(int64(r.Result.Status)), media,
		bytes(r.Result.Head), bytes(r.Result.Body), bytes(r.Notes.Marshal()), bytes(work)}
}

// forgotten reports whether the record counts as none.
func (r *row) forgotten(now micros) bool { return r.forget != 0 && now >= r.forget }

// lapsed reports whether the lease has expired.
func (r *row) lapsed(now micros) bool { return r.State == store.Running && now >= r.lease }

// repeatable reports whether the run may be repeated.
func (r *row) repeatable() bool { return r.State == store.Running && r.queue != "" }

// whole returns the record at the time now; with the state None if it is forgotten.
func (r *row) whole(now micros) store.Record {
	if r.forgotten(now) || r.State == store.None {
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

// Read implements store.Store. It waits for no transaction.
func (s *Store) Read(ctx context.Context, id store.ID) (store.Record, error) {
	rec, err := s.readOne(ctx, s.t.read, id)
	rec.Work, rec.Outbox, rec.Notes = nil, nil, store.Notes{}
	return rec, err
}

// Look implements store.WorkStore. It waits for no transaction.
func (s *Store) Look(ctx context.Context, id store.ID) (store.Record, error) {
	return s.readOne(ctx, s.t.look, id)
}

func (s *Store) readOne(ctx context.Context, text string, id store.ID) (store.Record, error) {
	a, err := s.answer(ctx, s.own, text, id[:])
	if err != nil {
		return store.Record{}, s.gaveUp("read", err)
	}
	r := a.row(id)
	if r.broken != nil {
		return store.Record{}, r.broken
	}
	return r.whole(a.now), s.confirmRead(ctx, r, a.now)
}

// gaveUp is explain for a call that had no effect, or that the store's end may have ended.
func (s *Store) gaveUp(step string, err error) error {
	if s.batches.isClosed() {
		return errClosed
	}
	return explain(step, err)
}

// queryer is a *sql.DB, *sql.Conn or Querier.
type queryer interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// answer is what a query of several statements returns.
type answer struct {
	header
	rows  []*row            // in their order
	byID  map[store.ID]*row // the same
	seen  map[store.ID]bool // IDs alone
	after []*row            // rows that came after the header
}

// row returns the row of id, or a new one.
func (a *answer) row(id store.ID) *row {
	if r := a.byID[id]; r != nil {
		return r
	}
	return &row{Record: store.Record{ID: id}}
}

// answer executes statements, and tells their results apart by the number of columns.
func (s *Store) answer(ctx context.Context, q queryer, text string, args ...any) (_ *answer, err error) {
	rows, err := q.QueryContext(ctx, text, args...)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	a := &answer{seen: make(map[store.ID]bool), byID: make(map[store.ID]*row)}
	for more := true; more; more = rows.NextResultSet() {
		names, err := rows.Columns()
		if err != nil {
			return nil, err
		}
		for rows.Next() {
			if err := a.scan(rows, len(names)); err != nil {
				return nil, err
			}
		}
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	if a.now != 0 {
		s.late.Store(a.binaryLog == 0)
	}
	a.now += s.ahead.Load()
	return a, nil
}

func (a *answer) scan(rows *sql.Rows, n int) error {
	switch n {
	case 1:
		var b []byte
		err := rows.Scan(&b)
		a.seen[store.ID(b)] = true
		return err
	case len(a.into()):
		return rows.Scan(a.into()...)
	case columnCount, columnCount + len(a.into()):
	default:
		return fmt.Errorf("a result of %d columns", n)
	}
	r := &row{}
	if n > columnCount {
		if err := r.scan(rows, a.into()...); err != nil {
			return err
		}
	} else if err := r.scan(rows); err != nil {
		return err
	}
	if a.now != 0 && n == columnCount {
		a.after = append(a.after, r)
		return nil
	}
	a.rows, a.byID[r.ID] = append(a.rows, r), r
	return nil
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
