package postgres

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/internal/rules"
)

const (
	enterTries = 4
	goodbye    = 2 * time.Second // for a rollback

	readFirstPatience = time.Second
)

// Function is what RunTx runs.
type function = func(ctx context.Context, tx pgx.Tx, rec store.Record) (store.Settlement, error)

// locks are the numbers of a key's advisory locks, of this store's tables.
type locks struct {
	key                        int64 // held while a transaction runs
	id, finger                 int32 // held by it, too: says which fingerprint it has
	waiters                    int64 // held, shared, by processes that wait for it
	keyHi, keyLo, idU, fingerU int64 // as pg_locks shows them
}

func (s *Store) locks(id store.ID, fp store.Fingerprint) (l locks) {
	key := hash64("run", s.n.schema, s.n.table, string(id[:]))
	other := hash64("finger", s.n.schema, s.n.table, string(id[:]))
	finger := uint32(hash64(string(fp[:])))
	l.key, l.id, l.finger = int64(key), int32(uint32(other)), int32(finger)
	l.keyHi, l.keyLo = int64(key>>32), int64(key&0xffffffff)
	l.idU, l.fingerU = int64(uint32(other)), int64(finger)
	l.waiters = s.waitersLock(id)
	return l
}

// waitersLock is the number of the lock that tells a transaction that a caller
// waits for its end.
func (s *Store) waitersLock(id store.ID) int64 {
	return int64(binary.BigEndian.Uint64(id[8:]) ^ hash64("wait", s.n.schema, s.n.table))
}

// RunTx implements store.TxStore. The transaction uses a connection of the pool. fn must not
// end it: tx.Commit is refused, and after tx.Rollback nothing can be committed. Savepoints
// (tx.Begin) work.
//
// ctx bounds the time until fn is called; fn gets it unchanged. The end of ctx does not
// interrupt a commit. If the reply to a commit is lost, the record is read for 10 seconds, on
// another connection, after the server has ended the transaction.
//
// While fn runs, there is no visible row. The transaction holds an advisory lock whose number
// is 64 bits of a digest of the key. Two keys with the same number, of which one is refused as
// in flight while the other runs, are expected once in 2^64 pairs. 32 bits of another lock
// publish its fingerprint: a different fingerprint is recognised except once in 2^32, and then
// refused as in flight.
func (s *Store) RunTx(ctx context.Context, req store.ClaimRequest, keep store.Retention, fn function) (store.Record, error) {
	for try := 1; ; try++ {
		if err := ctx.Err(); err != nil {
			return store.Record{}, err
		}
		if s.closed.Load() {
			return store.Record{}, errClosed
		}
		t := &transaction{s: s, req: &req, locks: s.locks(req.ID, req.Fingerprint), options: s.o.TxOptions}
		rec, granted, err := t.enter(ctx)
		switch {
		case granted:
			return t.run(ctx, rec, keep, fn)
		case errors.Is(err, store.ErrMismatch), errors.Is(err, store.ErrNotDone):
			return rec, err
		case errors.Is(err, errLookAgain) && try < slowTries:
			continue
		case err != nil && try < enterTries && ctx.Err() == nil && !errors.Is(err, store.ErrUnknown) && transient(err):
			continue // nothing was done yet
		case err != nil:
			return store.Record{}, explain("begin", err)
		}
		return rec, nil
	}
}

// LockTx implements store.TxLocker, by the lock that RunTx takes.
func (s *Store) LockTx(ctx context.Context, tx pgx.Tx, id store.ID) (bool, error) {
	return scanLocked(tx.QueryRow(ctx, sqlLockOther, s.locks(id, store.Fingerprint{}).key))
}

func scanLocked(from scanner) (locked bool, err error) {
	err = from.Scan(&locked)
	return locked, explain("lock the other name", err)
}

// errLookAgain: the record changed while it was looked at.
var errLookAgain = errors.New("the record changes faster than it can be read; nothing was done")

// transaction is one try of RunTx, or one of InTx.
type transaction struct {
	s       *Store
	req     *store.ClaimRequest
	locks   locks
	options pgx.TxOptions
	conn    *pgxpool.Conn
	tx      pgx.Tx
	fence   int64
	claimed time.Time

	replicated bool // commits wait for standbys there
	old        *row // the record that must be replaced; nil if there is none
}

// enter begins the transaction. If it grants nothing, the transaction is over
// and rec is the answer.
func (t *transaction) enter(ctx context.Context) (rec store.Record, granted bool, err error) {
	if t.s.txReplay.high() {
		if rec, err := t.readFirst(ctx); rec.State.Settled() {
			return rec, false, err
		}
	}
	if t.conn, err = t.s.pool.Acquire(ctx); err != nil {
		return rec, false, err
	}
	defer func() {
		if !granted {
			t.rollBack()
		}
	}()
	r, err := t.look(ctx)
	if err != nil {
		return rec, false, err
	}
	return t.admit(ctx, r, pgxQuery(ctx, t.tx), func(wait bool) {
		if wait {
			t.rollBack()
		} else {
			t.rollBackLater()
		}
	})
}

// readFirst reads the record without a transaction: concurrent calls share a statement, and take no
// connection of the service's. If nothing is settled, or Read fails, the transaction reads it again.
func (t *transaction) readFirst(ctx context.Context) (store.Record, error) {
	ctx, cancel := context.WithTimeout(ctx, readFirstPatience)
	defer cancel()
	rec, err := t.s.Read(ctx, t.req.ID)
	switch {
	case err != nil:
		t.s.txReplay.share.Store(0)
		return store.Record{}, err
	case rec.Fingerprint != t.req.Fingerprint:
		return rec, store.ErrMismatch
	}
	return rec, nil
}

// admit decides about a transaction that has found r; it may be nil. If it grants nothing, the
// transaction is over: end ends it, unless its caller does.
func (t *transaction) admit(ctx context.Context, r *row, q txQuery, end func(wait bool)) (rec store.Record, granted bool, err error) {
	rec, next, err := onClaim(t.req, r)
	found := 0
	if rec.State.Settled() {
		found = 1
	}
	t.s.txReplay.add(found, 1)
	switch {
	case err != nil:
		end(false)
		return rec, false, err
	case next == rules.MarkUnknown:
		end(true)
		rec, ok, err := t.s.change(ctx, &write{req: t.req}, r, next)
		if err == nil && (!ok || freed(rec, next)) {
			err = errLookAgain
		}
		return rec, false, err
	case next == rules.None && rec.State == store.Running && rec.Owner == t.req.Owner:
		return rec, false, fmt.Errorf("this owner holds a claim from an earlier call already, whose fate is open: %w", store.ErrUnknown)
	case next == rules.None:
		end(false)
		return rec, false, t.s.ensureReplicated(ctx, r, t.req.Owner)
	case t.fence <= 0:
		if rec, err = t.busy(ctx, q); err == nil || errors.Is(err, store.ErrMismatch) {
			end(false)
		}
		return rec, false, err
	case r != nil && r.Fence >= t.fence:
		return rec, false, errLookAgain
	}
	t.old = r
	return t.granted()
}

// look begins the transaction, takes the key's lock if it is free, and reads the record, in one
// round trip.
func (t *transaction) look(ctx context.Context) (r *row, err error) {
	var b pgx.Batch
	b.BeginTx(t.options)
	b.Queue(t.s.sql.enter.sql, t.locks.key, t.locks.id, t.locks.finger, t.req.ID[:])
	results := t.conn.SendBatch(ctx, &b)
	t.tx = results.Tx()
	if _, err = results.Exec(); err == nil {
		r, err = t.scanEntered(results.QueryRow())
	}
	err = cmp.Or(err, results.Close())
	if sqlState(err) == codeNoStatement {
		t.discard() // the server has discarded prepared statements that pgx still expects
	}
	return r, err
}

// scanEntered reads the row of sqlEnter, which there always is. It returns nil if there is no record.
func (t *transaction) scanEntered(from scanner) (*row, error) {
	r := new(row)
	if err := r.scan(from, columns, &t.fence); err != nil {
		return nil, err
	}
	t.claimed, t.replicated = r.now, r.replicated
	if r.read.id == nil {
		return nil, nil
	}
	return r, nil
}

// granted is the record to be, unless claims are refused.
func (t *transaction) granted() (rec store.Record, granted bool, err error) {
	if err := t.s.durability.refusal(); err != nil {
		return rec, false, err
	}
	attempt := 1
	if t.old != nil && !t.old.forgotten() {
		attempt = t.old.Attempt + 1
	}
	rec = store.Record{ID: t.req.ID, Scope: t.req.Scope, Label: t.req.Label, State: store.Running, Fingerprint: t.req.Fingerprint,
		Owner: t.req.Owner, Fence: t.fence, Attempt: attempt, LeaseLeft: t.req.Lease, ClaimedAt: t.claimed}
	return rec, true, nil
}

// busy answers for a key that another transaction runs.
func (t *transaction) busy(ctx context.Context, q txQuery) (store.Record, error) {
	rec := store.Record{ID: t.req.ID, Scope: t.req.Scope, State: store.Running, Fingerprint: t.req.Fingerprint, InTx: true}
	if t.fence == 0 {
		return rec, nil
	}
	var differs bool
	err := q.row(t.s.sql.concurrent, t.locks.keyHi, t.locks.keyLo, t.locks.idU, t.locks.fingerU).Scan(&differs)
	if err != nil {
		return rec, err
	}
	if !differs {
		return rec, nil
	}
	// The transaction that has the lock may be of another request. It may do so without effect: this
	// very operation may have been committed by another transaction since our
	// statement, which has not seen it, began.
	r, err := t.s.readAlone(ctx, t.req.ID)
	switch {
	case err != nil:
		return rec, err
	case r == nil || r.forgotten():
		rec.Fingerprint = store.Fingerprint{} // not all of it is known
		return rec, store.ErrMismatch
	case r.Fingerprint != t.req.Fingerprint:
		return r.record(), store.ErrMismatch
	case r.State.Settled():
		return r.record(), t.s.ensureReplicated(ctx, r, t.req.Owner)
	}
	return rec, errLookAgain
}

// rollBackLater is rollBack for a transaction that has changed nothing and holds no lock
// that another caller waits for. Its caller does not wait for the reply.
func (t *transaction) rollBackLater() {
	rest := *t
	t.conn = nil
	t.s.rollbacks.run(rest.rollBack)
}

// rollbacks run in the background until the store is closed.
type rollbacks struct {
	mu     sync.Mutex
	closed bool
	wg     sync.WaitGroup
}

func (r *rollbacks) run(rollBack func()) {
	r.mu.Lock()
	closed := r.closed
	if !closed {
		r.wg.Go(rollBack)
	}
	r.mu.Unlock()
	if closed {
		rollBack()
	}
}

// close waits for the rollbacks, each of which takes at most goodbye.
func (r *rollbacks) close() {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.wg.Wait()
}

// rollBack rolls back if the transaction is open, and releases the connection. A connection
// in another state is closed by that.
func (t *transaction) rollBack() {
	if t.conn == nil {
		return
	}
	c := t.conn.Conn().PgConn()
	if t.tx != nil && c.TxStatus() != 'I' {
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
	if t.conn == nil {
		return // see committing
	}
	ctx, cancel := context.WithTimeout(context.Background(), goodbye)
	defer cancel()
	_ = t.conn.Conn().Close(ctx)
}

// run calls fn and ends the transaction.
func (t *transaction) run(ctx context.Context, rec store.Record, keep store.Retention, fn function) (store.Record, error) {
	defer t.rollBack() // also when fn panics or calls runtime.Goexit
	out, err := fn(ctx, &userTx{t.tx}, rec)
	if err != nil {
		return rec, err
	}
	if !out.State.Settled() {
		return rec, fmt.Errorf("%w: an outcome is completed or failed, not %v", store.ErrInvalid, out.State)
	}
	return t.leave(ctx, rec, &ending{claim: rec.Claim(), out: out, keep: keep})
}
