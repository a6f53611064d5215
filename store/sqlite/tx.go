package sqlite

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/stet-go/stet/internal/fault"
	"github.com/stet-go/stet/store"
)

// RunTx implements store.TxStore. Transactions of one process run one after the other, in the
// order of their calls. ctx bounds the wait for them and for other processes; BusyTimeout
// bounds the latter.
//
// A transaction in which a statement failed is not committed, also if fn returns no error. Use
// a savepoint around the statement, and ROLLBACK TO after the failure.
//
// The record is written as Running before fn is called, and settled after it, in the same
// transaction. If fn ends the transaction itself, against the rules, a running record stays.
func (s *Store) RunTx(ctx context.Context, req store.ClaimRequest, keep store.Retention,
	fn func(context.Context, *sql.Tx, store.Record) (store.Settlement, error)) (store.Record, error) {
	if err := s.nested(ctx); err != nil {
		return store.Record{}, err
	}
	if err := ctx.Err(); err != nil {
		return store.Record{}, err
	}
	// A settled record is found without waiting for the writer.
	rec, err := s.Read(ctx, req.ID)
	switch {
	case err != nil:
		return store.Record{}, err
	case rec.State.Settled() && rec.Fingerprint != req.Fingerprint:
		return rec, store.ErrMismatch
	case rec.State.Settled():
		return rec, nil
	}
	asked := time.Now()
	if err := s.w.acquire(ctx); err != nil {
		return store.Record{}, err
	}
	defer s.w.handOver()
	tx, err := s.beginTx(ctx, asked)
	if err != nil {
		return store.Record{}, err
	}
	defer func() { _ = tx.Rollback() }() // also when fn panics or calls runtime.Goexit
	t := &transaction{s: s, tx: tx, session: txSession{ctx: context.WithoutCancel(ctx), tx: tx, stmts: &s.stmts}}
	rec, granted, err := t.claim(&req)
	if err != nil || !granted {
		return rec, err
	}
	in := &inside{store: s}
	defer in.over.Store(true) // also when fn panics
	out, err := fn(context.WithValue(ctx, insideKey{}, in), tx, rec)
	if err != nil {
		return rec, err
	}
	return t.finish(rec, out, keep)
}

// beginTx begins a transaction for the caller that holds the writer.
func (s *Store) beginTx(ctx context.Context, asked time.Time) (tx *sql.Tx, err error) {
	// Without cancellation: database/sql would roll back beneath fn. Whether
	// to stop is for fn to say, which has ctx.
	background := context.WithoutCancel(ctx)
	err = s.lock(ctx, asked, func() (err error) {
		tx, err = s.txs.BeginTx(background, nil)
		return err
	})
	return tx, err
}

// inside marks the context of a function of RunTx or InTx, which holds the writer.
type inside struct {
	store *Store
	tx    *sql.Tx
	over  atomic.Bool // the function has returned
}

type insideKey struct{}

// nested refuses a write from inside RunTx's function: it would wait for the
// writer that its own caller holds.
func (s *Store) nested(ctx context.Context) error {
	in, _ := ctx.Value(insideKey{}).(*inside)
	if in == nil || in.store != s || in.over.Load() {
		return nil
	}
	return fmt.Errorf("sqlite: %w: called from inside a transaction of the same store, which has the only writer; use that transaction. Nothing was done", store.ErrInvalid)
}

// transaction is one RunTx past its gate.
type transaction struct {
	s       *Store
	tx      *sql.Tx
	session txSession
}

// claim claims inside the transaction. An answer without a grant is durable when it returns.
func (t *transaction) claim(req *store.ClaimRequest) (rec store.Record, granted bool, err error) {
	now := t.s.o.Clock().UnixMicro()
	var f fences
	rec, err = claim(t.session, &asked{ClaimRequest: req}, now, func() (int64, error) { return f.draw(t.session) })
	switch {
	case errors.Is(err, store.ErrMismatch):
		return rec, false, err
	case err != nil:
		return store.Record{}, false, t.s.explain("claim", err, "nothing was committed")
	case (rec.State == store.Unknown || rec.State == store.Accepted) && rec.SettledAt.UnixMicro() == now:
		// MarkedUnknown just now, or in this very microsecond: keep it so.
		if err := t.s.commit(t.tx); err != nil {
			return store.Record{}, false, t.s.explain("commit", err, "nothing was committed")
		}
		return rec, false, nil
	case rec.State != store.Running || rec.Owner != req.Owner:
		return rec, false, nil
	case rec.Fence != f.last:
		return rec, false, fmt.Errorf("sqlite: this owner holds a claim from an earlier call already, whose fate is open: %w", store.ErrUnknown)
	}
	return rec, true, nil
}

// finish settles and commits.
func (t *transaction) finish(rec store.Record, out store.Settlement, keep store.Retention) (store.Record, error) {
	now := t.s.o.Clock().UnixMicro()
	err := settle(t.session, rec.Claim(), out, keep, now)
	switch {
	case errors.Is(err, store.ErrInvalid):
		return rec, err
	case errors.Is(err, sql.ErrTxDone), errors.Is(err, store.ErrFenced):
		return t.endedInside(rec, err)
	case err != nil:
		return rec, t.s.explain("settle", err, "nothing was committed")
	}
	if err := t.s.failed.check(); err != nil {
		return rec, err
	}
	rec, err = t.read(rec.ID, now)
	if err != nil {
		return rec, err
	}
	fault.At(fault.CommitBefore)
	err = t.s.commit(t.tx)
	fault.At(fault.CommitAfter)
	if err != nil {
		return t.readBack(rec, err)
	}
	return rec, nil
}

// read returns the record as the transaction sees it.
func (t *transaction) read(id store.ID, now micros) (store.Record, error) {
	r, err := load(t.session, id)
	if err == nil && r == nil {
		err = unreadable(id, "it has gone")
	}
	if err != nil {
		return store.Record{ID: id}, t.s.explain("settle", err, "nothing was committed")
	}
	return r.at(now), nil
}

// endedInside returns the error for a transaction that fn ended, or whose end fn ignored:
// SQLite rolls back by itself when a write is interrupted or the disk is full, and later
// writes are committed one by one.
func (t *transaction) endedInside(rec store.Record, cause error) (store.Record, error) {
	_ = t.tx.Rollback()
	now, err := t.s.lookUp(t.session.ctx, rec.ID)
	switch {
	case err != nil:
		return rec, fmt.Errorf("sqlite: %w: the function ended the transaction, and the record could not be read back: %w", store.ErrUnknown, err)
	case now.Owner == rec.Owner && now.Fence == rec.Fence:
		return rec, fmt.Errorf("sqlite: %w: the function committed the transaction, which is not its to end; its writes stand, and the record says only that it ran", store.ErrUnknown)
	case errors.Is(cause, sql.ErrTxDone):
		return rec, &store.AbortedError{Cause: errors.New("sqlite: the function rolled the transaction back, which is not its to end, and returned no error; nothing was committed")}
	}
	return rec, fmt.Errorf("sqlite: %w: SQLite rolled back while the function ran, after an error that the function must have ignored; its later writes are committed", store.ErrUnknown)
}

// readBack finds out what became of a commit that failed.
func (t *transaction) readBack(rec store.Record, cause error) (store.Record, error) {
	_ = t.tx.Rollback()
	now, err := t.s.lookUp(t.session.ctx, rec.ID)
	switch {
	case err != nil:
		return rec, fmt.Errorf("sqlite: %w: the commit failed (%w) and the record could not be read back: %w", store.ErrUnknown, cause, err)
	case now.Owner == rec.Owner && now.Fence == rec.Fence && now.State == rec.State:
		return rec, nil // it was committed after all
	}
	return rec, t.s.uncommitted(cause, "nothing was committed")
}

// lookUp is Read within a bound of its own.
func (s *Store) lookUp(ctx context.Context, id store.ID) (store.Record, error) {
	ctx, cancel := context.WithTimeout(ctx, s.o.BusyTimeout+time.Second)
	defer cancel()
	return s.Read(ctx, id)
}

// SettleTx implements store.TxStore: it settles a claim inside a transaction of
// the caller's, which may come from DB or from any other pool over the same
// file. Begin that with BEGIN IMMEDIATE, as DB does, or it may fail with
// SQLITE_BUSY_SNAPSHOT. The claim ends when the caller commits.
//
// A connection on which that could be lost with the power (synchronous=NORMAL or
// OFF), or whose main database is another file, is refused with store.ErrInvalid.
func (s *Store) SettleTx(ctx context.Context, tx *sql.Tx, c store.Claim, out store.Settlement, keep store.Retention) error {
	session, err := s.join(ctx, tx)
	if err != nil {
		return err
	}
	wrote, err := settleOnce(session, c, out, keep, s.o.Clock().UnixMicro())
	if err == nil && !wrote {
		// Settled already, perhaps by a transaction of this very run whose commit
		// was not acknowledged: what this one wrote would be there twice.
		return store.ErrFenced
	}
	if err == nil || errors.Is(err, store.ErrFenced) || errors.Is(err, store.ErrInvalid) {
		return err
	}
	return s.explain("settle", err, "roll back")
}

// join returns a session of a transaction that the caller has begun, or InTx, which
// needs no look.
func (s *Store) join(ctx context.Context, tx *sql.Tx) (txSession, error) {
	if in, ok := ctx.Value(insideKey{}).(*inside); ok && in.store == s && in.tx == tx {
		return txSession{ctx: ctx, tx: tx, stmts: &s.stmts}, nil
	}
	t := txSession{ctx: ctx, tx: tx}
	return t, s.trusts(t)
}

// trusts refuses a transaction of the caller's that commits elsewhere, or not for
// good.
func (s *Store) trusts(tx txSession) error {
	var level int64
	var file string
	err := tx.rows(qTrust, func(row []driver.Value) error {
		level, _ = row[0].(int64)
		file, _ = row[1].(string)
		return nil
	})
	switch {
	case err != nil:
		return s.explain("begin", err, "roll back")
	case file != s.file:
		return fmt.Errorf("sqlite: %w: the transaction is in the file %q, and the store in %q; begin it on DB", store.ErrInvalid, file, s.file)
	case level < durable:
		return fmt.Errorf("sqlite: %w: on the transaction's connection PRAGMA synchronous is %d, so a power failure may lose its commits; set it to at least %d (FULL), as on DB",
			store.ErrInvalid, level, durable)
	}
	return nil
}

// durable is PRAGMA synchronous=FULL.
const durable = 2
