package sqlite

import (
	"context"
	"database/sql"
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
// fn must not change settings of the connection (PRAGMA): the store's other writes use it, too.
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
	rec = store.Record{}
	err = s.exclusively(ctx, func(ctx context.Context, tx *sql.Tx) error {
		t := &transaction{s: s, tx: tx, session: s.session(context.WithoutCancel(ctx), tx)}
		var granted bool
		if rec, granted, err = t.claim(&req); err != nil || !granted {
			return err
		}
		out, err := fn(ctx, tx, rec)
		if err != nil {
			return err
		}
		rec, err = t.finish(rec, out, keep)
		return err
	})
	return rec, err
}

// exclusively calls do with a transaction, while no other caller of this process writes. do must
// commit, or the transaction is rolled back.
func (s *Store) exclusively(ctx context.Context, do func(context.Context, *sql.Tx) error) error {
	if err := s.nested(ctx); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	asked := time.Now()
	if err := s.w.acquire(ctx); err != nil {
		return err
	}
	defer s.w.release()
	tx, err := s.begin(ctx, asked)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // also when do panics or calls runtime.Goexit
	in := &inside{store: s, tx: tx}
	defer in.over.Store(true)
	return do(context.WithValue(ctx, insideKey{}, in), tx)
}

// session returns a session in a transaction of the store's own pool.
func (s *Store) session(ctx context.Context, tx *sql.Tx) *session {
	return &session{ctx: ctx, tx: tx, stmts: s.stmts, now: s.o.Clock().UnixMicro()}
}

// LockTx implements store.TxLocker. Transactions run one after the other, so there is nothing to lock.
func (s *Store) LockTx(context.Context, *sql.Tx, store.ID) (bool, error) { return true, nil }

// inside marks the context of a function of RunTx or InTx, which holds the writer.
type inside struct {
	store *Store
	tx    *sql.Tx
	over  atomic.Bool // the function has returned
}

type insideKey struct{}

// nested refuses a write from inside the function of RunTx or InTx: it would wait for the writer that
// its own caller holds.
func (s *Store) nested(ctx context.Context) error {
	in, _ := ctx.Value(insideKey{}).(*inside)
	if in == nil || in.store != s || in.over.Load() {
		return nil
	}
	return fmt.Errorf("sqlite: %w: called from inside a transaction of the same store, which has the only writer; use that transaction. Nothing was done", store.ErrInvalid)
}

// transaction is the transaction of one RunTx.
type transaction struct {
	s       *Store
	tx      *sql.Tx
	session *session
}

// claim claims inside the transaction. A record that is not granted is durable when it returns.
func (t *transaction) claim(req *store.ClaimRequest) (rec store.Record, granted bool, err error) {
	rec, granted, err = claim(t.session, claiming{ClaimRequest: req})
	switch {
	case errors.Is(err, store.ErrMismatch) || granted:
		return rec, granted, err
	case err != nil:
		return store.Record{}, false, t.s.explain("claim", err, "nothing was committed")
	case t.session.changed > 0: // its run was marked unknown
		if err := t.s.commit(t.tx); err != nil {
			return store.Record{}, false, t.s.explain("commit", err, "nothing was committed")
		}
	case rec.State == store.Running && rec.Owner == req.Owner:
		return rec, false, fmt.Errorf("sqlite: this owner has a claim of an earlier call, whose outcome is unknown: %w", store.ErrUnknown)
	}
	return rec, false, nil
}

// finish settles and commits.
func (t *transaction) finish(rec store.Record, out store.Settlement, keep store.Retention) (store.Record, error) {
	t.session.now = t.s.o.Clock().UnixMicro()
	_, err := settle(t.session, rec.Claim(), out, keep)
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
	r, err := load(t.session, rec.ID)
	if err != nil {
		return rec, t.s.explain("settle", err, "nothing was committed")
	}
	rec = r.at(t.session.now)
	fault.At(fault.CommitBefore)
	err = t.s.commit(t.tx)
	fault.At(fault.CommitAfter)
	if err != nil {
		return t.readBack(rec, err)
	}
	return rec, nil
}

// endedInside returns the error for a transaction that fn ended, or whose end fn ignored: SQLite rolls
// back by itself if the disk is full or a write is interrupted. Later writes are then committed one by one.
func (t *transaction) endedInside(rec store.Record, cause error) (store.Record, error) {
	_ = t.tx.Rollback()
	now, err := t.s.readAfter(t.session.ctx, rec.ID)
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

// readBack reads whether a commit that failed took effect.
func (t *transaction) readBack(rec store.Record, cause error) (store.Record, error) {
	_ = t.tx.Rollback()
	now, err := t.s.readAfter(t.session.ctx, rec.ID)
	switch {
	case err != nil:
		return rec, fmt.Errorf("sqlite: %w: the commit failed (%w) and the record could not be read back: %w", store.ErrUnknown, cause, err)
	case now.Owner == rec.Owner && now.Fence == rec.Fence && now.State == rec.State:
		return rec, nil // it was committed after all
	}
	return rec, t.s.uncommitted(cause, "nothing was committed")
}

// readAfter is Read after a commit that failed, with a time limit of its own.
func (s *Store) readAfter(ctx context.Context, id store.ID) (store.Record, error) {
	ctx, cancel := context.WithTimeout(ctx, s.o.BusyTimeout+time.Second)
	defer cancel()
	return s.Read(ctx, id)
}

// SettleTx implements store.TxStore: it settles a claim inside a transaction of the caller, on DB or
// any other pool of the same file. Begin it with BEGIN IMMEDIATE, as DB does, or it can fail with
// SQLITE_BUSY_SNAPSHOT. The claim ends when the caller commits.
//
// It returns store.ErrInvalid if a power failure could lose the commit (synchronous=NORMAL or OFF), or
// if the main database of the connection is another file.
func (s *Store) SettleTx(ctx context.Context, tx *sql.Tx, c store.Claim, out store.Settlement, keep store.Retention) error {
	session, err := s.join(ctx, tx)
	if err != nil {
		return err
	}
	wrote, err := settle(session, c, out, keep)
	if err == nil && !wrote {
		// It was settled before, perhaps by an unacknowledged commit of this run: the writes of this
		// transaction would be there twice.
		return store.ErrFenced
	}
	if err == nil || errors.Is(err, store.ErrFenced) || errors.Is(err, store.ErrInvalid) {
		return err
	}
	return s.explain("settle", err, "roll back")
}

// join returns a session in a transaction of InTx, or of the caller. The latter is checked.
func (s *Store) join(ctx context.Context, tx *sql.Tx) (*session, error) {
	session := s.session(ctx, tx)
	if in, ok := ctx.Value(insideKey{}).(*inside); ok && in.store == s && in.tx == tx {
		return session, nil
	}
	session.stmts = nil
	return session, s.trusts(session)
}

// trusts refuses a transaction of the caller that commits to another file, or not durably.
func (s *Store) trusts(tx *session) error {
	var level int64
	var file string
	err := tx.rows(qTrust, func(row []any) error {
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

// InTx implements store.WorkTxStore. As with RunTx, transactions run one after the other, in the order
// of the calls, and fn must not end its transaction.
func (s *Store) InTx(ctx context.Context, fn func(context.Context, *sql.Tx) error) error {
	return s.exclusively(ctx, func(ctx context.Context, tx *sql.Tx) error {
		if err := fn(ctx, tx); err != nil {
			return err
		}
		if err := s.failed.check(); err != nil && tx.Rollback() == nil {
			return err
		}
		fault.At(fault.CommitBefore)
		err := s.commit(tx)
		fault.At(fault.CommitAfter)
		if errors.Is(err, sql.ErrTxDone) {
			return fmt.Errorf("sqlite: %w: the function ended the transaction, which is not its to end", store.ErrUnknown)
		}
		return s.uncommitted(err, "the transaction may or may not have been committed")
	})
}

// AcceptTx implements store.WorkTxStore, in a transaction as for SettleTx.
func (s *Store) AcceptTx(ctx context.Context, tx *sql.Tx, req store.ClaimRequest, work []byte, after time.Duration) (store.Record, error) {
	session, err := s.join(ctx, tx)
	if err != nil {
		return store.Record{}, err
	}
	rec, _, err := claim(session, claiming{&req, notNil(work), after})
	if err == nil || errors.Is(err, store.ErrMismatch) {
		return rec, err
	}
	return store.Record{}, s.explain("accept", err, "roll back")
}

// SaveTx implements store.WorkTxStore, in a transaction as for SettleTx.
func (s *Store) SaveTx(ctx context.Context, tx *sql.Tx, c store.Claim, notes store.Notes, repeatable bool) error {
	session, err := s.join(ctx, tx)
	if err != nil {
		return err
	}
	err = save(session, c, notes, store.Running, repeatable)
	if err == nil || errors.Is(err, store.ErrFenced) {
		return err
	}
	return s.explain("save", err, "roll back")
}
