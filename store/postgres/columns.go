package postgres

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/stet-go/stet/store"
)

// column is what every statement that returns records returns of each: a column of
// the table r, or what else has to be known with it.
type column struct {
	name string           // of the table's column; "" if it is none
	sql  string           // if it is not r.name
	into func(r *row) any // where it goes
}

// columns are those of a record, in the order in which they are read. Here a column is
// added; what is written is in statements.go.
//
// The clock is statement_timestamp everywhere: when the statement reached the server.
// now() would be the beginning of a transaction that may be long.
var columns = []column{
	{"id", "", func(r *row) any { return &r.ID }},
	{"scope", "", func(r *row) any { return &r.Scope }},
	{"fingerprint", "", func(r *row) any { return &r.Fingerprint }},
	{"owner", "", func(r *row) any { return &r.Owner }},
	{"fence", "", func(r *row) any { return &r.Fence }},
	{"state", "", func(r *row) any { return &r.State }},
	{"attempt", "", func(r *row) any { return &r.Attempt }},
	{"gone", "", func(r *row) any { return &r.Gone }},
	{"claimed_at", "", func(r *row) any { return &r.claimed }},
	{"lease_until", "", func(r *row) any { return &r.lease }},
	{"settled_at", "", func(r *row) any { return &r.settled }},
	{"expires_at", "", func(r *row) any { return &r.expires }},
	{"forget_at", "", func(r *row) any { return &r.forgotAt }},
	{"status", "coalesce(r.status, 0)::integer", func(r *row) any { return &r.Result.Status }},
	{"content_type", "coalesce(r.content_type, '')", func(r *row) any { return &r.Result.Type }},
	{"head", "", func(r *row) any { return &r.Result.Head }},
	{"body", "", func(r *row) any { return &r.Result.Body }},
	{"class", "", func(r *row) any { return &r.Label.Class }},
	{"name", "", func(r *row) any { return &r.Label.Name }},
	{"ref", "", func(r *row) any { return &r.Label.Ref }},
	{"cancel_at", "r.cancel_at IS NOT NULL", func(r *row) any { return &r.Cancelling }},
	{"", "statement_timestamp()", func(r *row) any { return &r.now }},
	{"", replicated, func(r *row) any { return &r.replicated }},
}

// bulk is what comes after columns where work and notes are asked for.
var bulk = []column{
	{"work", "", func(r *row) any { return &r.Work }},
	{"notes", "", func(r *row) any { return &r.noted }},
}

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

// moment is a time of the server, in microseconds since 1970; 0 where none applies.
type moment int64

// scan reads the values of columns, and of bulk if they are there. What it cannot
// read is r.damage, too.
func (r *row) scan(values [][]byte) error {
	f := fields{values: values, bad: len(values) < len(columns)}
	for _, c := range columns {
		f.into(c.into(r))
	}
	for _, c := range bulk {
		if len(f.values) > 0 {
			f.into(c.into(r))
		}
	}
	if f.bad || r.Fence <= 0 {
		r.damage = errUnreadable
	}
	return r.damage
}

// into reads the next value into what at points to.
func (f *fields) into(at any) {
	switch at := at.(type) {
	case *store.ID:
		f.digest(at[:])
	case *store.Fingerprint:
		f.digest(at[:])
	case *store.Owner:
		f.digest(at[:])
	case *store.State:
		f.bad = !setState(at, int64(f.int16())) || f.bad
	case *int64:
		*at = f.int64()
	case *int:
		*at = f.int32()
	case *bool:
		*at = f.bool()
	case *moment:
		*at = f.time()
	case *[]byte:
		*at = f.bytes()
	case *string:
		*at = f.text()
	}
}

func setState(at *store.State, n int64) bool {
	if n < int64(store.Running) || n > int64(store.Accepted) {
		return false
	}
	*at = store.State(n)
	return true
}

// value is one that a driver has read: it is an sql.Scanner, which pgx knows, too.
type value struct{ v any }

// Scan implements sql.Scanner.
func (v *value) Scan(from any) error {
	if b, ok := from.([]byte); ok {
		from = bytes.Clone(b) // the driver's
	}
	v.v = from
	return nil
}

// into is fields.into for it.
func (v *value) into(at any) bool {
	digest := func(into []byte) bool {
		b, ok := v.v.([]byte)
		return ok && len(b) == len(into) && copy(into, b) > 0
	}
	n, number := v.v.(int64)
	ok := true
	switch at := at.(type) {
	case *store.ID:
		return digest(at[:])
	case *store.Fingerprint:
		return digest(at[:])
	case *store.Owner:
		return digest(at[:])
	case *store.State:
		return number && setState(at, n)
	case *int64:
		*at, ok = n, number
	case *int:
		*at, ok = int(n), number
	case *bool:
		*at, ok = v.v.(bool)
	case *moment:
		if t, is := v.v.(time.Time); is {
			*at = moment(t.UnixMicro())
		}
	case *[]byte:
		*at, _ = v.v.([]byte)
	case *string:
		if b, is := v.v.([]byte); is { // of some drivers
			v.v = string(b)
		}
		*at, ok = v.v.(string)
	}
	return ok
}

// scanner is a row of pgx or database/sql.
type scanner interface{ Scan(into ...any) error }

// scanRow reads columns through a driver, and what comes before them; nil if
// there is no row, which the driver says by none, or one of NULLs.
func scanRow(from scanner, none error, before ...any) (*row, error) {
	values := make([]value, len(columns))
	for i := range values {
		before = append(before, &values[i])
	}
	err := from.Scan(before...)
	if errors.Is(err, none) || err == nil && values[0].v == nil {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	r, ok := new(row), true
	for i, c := range columns {
		ok = values[i].into(c.into(r)) && ok
	}
	if !ok || r.Fence <= 0 {
		return nil, errUnreadable
	}
	return r, nil
}

// param is a parameter of the statements that write, by its name in them, or an array
// of those of many writes.
type param struct {
	name string
	kind kindOf
	of   func(*write) any // []byte, string, int64, int32, int16, bool, time.Time, or nil for NULL
}

// kindOf is an SQL type.
type kindOf struct {
	sql      string
	one, all uint32
}

var (
	aBytes  = kindOf{"bytea", oidBytes, oidBytesA}
	aText   = kindOf{"text", oidText, oidTextA}
	anInt64 = kindOf{"bigint", oidInt64, oidInt64A}
	anInt32 = kindOf{"integer", oidInt32, oidInt32A}
	anInt16 = kindOf{"smallint", oidInt16, oidInt16A}
	aBool   = kindOf{"boolean", oidBool, oidBoolA}
	aTime   = kindOf{"timestamptz", oidTime, oidTimeA}
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
	// was is the fence of the record that is to be replaced.
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
	// finishedNew are the parameters of one such record, finishedOld of one that replaces another.
	finishedNew = with(with(finished, waited), sessions...)
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
		all = append(all, fmt.Sprintf("$%d::%s AS %s", i+1, p.kind.sql, p.name))
	}
	return "(SELECT " + strings.Join(all, ", ") + ") e"
}

// many is a table e whose columns are the parameters.
func many(list []param) string {
	var arrays, names []string
	for i, p := range list {
		arrays, names = append(arrays, fmt.Sprintf("$%d::%s[]", i+1, p.kind.sql)), append(names, p.name)
	}
	return "unnest(" + strings.Join(arrays, ", ") + ") AS e (" + strings.Join(names, ", ") + ")"
}

// types are those of the parameters, or of arrays of them.
func types(list []param, many bool) (oids []uint32) {
	for _, p := range list {
		if many {
			oids = append(oids, p.kind.all)
		} else {
			oids = append(oids, p.kind.one)
		}
	}
	return oids
}

// args are the parameters of one write for a driver.
func args(list []param, w *write) (all []any) {
	for _, p := range list {
		all = append(all, p.of(w))
	}
	return all
}

// arrays are the parameters of many writes for pgx, all of which have an end: none has
// messages.
func arrays(list []param, writes []*write) (all []any) {
	for _, p := range list {
		switch p.kind {
		case aBytes:
			all = append(all, array[[]byte](p, writes))
		case aText:
			all = append(all, array[string](p, writes))
		case anInt64:
			all = append(all, array[int64](p, writes))
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

// array are values of which none is NULL, but for a []byte that is nil.
func array[T any](p param, writes []*write) []T {
	all := make([]T, len(writes))
	for i, w := range writes {
		all[i], _ = p.of(w).(T)
	}
	return all
}

// packOne is args in the binary format.
func packOne(list []param, w *write) (p params) {
	p.pack(list, w)
	return p
}

// pack adds the parameters of w, and makes room for them.
func (p *params) pack(list []param, w *write) {
	p.buf, p.starts = slices.Grow(p.buf, 40*len(list)+w.size()), slices.Grow(p.starts, len(list))
	for i, one := range list {
		p.begin()
		if v := one.of(w); v != nil {
			p.buf = appendValue(p.buf, v)
		} else {
			p.nulls |= 1 << i
		}
	}
}

// pack are the parameters of one write, or the arrays of packMany.
func pack(list []param, ops []*op[write]) (p params) {
	if len(ops) == 1 {
		return packOne(list, &ops[0].v)
	}
	return packMany(list, ops)
}

func packMany(list []param, ops []*op[write]) (p params) {
	size := 0
	for _, o := range ops {
		size += 30*len(list) + o.v.size()
	}
	p.buf, p.starts = make([]byte, 0, size), make([]int, 0, len(list))
	for _, each := range list {
		p.array(each.kind.one, len(ops))
		for _, o := range ops {
			at := len(p.buf)
			p.null() // or its length
			if v := each.of(&o.v); v != nil {
				p.buf = appendValue(p.buf, v)
				binary.BigEndian.PutUint32(p.buf[at:], uint32(len(p.buf)-at-4))
			}
		}
	}
	return p
}

// appendValue appends v in the binary format.
func appendValue(b []byte, v any) []byte {
	switch v := v.(type) {
	case []byte:
		return append(b, v...)
	case string:
		return append(b, v...)
	case int64:
		return binary.BigEndian.AppendUint64(b, uint64(v))
	case int32:
		return binary.BigEndian.AppendUint32(b, uint32(v))
	case int16:
		return binary.BigEndian.AppendUint16(b, uint16(v))
	case time.Time:
		return binary.BigEndian.AppendUint64(b, uint64(v.UnixMicro()-epoch))
	case bool:
		if v {
			return append(b, 1)
		}
		return append(b, 0)
	}
	panic(fmt.Sprintf("postgres: a parameter that is a %T", v))
}
