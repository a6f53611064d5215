package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/stet-go/stet/store"
)

// late is the part of the records that is made when the indexes are there: one in so many.
const late = 33

// multiply makes size records of the first one by COPY: it changes the ID, scope, fingerprint,
// owner and fence, and moves the times. The indexes are dropped in the meantime, and restored
// then. The index of IDs is filled as if IDs had come in random order. There is free space for the
// records that come after a checkpoint: those of five minutes at 1,000 a second if there are ten
// million. last makes these; call it when all tables have had their checkpoint.
func multiply(ctx context.Context, pool *pgxpool.Pool, first store.Record, size, expired int) (last func(context.Context) error, err error) {
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Release()
	m, err := newMould(ctx, conn.Conn(), first, size, expired)
	if err != nil {
		return nil, err
	}
	restore, err := dropIndexes(ctx, pool)
	if err != nil {
		return nil, err
	}
	exec := func(statements ...string) error {
		for _, sql := range statements {
			if _, err := conn.Exec(ctx, sql); err != nil {
				return fmt.Errorf("%s: %w", sql, err)
			}
		}
		return nil
	}
	// A table that is made in the transaction needs no WAL, and its rows no VACUUM.
	most, removed := size-size/late, 2*(size/late)
	if err := exec("SET maintenance_work_mem = '512MB'", "BEGIN", "SET CONSTRAINTS ALL IMMEDIATE", "TRUNCATE stet.records CASCADE"); err != nil {
		return nil, err
	}
	if err := m.copy(ctx, conn.Conn(), "(FORMAT binary, FREEZE)", size, size+removed); err != nil {
		return nil, err
	}
	if err := m.copy(ctx, conn.Conn(), "(FORMAT binary, FREEZE)", 0, most); err != nil {
		return nil, err
	}
	if size >= announced {
		progress("PostgreSQL: the indexes of %d records are built", most)
	}
	restore = append(restore, fmt.Sprintf("SELECT setval('stet.records_fence', %d)", first.Fence+int64(size+removed)), "COMMIT", "RESET maintenance_work_mem",
		fmt.Sprintf("DELETE FROM stet.records WHERE fence >= %d", first.Fence+int64(size)), "VACUUM ANALYSE stet.records", "CHECKPOINT")
	if err := exec(restore...); err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		return pool.AcquireFunc(ctx, func(conn *pgxpool.Conn) error { return m.copy(ctx, conn.Conn(), "(FORMAT binary)", most, size) })
	}, nil
}

// announced is how many records are made from one line of progress to the next.
const announced = 1_000_000

// mould makes rows from a row of the store, in the binary format of COPY.
type mould struct {
	first         store.Record
	size, expired int
	names         []string
	times         []bool
	fields        [][]byte // nil: NULL
	now           time.Time
}

// header is what a file of COPY begins with, and end is its end.
var (
	header = []byte("PGCOPY\n\xff\r\n\x00\x00\x00\x00\x00\x00\x00\x00\x00")
	end    = []byte{0xff, 0xff}
)

func newMould(ctx context.Context, conn *pgx.Conn, first store.Record, size, expired int) (*mould, error) {
	m := &mould{first: first, size: size, expired: expired, now: time.Now()}
	rows, err := conn.Query(ctx, "SELECT attname::text, atttypid = 'timestamptz'::regtype FROM pg_attribute WHERE attrelid = 'stet.records'::regclass AND attnum > 0 AND NOT attisdropped AND attgenerated = '' ORDER BY attnum")
	if err != nil {
		return nil, err
	}
	var name string
	var isTime bool
	if _, err = pgx.ForEachRow(rows, []any{&name, &isTime}, func() error {
		m.names, m.times = append(m.names, name), append(m.times, isTime)
		return nil
	}); err != nil {
		return nil, err
	}
	for _, own := range []string{"id", "scope", "fingerprint", "owner", "fence"} {
		if !slices.Contains(m.names, own) {
			return nil, fmt.Errorf("the table has no longer a column %q, which tells operations apart", own)
		}
	}
	var out bytes.Buffer
	if _, err := conn.PgConn().CopyTo(ctx, &out, "COPY (SELECT "+strings.Join(m.names, ", ")+" FROM stet.records WHERE id = '\\x"+first.ID.String()+"') TO STDOUT (FORMAT binary)"); err != nil {
		return nil, err
	}
	return m, m.read(out.Bytes())
}

// read reads the one row of a file of COPY.
func (m *mould) read(b []byte) error {
	rest, ok := bytes.CutPrefix(b, header)
	if !ok || len(rest) < 2 || int(binary.BigEndian.Uint16(rest)) != len(m.names) {
		return errors.New("the first record is not there, or not in the format of COPY")
	}
	rest = rest[2:]
	for range m.names {
		n := int32(binary.BigEndian.Uint32(rest))
		rest = rest[4:]
		var value []byte
		if n >= 0 {
			value, rest = rest[:n:n], rest[n:]
		}
		m.fields = append(m.fields, value)
	}
	return nil
}

// row appends the record of an operation.
func (m *mould) row(b []byte, i int) []byte {
	req := request(filled(i))
	shift := m.at(i).Sub(m.first.ClaimedAt).Microseconds()
	b = binary.BigEndian.AppendUint16(b, uint16(len(m.names)))
	for f, value := range m.fields {
		var number [8]byte
		switch m.names[f] {
		case "id":
			value = req.ID[:]
		case "scope":
			value = req.Scope[:]
		case "fingerprint":
			value = req.Fingerprint[:]
		case "owner":
			value = req.Owner[:]
		case "fence":
			value = binary.BigEndian.AppendUint64(number[:0], uint64(m.first.Fence+int64(i)))
		default:
			if m.times[f] && value != nil {
				value = binary.BigEndian.AppendUint64(number[:0], binary.BigEndian.Uint64(value)+uint64(shift))
			}
		}
		if value == nil {
			b = binary.BigEndian.AppendUint32(b, 0xffffffff)
			continue
		}
		b = append(binary.BigEndian.AppendUint32(b, uint32(len(value))), value...)
	}
	return b
}

// at is when an operation was claimed: the expired ones yesterday, the others one after the
// other in the last hours.
func (m *mould) at(i int) time.Time { return claimedAt(m.now, i, m.size, m.expired) }

func claimedAt(now time.Time, i, size, expired int) time.Time {
	if i > 0 && i <= expired {
		return now.Add(-25 * time.Hour)
	}
	return now.Add(-time.Duration(float64(20*time.Hour) * (1 - float64(i)/float64(size))))
}

// copy makes the records of operations from one up to another.
func (m *mould) copy(ctx context.Context, conn *pgx.Conn, how string, from, to int) error {
	r, w := io.Pipe()
	made := make(chan struct{})
	go func() {
		defer close(made)
		out := bufio.NewWriterSize(w, 1<<20)
		_, err := out.Write(header)
		var b []byte
		for i := from; i < to && err == nil; i++ {
			b = m.row(b[:0], i)
			_, err = out.Write(b)
			if (i+1)%announced == 0 {
				progress("PostgreSQL: %d of %d records made", i+1, m.size)
			}
		}
		if err == nil {
			_, err = out.Write(end)
		}
		w.CloseWithError(errors.Join(err, out.Flush()))
	}()
	tag, err := conn.PgConn().CopyFrom(ctx, r, "COPY stet.records FROM STDIN "+how)
	_ = r.Close() // which ends the goroutine if the copy failed
	<-made
	if err == nil && int(tag.RowsAffected()) != to-from {
		err = fmt.Errorf("%d records were copied, not %d", tag.RowsAffected(), to-from)
	}
	return err
}
