package postgres

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
)

// The store's batches are written in the binary format by hand: arrays of
// hundreds of values go through pgx's general encoder several times slower.

var binaryFormat = []int16{1} // of all values

// epoch is the zero of timestamptz, in microseconds since 1970.
const epoch = 946_684_800_000_000

// statement is one SQL text with the types of its parameters.
type statement struct {
	name  string
	sql   string
	oids  []uint32
	reads bool // and writes nothing
}

// call is one execution of a statement.
type call struct {
	*statement
	params params
	row    func(values [][]byte) error // values are only valid until it returns
}

// params are the values of a call, one after the other in one buffer.
type params struct {
	buf    []byte
	starts []int
	nulls  uint     // a bit for each parameter that is NULL
	all    [][]byte // room for what values returns
}

// lent are parameters whose memory is used again: it may be once the call was sent, as that copies them.
var lent = sync.Pool{New: func() any { return &params{all: make([][]byte, len(finishedOld))} }}

// maxLent is the largest memory that is used again.
const maxLent = 16 << 10

func lend() *params {
	p := lent.Get().(*params)
	p.buf, p.starts, p.nulls = p.buf[:0], p.starts[:0], 0
	return p
}

func (p *params) free() {
	if cap(p.buf) <= maxLent {
		lent.Put(p)
	}
}

func (p *params) begin() { p.starts = append(p.starts, len(p.buf)) }

func (p *params) values() [][]byte {
	if cap(p.all) < len(p.starts) {
		p.all = make([][]byte, len(p.starts))
	}
	all := p.all[:len(p.starts)]
	for i, start := range p.starts {
		end := len(p.buf)
		if i+1 < len(p.starts) {
			end = p.starts[i+1]
		}
		if all[i] = p.buf[start:end:end]; p.nulls&(1<<i) != 0 {
			all[i] = nil
		}
	}
	return all
}

// array begins an array of n elements, which follow.
func (p *params) array(oid uint32, n int) {
	p.begin()
	for _, v := range [...]uint32{1, 1, oid, uint32(n), 1} {
		p.buf = binary.BigEndian.AppendUint32(p.buf, v)
	}
}

func (p *params) bytes(b []byte) {
	p.buf = binary.BigEndian.AppendUint32(p.buf, uint32(len(b)))
	p.buf = append(p.buf, b...)
}

func (p *params) null() { p.buf = append(p.buf, 0xff, 0xff, 0xff, 0xff) }

func (p *params) int64(n int64) {
	p.buf = append(p.buf, 0, 0, 0, 8)
	p.buf = binary.BigEndian.AppendUint64(p.buf, uint64(n))
}

func (p *params) int16(n int16) {
	p.buf = append(p.buf, 0, 0, 0, 2)
	p.buf = binary.BigEndian.AppendUint16(p.buf, uint16(n))
}

// micros is d in microseconds, rounded up.
func micros(d time.Duration) int64 {
	n := d.Microseconds()
	if d%time.Microsecond > 0 {
		n++
	}
	return n
}

// Types of parameters.
const (
	oidBytes  = pgtype.ByteaOID
	oidBytesA = pgtype.ByteaArrayOID
	oidText   = pgtype.TextOID
	oidTextA  = pgtype.TextArrayOID
	oidInt64A = pgtype.Int8ArrayOID
	oidInt16A = pgtype.Int2ArrayOID
	oidInt32A = pgtype.Int4ArrayOID
	oidTimeA  = pgtype.TimestamptzArrayOID
	oidBoolA  = pgtype.BoolArrayOID
	oidInt64  = pgtype.Int8OID
	oidInt32  = pgtype.Int4OID
	oidInt16  = pgtype.Int2OID
	oidBool   = pgtype.BoolOID
	oidTime   = pgtype.TimestamptzOID
)

// send executes calls in one round trip and, unless there is a transaction, in
// one transaction. What the rows say counts only if it returns nil.
func (s *Store) send(ctx context.Context, c *pgxpool.Conn, calls ...call) error {
	if len(calls) == 1 && !s.o.PgBouncer {
		return sendOne(ctx, c.Conn(), &calls[0])
	}
	if s.o.PgBouncer { // the session is not ours
		calls = append([]call{{statement: patience}}, calls...)
	}
	_, err := sendAll(ctx, c.Conn(), !s.o.PgBouncer, calls)
	return err
}

// sendAll executes calls in one round trip and returns the tag of the last one.
// With prepare, statements that are new to the connection are prepared before.
func sendAll(ctx context.Context, conn *pgx.Conn, prepare bool, calls []call) (last pgconn.CommandTag, err error) {
	var b pgconn.Batch
	for i := range calls {
		st := calls[i].statement
		if !prepare {
			b.ExecParams(st.sql, calls[i].params.values(), st.oids, binaryFormat, binaryFormat)
			continue
		}
		sd, err := conn.Prepare(ctx, st.name, st.sql)
		if err != nil {
			return last, err
		}
		b.ExecStatement(sd, calls[i].params.values(), binaryFormat, binaryFormat)
	}
	results := conn.PgConn().ExecBatch(ctx, &b)
	var bad error
	for i := 0; results.NextResult(); i++ {
		rows := results.ResultReader()
		for rows.NextRow() {
			if bad == nil && i < len(calls) && calls[i].row != nil {
				bad = calls[i].row(rows.Values())
			}
		}
		last, _ = rows.Close() // its error is that of results, too
	}
	if err := results.Close(); err != nil {
		return last, err
	}
	return last, bad
}

// sendPiped is sendAll for prepared statements, without memory of its own for what is sent. Nothing may
// listen to conn's messages: it would get what is sent, too, in full.
func sendPiped(ctx context.Context, conn *pgx.Conn, calls []call) (last pgconn.CommandTag, err error) {
	var room [3]*pgconn.StatementDescription
	prepared := room[:0]
	for i := range calls {
		sd, err := conn.Prepare(ctx, calls[i].name, calls[i].sql)
		if err != nil {
			return last, err
		}
		prepared = append(prepared, sd)
	}
	pipe := conn.PgConn().StartPipeline(ctx)
	for i, sd := range prepared {
		pipe.SendQueryStatement(sd, calls[i].params.values(), binaryFormat, binaryFormat)
	}
	err = pipe.Sync()
	var bad error
	for i := 0; i < len(calls) && err == nil; i++ {
		var results any
		if results, err = pipe.GetResults(); err != nil {
			break
		}
		rows, ok := results.(*pgconn.ResultReader)
		if !ok {
			err = fmt.Errorf("the server answered with a %T", results)
			break
		}
		for rows.NextRow() {
			if bad == nil && calls[i].row != nil {
				bad = calls[i].row(rows.Values())
			}
		}
		last, err = rows.Close()
	}
	if closed := pipe.Close(); err == nil {
		err = closed
	}
	if err != nil {
		return last, err
	}
	return last, bad
}

// sendOne is send for one call, with less ado.
func sendOne(ctx context.Context, conn *pgx.Conn, c *call) error {
	sd, err := conn.Prepare(ctx, c.name, c.sql)
	if err != nil {
		return err
	}
	rows := conn.PgConn().ExecStatement(ctx, sd, c.params.values(), binaryFormat, binaryFormat)
	var bad error
	for rows.NextRow() {
		if bad == nil && c.row != nil {
			bad = c.row(rows.Values())
		}
	}
	if _, err := rows.Close(); err != nil {
		return err
	}
	return bad
}

// fields decodes the values of one row.
type fields struct {
	values [][]byte
	bad    bool
}

func (f *fields) next(size int) []byte {
	if len(f.values) == 0 {
		f.bad = true
		return nil
	}
	v := f.values[0]
	f.values = f.values[1:]
	if v != nil && size > 0 && len(v) != size {
		f.bad = true
		return nil
	}
	return v
}

func (f *fields) digest(into []byte) {
	if copy(into, f.next(len(into))) != len(into) {
		f.bad = true
	}
}

func (f *fields) int64() int64 {
	if v := f.next(8); v != nil {
		return int64(binary.BigEndian.Uint64(v))
	}
	f.bad = true
	return 0
}

func (f *fields) int32() int {
	if v := f.next(4); v != nil {
		return int(int32(binary.BigEndian.Uint32(v)))
	}
	f.bad = true
	return 0
}

func (f *fields) int16() int {
	if v := f.next(2); v != nil {
		return int(int16(binary.BigEndian.Uint16(v)))
	}
	f.bad = true
	return 0
}

func (f *fields) bool() bool {
	v := f.next(1)
	return v != nil && v[0] != 0
}

// time returns 0 for NULL.
func (f *fields) time() moment {
	if v := f.next(8); v != nil {
		return moment(binary.BigEndian.Uint64(v)) + epoch
	}
	return 0
}

// bytes returns a copy; nil for NULL.
func (f *fields) bytes() []byte {
	v := f.next(0)
	if v == nil {
		return nil
	}
	return append(make([]byte, 0, len(v)), v...)
}

func (f *fields) text() string { return string(f.next(0)) }

func (f *fields) err() error {
	if f.bad {
		return errDamaged
	}
	return nil
}
