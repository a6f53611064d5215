package postgres

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgtype/zeronull"
	"github.com/stet-go/stet/store"
)

// column is a column of the table r, or another expression, that statements return for each
// record.
type column struct {
	name string           // of the table's column; "" if it is none
	sql  string           // if it is not r.name
	into func(r *row) any // where it is scanned to
}

// columns are those of a record, in the order in which they are read. Where there is no record, id
// is NULL.
//
// The clock is statement_timestamp everywhere: the time at which the server received the statement.
// now() would be the beginning of a transaction that may be long.
var columns = []column{
	{"id", "", func(r *row) any { return &r.read.id }},
	{"scope", "", func(r *row) any { return &r.read.scope }},
	{"fingerprint", "", func(r *row) any { return &r.read.fingerprint }},
	{"owner", "", func(r *row) any { return &r.read.owner }},
	{"fence", "", func(r *row) any { return (*zeronull.Int8)(&r.Fence) }},
	{"state", "", func(r *row) any { return &r.read.state }},
	{"attempt", "", func(r *row) any { return &r.read.attempt }},
	{"gone", "coalesce(r.gone, false)", func(r *row) any { return &r.Gone }},
	{"claimed_at", "", func(r *row) any { return (*zeronull.Timestamptz)(&r.ClaimedAt) }},
	{"lease_until", "", func(r *row) any { return (*zeronull.Timestamptz)(&r.lease) }},
	{"settled_at", "", func(r *row) any { return (*zeronull.Timestamptz)(&r.SettledAt) }},
	{"expires_at", "", func(r *row) any { return (*zeronull.Timestamptz)(&r.ExpiresAt) }},
	{"forget_at", "", func(r *row) any { return (*zeronull.Timestamptz)(&r.ForgetAt) }},
	{"status", "", func(r *row) any { return &r.read.status }},
	{"content_type", "", func(r *row) any { return (*zeronull.Text)(&r.Result.Type) }},
	{"head", "", func(r *row) any { return &r.Result.Head }},
	{"body", "", func(r *row) any { return &r.Result.Body }},
	{"class", "", func(r *row) any { return (*zeronull.Text)(&r.Label.Class) }},
	{"name", "", func(r *row) any { return (*zeronull.Text)(&r.Label.Name) }},
	{"ref", "", func(r *row) any { return (*zeronull.Text)(&r.Label.Ref) }},
	{"cancel_at", "r.cancel_at IS NOT NULL", func(r *row) any { return &r.Cancelling }},
	{"", "statement_timestamp()", func(r *row) any { return &r.now }},
	{"", replicated, func(r *row) any { return &r.replicated }},
}

// allColumns are columns with work and notes.
var allColumns = append(slices.Clip(columns),
	column{"work", "", func(r *row) any { return &r.Work }},
	column{"notes", "", func(r *row) any { return &r.notes }})

// selected are columns in a statement.
func selected(columns []column) string {
	var all []string
	for _, c := range columns {
		if c.sql == "" {
			c.sql = "r." + c.name
		}
		all = append(all, c.sql)
	}
	return strings.Join(all, ", ")
}

// unread are the table's columns in a statement from which others are selected later,
// without results.
func unread() string {
	var all []string
	for _, c := range columns {
		switch c.name {
		case "":
		case "status":
			all = append(all, "NULL::smallint AS status")
		case "content_type":
			all = append(all, "NULL::text AS content_type")
		case "head", "body":
			all = append(all, "NULL::bytea AS "+c.name)
		default:
			all = append(all, "r."+c.name)
		}
	}
	return strings.Join(all, ", ")
}

// scanner is a row of pgx or database/sql.
type scanner interface{ Scan(into ...any) error }

// scan reads columns, and values that precede them. If they are of no valid record the error is
// r.damage, too. If there is no record r.read.id is nil.
func (r *row) scan(from scanner, columns []column, before ...any) error {
	into := slices.Grow(before, len(columns))
	for _, c := range columns {
		into = append(into, c.into(r))
	}
	if err := from.Scan(into...); err != nil {
		return err
	}
	if r.read.id != nil && !r.valid() {
		r.damage = errUnreadable
	}
	return r.damage
}

// valid converts the values of r.read, and reports whether they are of a record.
func (r *row) valid() bool {
	r.Attempt, r.Result.Status = int(r.read.attempt), int(r.read.status)
	ok := r.Fence > 0 && int(r.read.state) >= int(store.Running) && int(r.read.state) <= int(store.Accepted)
	if ok {
		r.State = store.State(r.read.state)
	}
	for _, d := range []struct{ into, from []byte }{{r.ID[:], r.read.id}, {r.Scope[:], r.read.scope}, {r.Fingerprint[:], r.read.fingerprint}, {r.Owner[:], r.read.owner}} {
		if len(d.from) != len(d.into) {
			ok = false
			continue
		}
		copy(d.into, d.from)
	}
	return ok
}

// scanRow reads columns. It returns nil if there is no record, or
// no row, which the driver reports by the error none.
func scanRow(from scanner, none error) (*row, error) {
	r := new(row)
	err := r.scan(from, columns)
	if errors.Is(err, none) || err == nil && r.read.id == nil {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return r, nil
}

// param is a parameter of the statements that write, by its name in them, or an array
// of those of many writes.
type param struct {
	name string
	kind string           // its SQL type
	of   func(*write) any // []byte, string, int64, int32, int16, bool, time.Time, or nil for NULL
}

// Types of parameters.
const (
	aBytes  = "bytea"
	aText   = "text"
	anInt64 = "bigint"
	anInt32 = "integer"
	anInt16 = "smallint"
	aBool   = "boolean"
	aTime   = "timestamptz"
)

// The parameters of each kind of write. All times from now are in microseconds.
var (
	// asked is what a claim or an acceptance asks for, of which each is a column.
	asked = []param{
		{"id", aBytes, func(w *write) any { return w.req.ID[:] }},
		{"scope", aBytes, func(w *write) any { return w.req.Scope[:] }},
		{"fingerprint", aBytes, func(w *write) any { return w.req.Fingerprint[:] }},
		{"owner", aBytes, func(w *write) any { return w.req.Owner[:] }},
		{"class", aText, func(w *write) any { return w.req.Label.Class }},
		{"name", aText, func(w *write) any { return w.req.Label.Name }},
		{"ref", aText, func(w *write) any { return w.req.Label.Ref }},
	}
	claimed = with(asked,
		param{"lease", anInt64, func(w *write) any { return micros(w.req.Lease) }},
		param{"outside", aBool, func(w *write) any { return w.req.Outside }},
	)
	accepted = with(asked,
		param{"after", anInt64, func(w *write) any { return micros(w.job.after) }},
		param{"queued", anInt64, func(w *write) any { return micros(max(w.job.after, w.req.Queued)) }},
		param{"work", aBytes, func(w *write) any { return w.job.work }},
	)
	// was is the fence of the record that must be replaced.
	was = param{"was", anInt64, func(w *write) any { return w.was }}
	// outcome is what an operation comes to, or its release.
	outcome = []param{
		{"state", anInt16, func(w *write) any { return int16(w.end.out.State) }},
		{"gone", aBool, func(w *write) any { return w.end.out.Gone }},
		{"status", anInt16, func(w *write) any { return int16(w.end.result().Status) }},
		{"content_type", aText, func(w *write) any { return w.end.result().Type }},
		{"head", aBytes, func(w *write) any {
			if head := w.end.result().Head; len(head) > 0 {
				return head
			}
			return nil
		}},
		{"body", aBytes, func(w *write) any {
			switch {
			case w.end.release || w.end.out.Gone:
				return nil
			case w.end.out.Result.Body == nil:
				return []byte{}
			}
			return w.end.out.Result.Body
		}},
		{"keep", anInt64, func(w *write) any { return spanIf(w.end.keep.Result, !w.end.release) }}, // a release has no result that expires
		{"forget", anInt64, func(w *write) any { return spanIf(w.end.forget()) }},
		{"due", anInt64, func(w *write) any { return spanIf(w.end.due()) }},
		{"outbox", aBytes, func(w *write) any {
			if w.end.out.Outbox == nil {
				return nil
			}
			return w.end.out.Outbox
		}},
	}
	ended = with([]param{
		{"id", aBytes, func(w *write) any { return w.end.claim.ID[:] }},
		{"fence", anInt64, func(w *write) any { return w.end.claim.Fence }},
	}, outcome...)
	// finished is a record that a transaction writes.
	finished = with(with(asked,
		param{"fence", anInt64, func(w *write) any { return w.rec.Fence }},
		param{"attempt", anInt32, func(w *write) any { return int32(w.rec.Attempt) }},
		param{"claimed_at", aTime, func(w *write) any { return w.rec.ClaimedAt }},
	), outcome...)
	waited = param{"waiters", anInt64, func(w *write) any { return w.waiters }}
	// finishedNew are the parameters of a new finished record, finishedOld of a replacement.
	finishedNew = with(finished, waited)
	finishedOld = with(finishedNew, was)
	taking      = []param{
		{"id", aBytes, func(w *write) any { return w.take.ID[:] }},
		{"owner", aBytes, func(w *write) any { return w.take.Owner[:] }},
		{"lease", anInt64, func(w *write) any { return micros(w.take.Lease) }},
		{"repeatable", aBool, func(w *write) any { return w.take.Repeatable }},
	}
	relayed = []param{
		{"id", aBytes, func(w *write) any { return w.sent.claim.ID[:] }},
		{"fence", anInt64, func(w *write) any { return w.sent.claim.Fence }},
		{"keep", anInt64, func(w *write) any { return micros(w.sent.keep) }},
	}
)

func with(list []param, more ...param) []param { return append(list[:len(list):len(list)], more...) }

// spanIf is d in microseconds, or NULL unless there is one.
func spanIf(d time.Duration, there bool) any {
	if !there {
		return nil
	}
	return micros(d)
}

// one is a table e of one row, which is the parameters.
func one(list []param) string {
	var all []string
	for i, p := range list {
		all = append(all, fmt.Sprintf("$%d::%s AS %s", i+1, p.kind, p.name))
	}
	return "(SELECT " + strings.Join(all, ", ") + ") e"
}

// many is a table e whose columns are the parameters.
func many(list []param) string {
	var arrays, names []string
	for i, p := range list {
		arrays, names = append(arrays, fmt.Sprintf("$%d::%s[]", i+1, p.kind)), append(names, p.name)
	}
	return "unnest(" + strings.Join(arrays, ", ") + ") AS e (" + strings.Join(names, ", ") + ")"
}

// args are the parameters of one write.
func args(list []param, w *write) (all []any) {
	for _, p := range list {
		all = append(all, p.of(w))
	}
	return all
}

// arrays are the parameters of many writes: slices whose elements have one type, in every mode of pgx.
func arrays(list []param, writes []*write) (all []any) {
	for _, p := range list {
		switch p.kind {
		case aBytes:
			all = append(all, array[[]byte](p, writes))
		case aText:
			all = append(all, array[string](p, writes))
		case anInt64:
			all = append(all, pointers[int64](p, writes))
		case anInt32:
			all = append(all, array[int32](p, writes))
		case anInt16:
			all = append(all, array[int16](p, writes))
		case aBool:
			all = append(all, array[bool](p, writes))
		case aTime:
			all = append(all, array[time.Time](p, writes))
		}
	}
	return all
}

// array are values of which none is NULL, except a []byte that is nil.
func array[T any](p param, writes []*write) []T {
	all := make([]T, len(writes))
	for i, w := range writes {
		all[i], _ = p.of(w).(T)
	}
	return all
}

// pointers are values of which some may be NULL.
func pointers[T any](p param, writes []*write) []*T {
	all := make([]*T, len(writes))
	for i, w := range writes {
		if v, ok := p.of(w).(T); ok {
			all[i] = &v
		}
	}
	return all
}

// micros is d in microseconds, rounded up.
func micros(d time.Duration) int64 {
	n := d.Microseconds()
	if d%time.Microsecond > 0 {
		n++
	}
	return n
}
