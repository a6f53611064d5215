package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/stet-go/stet/internal/fault"
	"github.com/stet-go/stet/internal/timer"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/internal/rules"
)

// txTries is how often RunTx begins, if the record changes between two reads.
const txTries = 20

// RunTx is Store.RunTx.
func (s *SQLStore[Tx]) RunTx(ctx context.Context, req store.ClaimRequest, keep store.Retention,
	fn func(context.Context, Tx, store.Record) (store.Settlement, error)) (store.Record, error) {
	for try := 1; ; try++ {
		if err := ctx.Err(); err != nil {
			return store.Record{}, err
		}
		if s.batches.isClosed() {
			return store.Record{}, errClosed
		}
		rec, again, err := s.runTx(ctx, &req, keep, fn)
		if !again {
			return rec, err
		}
		if try == txTries {
			return store.Record{}, fmt.Errorf("mysql: the record changes faster than it can be read; nothing was committed: %w", err)
		}
	}
}

// runTx is one try of RunTx. again says that nothing was done, because the record has changed.
func (s *SQLStore[Tx]) runTx(ctx context.Context, req *store.ClaimRequest, keep store.Retention,
	fn func(context.Context, Tx, store.Record) (store.Settlement, error)) (rec store.Record, again bool, err error) {
	t := &transaction{s: s.Store, req: req}
	rec, free, err := t.peek(ctx)
	if errors.Is(err, errLookAgain) {
		return rec, true, err
	}
	if err != nil || !free {
		return rec, false, err
	}
	tx, life, err := start(ctx, func(ctx context.Context) (Tx, error) { return s.begin(ctx, false) })
	if err != nil {
		return store.Record{}, false, explain("begin", err)
	}
	t.tx, t.life = tx, life
	defer t.rollback() // also when fn panics or calls runtime.Goexit
	if again, err := t.enter(ctx); err != nil {
		return store.Record{}, again, err
	}
	out, err := fn(ctx, tx, t.row.at(t.now()))
	if err == nil {
		err = s.checkOutcome(out)
	}
	if err != nil {
		return t.row.at(t.now()), false, err
	}
	rec, err = t.leave(ctx, out, keep)
	return rec, false, err
}

// transaction is the transaction of one try of RunTx.
type transaction struct {
	s    *Store
	req  *store.ClaimRequest
	row  *row   // as read, then as written
	read micros // the server's time at the moment at
	at   time.Time
	tx   SQLTx
	life context.CancelFunc
	left bool // its commit is in progress, and no caller waits for it
}

// now is the server's time, by this process's clock since it was read. The times of an outcome need no
// other round trip.
func (t *transaction) now() micros { return t.read + time.Since(t.at).Microseconds() }

var errLookAgain = errors.New("mysql: the record has changed while it was read; nothing was done")

// peek reads the record without locks. free says that the operation may run.
func (t *transaction) peek(ctx context.Context) (rec store.Record, free bool, err error) {
	id := t.req.ID
	a, err := t.s.answer(ctx, t.s.own, t.s.t.peek, id[:], id[:])
	if err != nil {
		return rec, false, t.s.gaveUp("read", err)
	}
	if t.row = a.row(id); t.row.broken != nil {
		return rec, false, t.row.broken
	}
	t.read, t.at = a.now, time.Now()
	rec = t.row.at(a.now)
	change, err := rules.OnClaim(t.row.whole(a.now), *t.req)
	switch {
	case err != nil:
		return rec, false, err
	case change == rules.MarkUnknown:
		rec, err = t.s.markLapsed(ctx, t.req)
		return rec, false, err
	case change == rules.None && rec.State == store.Running && rec.Owner == t.req.Owner:
		return rec, false, fmt.Errorf("mysql: this owner has a claim of an earlier call, whose outcome is unknown: %w", store.ErrUnknown)
	case change == rules.None:
		return rec, false, t.s.confirmRead(ctx, t.row, a.now)
	}
	if err := a.refusal(); err != nil {
		return store.Record{}, false, err
	}
	i := slices.IndexFunc(a.after, func(r *row) bool { return r.conn != 0 && r.State == store.Running && r.Owner != t.row.Owner })
	if i < 0 {
		return rec, true, nil
	}
	if rec = (store.Record{ID: id, Scope: t.req.Scope, State: store.Running, Fingerprint: t.req.Fingerprint, InTx: true}); a.after[i].Fingerprint != t.req.Fingerprint {
		rec.Fingerprint = a.after[i].Fingerprint
		return rec, false, store.ErrMismatch
	}
	return rec, false, nil
}

// markLapsed marks an expired run unknown.
func (s *Store) markLapsed(ctx context.Context, req *store.ClaimRequest) (store.Record, error) {
	return s.do(ctx, req.ID, 0, func(now micros, r *row) (store.Record, error) {
		if r.broken != nil {
			return store.Record{}, r.broken
		}
		switch change, err := rules.OnClaim(r.whole(now), *req); {
		case err != nil:
			return r.at(now), err
		case change == rules.Grant:
			return store.Record{}, errLookAgain
		case change == rules.MarkUnknown:
			r.markUnknown(now)
		}
		return r.at(now), nil
	})
}

// enter writes the record as running. The transaction locks it by that.
func (t *transaction) enter(ctx context.Context) (again bool, err error) {
	verb := t.s.t.insert
	if t.row.stored {
		verb = t.s.t.replace
		a, err := t.s.answer(ctx, t.tx, t.s.t.lockOne, t.req.ID[:])
		if err != nil {
			return repeats(err), explain("begin", err)
		}
		t.row = a.row(t.req.ID)
		if change, err := rules.OnClaim(t.row.whole(t.now()), *t.req); t.row.broken != nil || !t.row.stored || err != nil || change != rules.Grant {
			return true, errLookAgain
		}
	}
	if err := t.row.grant(t.now(), claiming{ClaimRequest: t.req}); err != nil {
		return false, err
	}
	values := t.row.values()
	values = slices.Delete(values, connColumn, connColumn+1)
	res, err := t.tx.ExecContext(ctx, verb+enterMarks, values...)
	if err == nil {
		t.row.Fence, err = res.LastInsertId()
	}
	t.row.drawn = false
	return repeats(err), explain("begin", err)
}

// connColumn is the position of the column conn.
const connColumn = 17

// enterMarks are the marks of a row whose transaction is running it.
var enterMarks = func() string {
	marks := strings.Split(rowMarks, ", ")
	marks[connColumn] = "CONNECTION_ID()"
	return strings.Join(marks, ", ")
}()

// repeats reports whether the statement that begins a transaction failed because of another one.
func repeats(err error) bool {
	n := numberOf(err)
	return n == errDuplicate || n == errDeadlock || n == errLockWait || n == errChangedRecord
}

// leave settles the record and commits.
func (t *transaction) leave(ctx context.Context, out store.Settlement, keep store.Retention) (store.Record, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	now := t.now()
	t.row.settle(now, out, keep)
	rec := t.row.at(now)
	switch err := t.s.writeIn(ctx, t.tx, t.row); {
	case errors.Is(err, errLeft), errors.Is(err, sql.ErrTxDone):
		return t.endedInside(rec, err)
	case err != nil:
		return rec, fmt.Errorf("%w (nothing was committed)", explain("settle", err))
	}
	fault.At(fault.CommitBefore)
	err := t.commit(ctx)
	fault.At(fault.CommitAfter)
	if err == nil {
		return rec, nil
	}
	t.rollback()
	return t.readBack(rec, err)
}

// endedInside returns the error of a transaction that had ended before it was settled.
func (t *transaction) endedInside(rec store.Record, cause error) (store.Record, error) {
	t.rollback()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	now, err := t.s.Read(ctx, rec.ID)
	switch {
	case err != nil:
		return rec, fmt.Errorf("mysql: %w: the function ended the transaction, and the record could not be read back: %w", store.ErrUnknown, err)
	case now.Owner == rec.Owner && now.Fence == rec.Fence:
		return rec, fmt.Errorf("mysql: %w: the function committed the transaction, which it must not; its writes are stored, and the record says only that it ran", store.ErrUnknown)
	case errors.Is(cause, sql.ErrTxDone):
		return rec, &store.AbortedError{Cause: errors.New("mysql: the function rolled the transaction back, and returned no error; nothing was committed")}
	}
	return rec, fmt.Errorf("mysql: %w: the transaction was rolled back while the function ran, by the function or after a deadlock that it ignored; its later writes are committed", store.ErrUnknown)
}

// readBack finds out what became of a commit that was not acknowledged. The transaction has the row locked
// until it has ended, so a locking read that returns has the answer.
func (t *transaction) readBack(rec store.Record, cause error) (store.Record, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	began := time.Now()
	for {
		var now *row
		err := t.s.inOwn(ctx, t.s.t.begin+t.s.t.lock+"(?) FOR UPDATE"+t.s.t.header, []any{rec.ID[:]}, func(a *answer) (string, []any) {
			now = a.row(rec.ID)
			return "", nil
		})
		switch {
		case err == nil && now.Owner == rec.Owner && now.Fence == rec.Fence && now.State.Settled():
			if t.s.late.Load() {
				err = t.s.confirm(ctx)
			}
			if err == nil {
				return rec, nil
			}
		case err == nil:
			return rec, fmt.Errorf("%w (read afterwards: nothing was committed)", explain("commit", cause))
		}
		if time.Since(began) > patience/2 {
			t.kill(ctx, rec)
		}
		if ctx.Err() != nil || !timer.Sleep(ctx, 20*time.Millisecond) {
			return rec, fmt.Errorf("mysql: %w: the commit was not acknowledged (%w), and what became of it could not be found out in %v: %w", store.ErrUnknown, cause, patience, err)
		}
	}
}

// kill ends the connection of a transaction that still has the record locked. The server may not know
// that its client is gone.
func (t *transaction) kill(ctx context.Context, rec store.Record) {
	a, err := t.s.answer(ctx, t.s.own, t.s.t.peek, rec.ID[:], rec.ID[:])
	if err != nil {
		return
	}
	if r := a.row(rec.ID); r.Owner == rec.Owner && r.Fence == rec.Fence { // it has committed, and another one may use the connection
		return
	}
	for _, r := range a.after {
		if r.Owner == rec.Owner && r.Fence == rec.Fence && r.conn != 0 {
			_, _ = t.s.own.ExecContext(ctx, fmt.Sprintf("KILL %d", r.conn))
		}
	}
}

// InTx is Store.InTx, with a transaction of begin. At a level above READ COMMITTED, MariaDB from 11.6 can
// refuse to settle a claim in it.
func (s *SQLStore[Tx]) InTx(ctx context.Context, fn func(context.Context, Tx) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if s.batches.isClosed() {
		return errClosed
	}
	tx, life, err := start(ctx, func(ctx context.Context) (Tx, error) { return s.begin(ctx, true) })
	if err != nil {
		return explain("begin", err)
	}
	t := &transaction{s: s.Store, tx: tx, life: life}
	defer t.rollback() // also when fn panics or calls runtime.Goexit
	if err := fn(ctx, tx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	fault.At(fault.CommitBefore)
	err = t.commit(ctx)
	fault.At(fault.CommitAfter)
	switch {
	case errors.Is(err, sql.ErrTxDone):
		return fmt.Errorf("mysql: %w: the function ended the transaction, which it must not", store.ErrUnknown)
	case err != nil:
		return fmt.Errorf("%w (it may or may not have been committed)", explain("commit", err))
	}
	return nil
}
