package postgres

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stet-go/stet"
)

const (
	enterTries   = 4
	goodbye      = 2 * time.Second // for a rollback
	inFlightInTx = -1              // the fence of a record that is not written yet
)

// Function is what RunTx runs.
type function = func(ctx context.Context, tx pgx.Tx, rec stet.Record) (stet.Outcome, error)

// locks are the numbers of a key's advisory locks, of this store's tables.
type locks struct {
	key                        int64 // held while a transaction runs
	id, finger                 int32 // held by it, too: says which fingerprint it has
	waiters                    int64 // held, shared, by processes that wait for it
	keyHi, keyLo, idU, fingerU int64 // as pg_locks shows them
}

func (s *Store) locks(id stet.ID, fp stet.Fingerprint) (l locks) {
	key := hash64("run", s.n.schema, s.n.table, string(id[:]))
	other := hash64("finger", s.n.schema, s.n.table, string(id[:]))
	finger := uint32(hash64(string(fp[:])))
	l.key, l.id, l.finger = int64(key), int32(uint32(other)), int32(finger)
	l.keyHi, l.keyLo = int64(key>>32), int64(key&0xffffffff)
	l.idU, l.fingerU = int64(uint32(other)), int64(finger)
	l.waiters = s.waitersLock(id)
	return l
}

// waitersLock is the number of the lock that tells a transaction that somebody
// waits for its end.
func (s *Store) waitersLock(id stet.ID) int64 {
	return int64(binary.BigEndian.Uint64(id[8:]) ^ hash64("wait", s.n.schema, s.n.table))
}

// RunTx implements stet.TxStore. The transaction is begun on a connection of the
// pool and must not be ended by fn: tx.Commit is refused, and after tx.Rollback
// nothing can be committed. Savepoints (tx.Begin) work.
//
// ctx bounds entering; fn gets it as it is. A commit is not given up when ctx
// ends. A commit whose reply was lost is looked up for 10 seconds, on another
// connection, once the transaction has let go of the key.
//
// While a transaction runs there is no row to be seen. It holds an advisory lock
// whose number is taken from 64 bits of a digest of the key: two keys with the
// same number, of which one is refused as in flight while the other runs, are to
// be expected once in 2^64 pairs. Its fingerprint is published by 32 bits of
// another one: a different fingerprint is told from it but for once in 2^32, when
// it is refused as in flight instead.
func (s *Store) RunTx(ctx context.Context, req stet.ClaimRequest, keep stet.Retention, fn function) (stet.Record, error) {
	for try := 1; ; try++ {
		if err := ctx.Err(); err != nil {
			return stet.Record{}, err
		}
		if s.closed.Load() {
			return stet.Record{}, errClosed
		}
		t := &transaction{s: s, req: &req, locks: s.locks(req.ID, req.Fingerprint)}
		rec, granted, err := t.enter(ctx)
		switch {
		case granted:
			return t.run(ctx, rec, keep, fn)
		case errors.Is(err, stet.ErrMismatch):
			return rec, err
		case errors.Is(err, errLookAgain) && try < slowTries:
			continue
		case err != nil && try < enterTries && ctx.Err() == nil && !errors.Is(err, stet.ErrUnknown) && transient(err):
			continue // nothing was done yet
		case err != nil:
			return stet.Record{}, explain("begin", err)
		}
		return rec, nil
	}
}

// errLookAgain: the record changed while it was looked at.
var errLookAgain = errors.New("the record changes faster than it can be read; nothing was done")

// transaction is one try of RunTx, or one of InTx.
type transaction struct {
	s       *Store
	req     *stet.ClaimRequest
	locks   locks
	process *process // of InTx: its end is that of the transaction; nil: the lock's
	conn    *pgxpool.Conn
	tx      pgx.Tx
	fence   int64
	claimed time.Time
	old     *row // the record that is to be replaced; nil if there is none
}

// enter begins the transaction. If it grants nothing, the transaction is over
// and rec is the answer.
func (t *transaction) enter(ctx context.Context) (rec stet.Record, granted bool, err error) {
	s := t.s
	if t.conn, err = s.pool.Acquire(ctx); err != nil {
		return rec, false, err
	}
	defer func() {
		if !granted {
			t.abandon()
		}
	}()
	var b pgx.Batch
	b.BeginTx(s.o.TxOptions)
	b.Queue(s.sql.enter, t.locks.key, t.locks.id, t.locks.finger, t.req.ID[:])
	results := t.conn.SendBatch(ctx, &b)
	t.tx = results.Tx()
	r, err := t.read(results)
	if cerr := results.Close(); err == nil {
		err = cerr
	}
	if sqlState(err) == codeNoStatement {
		t.discard() // somebody has discarded what was prepared, and pgx does not know
	}
	if err != nil {
		return rec, false, err
	}
	rec, next, err := onClaim(t.req, r)
	switch {
	case err != nil:
		return rec, false, err
	case next == stepPark:
		t.abandon()
		rec, ok, err := s.change(ctx, &write{req: t.req}, r, next)
		if err == nil && !ok {
			err = errLookAgain
		}
		return rec, false, err
	case next == stepNone && rec.State == stet.Running && rec.Owner == t.req.Owner:
		return rec, false, fmt.Errorf("this owner holds a claim from an earlier call already, whose fate is open: %w", stet.ErrUnknown)
	case next == stepNone:
		return rec, false, nil
	case t.fence <= 0:
		rec, err = t.busy(ctx, func(sql string, args ...any) scanner { return t.tx.QueryRow(ctx, sql, args...) })
		return rec, false, err
	case r != nil && r.Fence >= t.fence:
		return rec, false, errLookAgain
	}
	t.old = r
	return t.granted(), true, nil
}

// read reads what came back from entering: by hand if it is in the binary format,
// which most modes of a pool ask for.
func (t *transaction) read(results pgx.BatchResults) (r *row, err error) {
	if _, err := results.Exec(); err != nil {
		return nil, err
	}
	rows, err := results.Query()
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	if !rows.Next() {
		return nil, cmp.Or(rows.Err(), errDamaged)
	}
	if slices.ContainsFunc(rows.FieldDescriptions(), func(f pgconn.FieldDescription) bool { return f.Format != pgx.BinaryFormatCode }) {
		return scanRow(rows, pgx.ErrNoRows, &t.fence, &t.claimed)
	}
	f := fields{values: rows.RawValues()}
	t.fence, t.claimed = f.int64(), instant(f.time())
	if f.err() != nil || f.values[0] == nil {
		return nil, f.err()
	}
	r = new(row)
	return r, r.scan(f.values)
}

// granted is the record to be.
func (t *transaction) granted() stet.Record {
	attempt := 1
	if t.old != nil && !t.old.forgotten() {
		attempt = t.old.Attempt + 1
	}
	return stet.Record{ID: t.req.ID, Scope: t.req.Scope, State: stet.Running, Fingerprint: t.req.Fingerprint,
		Owner: t.req.Owner, Fence: t.fence, Attempt: attempt, LeaseLeft: t.req.Lease, ClaimedAt: t.claimed}
}

// busy answers for a key that another transaction runs.
func (t *transaction) busy(ctx context.Context, query func(sql string, args ...any) scanner) (stet.Record, error) {
	rec := stet.Record{ID: t.req.ID, Scope: t.req.Scope, State: stet.Running, Fingerprint: t.req.Fingerprint, Fence: inFlightInTx}
	if t.fence == 0 {
		return rec, nil
	}
	var rival bool
	err := query(t.s.sql.rival, t.locks.keyHi, t.locks.keyLo, t.locks.idU, t.locks.fingerU).Scan(&rival)
	if err != nil {
		return rec, err
	}
	if !rival {
		return rec, nil
	}
	// Whoever has the lock asks for something else. It may do so in vain: this
	// very operation may have been committed by another transaction since our
	// statement, which has not seen it, began.
	r, err := t.s.readAlone(ctx, t.req.ID)
	switch {
	case err != nil:
		return rec, err
	case r == nil || r.forgotten():
		rec.Fingerprint = stet.Fingerprint{} // nobody knows all of it
		return rec, stet.ErrMismatch
	case r.Fingerprint != t.req.Fingerprint:
		return r.record(), stet.ErrMismatch
	case r.State.Settled():
		return r.record(), nil
	}
	return rec, errLookAgain
}

// abandon rolls back, if there is something to roll back, and gives the
// connection back; one that is not clean is closed by that.
func (t *transaction) abandon() {
	if t.conn == nil {
		return
	}
	if t.tx != nil && t.conn.Conn().PgConn().TxStatus() != 'I' {
		ctx, cancel := context.WithTimeout(context.Background(), goodbye)
		defer cancel()
		_ = t.tx.Rollback(ctx)
	} else if t.tx != nil {
		t.close()
	}
	t.conn.Release()
	t.conn = nil
}

// discard closes the connection, so that the pool makes another one.
func (t *transaction) discard() {
	ctx, cancel := context.WithTimeout(context.Background(), goodbye)
	defer cancel()
	_ = t.conn.Conn().Close(ctx)
}

// run calls fn and ends the transaction.
func (t *transaction) run(ctx context.Context, rec stet.Record, keep stet.Retention, fn function) (stet.Record, error) {
	defer t.abandon() // also when fn panics or calls runtime.Goexit
	out, err := fn(ctx, &guarded{Tx: t.tx}, rec)
	if err != nil {
		return rec, err
	}
	if !out.State.Settled() {
		return rec, fmt.Errorf("%w: an outcome is completed or failed, not %v", stet.ErrInvalid, out.State)
	}
	return t.leave(ctx, rec, &ending{claim: rec.Claim(), out: out, keep: keep})
}

// guarded keeps fn from ending the transaction.
type guarded struct{ pgx.Tx }

var errNotYours = errors.New("postgres: the transaction is committed when the function has returned; it must not commit it by itself")

// Commit refuses.
func (guarded) Commit(context.Context) error { return errNotYours }

// scanner is a row of pgx or database/sql.
type scanner interface{ Scan(into ...any) error }

// scanRow reads columns through a driver, and what comes before them; nil if
// there is no row, which the driver says by none, or one of NULLs.
func scanRow(from scanner, none error, before ...any) (*row, error) {
	var r row
	var id, scope, fingerprint, owner []byte
	var fence *int64
	var state *int16
	var attempt *int32
	var gone *bool
	var claimed, lease, settled, expires, forget, now *time.Time
	err := from.Scan(append(before, &id, &scope, &fingerprint, &owner, &fence, &state, &attempt, &gone,
		&claimed, &lease, &settled, &expires, &forget, &r.Result, &now)...)
	if errors.Is(err, none) || err == nil && id == nil {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if fence == nil || state == nil || attempt == nil || gone == nil {
		return nil, fmt.Errorf("%w: a record is unreadable", errDamaged)
	}
	r.Fence, r.State, r.Attempt, r.Gone = *fence, stet.State(*state), int(*attempt), *gone
	if copy(r.ID[:], id) != len(r.ID) || copy(r.Scope[:], scope) != len(r.Scope) ||
		copy(r.Fingerprint[:], fingerprint) != len(r.Fingerprint) || copy(r.Owner[:], owner) != len(r.Owner) ||
		r.State < stet.Running || r.State > stet.Accepted || r.Fence <= 0 {
		return nil, fmt.Errorf("%w: a record is unreadable", errDamaged)
	}
	micro := func(t *time.Time) int64 {
		if t == nil {
			return 0
		}
		return t.UnixMicro()
	}
	r.claimed, r.lease, r.settled, r.expires, r.forgotAt, r.now = micro(claimed), micro(lease), micro(settled), micro(expires), micro(forget), micro(now)
	return &r, nil
}
