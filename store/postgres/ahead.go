package postgres

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// A transaction of RunTx looks ahead: its first statement goes out by itself, before BEGIN.
// It reads the record and, if that is free, takes the key's lock for the session. So a
// replay has nothing to roll back, and is one round trip. BEGIN goes out with the
// function's first statement. The statement that writes the record, and is sent with
// COMMIT, takes the lock for the transaction and lets go of the session's.
//
// That needs a session of one's own. The statement compares the process that it runs in with the
// one that the connection was promised: behind a pooler that shares sessions it takes
// no lock, and the store enters as Options.PgBouncer has it do, within the transaction.

// looksAhead reports whether transactions may.
func (s *Store) looksAhead() bool {
	o := s.o.TxOptions
	return s.prepare && s.batched && !s.o.PgBouncer && !s.shared.Load() &&
		o.AccessMode == "" && o.DeferrableMode == "" && o.BeginQuery == "" && o.CommitQuery == ""
}

// sessionShared is what sqlAhead says instead of a fence where the session is another's.
const sessionShared = -2

// lookAhead executes sqlAhead. If it fails the lock may be taken, so the connection is closed.
func (t *transaction) lookAhead(ctx context.Context) (r *row, err error) {
	packed := lend()
	defer packed.free()
	packed.rawInt64(t.locks.key)
	packed.rawInt32(t.locks.id)
	packed.rawInt32(t.locks.finger)
	packed.raw(t.req.ID[:])
	packed.rawInt64(int64(t.conn.Conn().PgConn().PID()))
	c := call{t.s.sql.ahead, *packed, func(values [][]byte) error {
		f := fields{values: values}
		t.fence = f.int64()
		t.clock(f.values)
		t.session, t.published = t.fence > 0 || t.fence < sessionShared, t.fence > 0
		if t.fence < sessionShared {
			t.fence = sessionShared - t.fence
		}
		if f.err() != nil || f.values[0] == nil {
			return f.err()
		}
		r = new(row)
		return r.scan(f.values)
	}}
	if err = sendOne(ctx, t.conn.Conn(), &c); err != nil && !errors.Is(err, errDamaged) {
		t.discard()
	}
	return r, err
}

// clock reads what ends the values of columns, of a record or of none.
func (t *transaction) clock(values [][]byte) {
	f := fields{values: values[min(len(values), len(columns)-2):]}
	t.claimed, t.replicated = instant(f.time()), f.bool()
}

// unlock rolls back what there is and lets go of the session's locks, in one round trip.
func (t *transaction) unlock() {
	ctx, cancel := context.WithTimeout(context.Background(), goodbye)
	defer cancel()
	sql := fmt.Sprintf("SELECT pg_advisory_unlock(%d)", t.locks.key)
	if t.published {
		sql += fmt.Sprintf(", pg_advisory_unlock(%d, %d)", t.locks.id, t.locks.finger)
	}
	c := t.conn.Conn().PgConn()
	if c.TxStatus() != 'I' {
		sql = "ROLLBACK; " + sql
	}
	if _, err := c.Exec(ctx, sql).ReadAll(); err != nil {
		t.discard()
	}
	t.session = false
}

// beginning begins a transaction with what looksAhead admits of options.
func beginning(o pgx.TxOptions) string {
	if o.IsoLevel != "" {
		return "begin isolation level " + string(o.IsoLevel)
	}
	return "begin"
}

// handed returns the transaction that a function is to be called with, what ends it, and what
// says why it cannot be committed. If t has looked ahead it begins with its first statement.
func (t *transaction) handed(ctx context.Context) (tx pgx.Tx, end func(), bad func() error) {
	if t.tx != nil {
		return t.tx, t.abandon, func() error { return nil }
	}
	w := &worked{t: t, ctx: ctx, conn: t.conn.Conn()}
	return w, w.end, w.spoiled
}

// sessions are the parameters of the statement that writes the record by which it lets go of
// the session's locks; NULL if there are none.
var sessions = []param{
	{"held", anInt64, func(w *write) any {
		if w.locks == nil {
			return nil
		}
		return w.locks.key
	}},
	{"held_id", anInt32, func(w *write) any {
		if w.locks == nil || !w.published {
			return nil
		}
		return w.locks.id
	}},
	{"held_finger", anInt32, func(w *write) any {
		if w.locks == nil || !w.published {
			return nil
		}
		return w.locks.finger
	}},
}

func (p *params) rawInt32(n int32) {
	p.begin()
	p.buf = binary.BigEndian.AppendUint32(p.buf, uint32(n))
}
