package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stet-go/stet/internal/fault"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/internal/rules"
)

var (
	_ store.WorkTxStore[pgx.Tx]  = (*Store)(nil)
	_ store.WorkTxStore[*sql.Tx] = (*SQLStore[*sql.Tx])(nil)
)

// AcceptTx implements store.WorkTxStore: it accepts inside a transaction of the
// caller's, which may be a savepoint. Keep that short: until it has ended, who claims
// or accepts the same key waits for it. Other keys do not.
func (s *Store) AcceptTx(ctx context.Context, tx pgx.Tx, req store.ClaimRequest, work []byte, after time.Duration) (store.Record, error) {
	return s.acceptIn(ctx, pgxQuery(ctx, tx), write{req: &req, job: newJob(work, after)})
}

// SaveTx implements store.WorkTxStore. Until the transaction has ended the record is
// locked, unchanged by SettleTx.
func (s *Store) SaveTx(ctx context.Context, tx pgx.Tx, c store.Claim, notes store.Notes, repeatable bool) error {
	return s.saveIn(ctx, pgxQuery(ctx, tx), c, notes, repeatable)
}

// txQuery executes statements in a transaction of either library.
type txQuery struct {
	row    func(st *statement, args ...any) scanner
	noRows error // the library's error if there is no row
}

func pgxQuery(ctx context.Context, tx pgx.Tx) txQuery {
	return txQuery{func(st *statement, args ...any) scanner { return tx.QueryRow(ctx, st.sql, args...) }, pgx.ErrNoRows}
}

func sqlQuery(ctx context.Context, tx Querier) txQuery {
	return txQuery{func(st *statement, args ...any) scanner { return tx.QueryRowContext(ctx, st.sql, args...) }, sql.ErrNoRows}
}

// acceptIn accepts in a transaction.
func (s *Store) acceptIn(ctx context.Context, q txQuery, w write) (store.Record, error) {
	if err := ctx.Err(); err != nil {
		return store.Record{}, err
	}
	fail := func(err error) (store.Record, error) { return store.Record{}, explain("accept (roll back)", err) }
	req := w.req
	for range slowTries {
		var id []byte
		var fence int64
		var at time.Time
		err := q.noRows
		if s.durability.refusal() == nil {
			err = q.row(s.sql.acceptOne, args(accepted, &w)...).Scan(&id, &fence, &at)
		}
		if err == nil {
			return w.granted(fence, at), nil
		}
		if !errors.Is(err, q.noRows) {
			return fail(err)
		}
		r, err := scanRow(q.row(s.sql.load, req.ID[:]), q.noRows)
		if err != nil {
			return fail(err)
		}
		rec, next, err := s.standing(req, r)
		switch {
		case next == rules.None:
			if err == nil {
				err = s.ensureReplicated(ctx, r, req.Owner) // nothing is written by which the caller's commit would
			}
			return rec, err
		case next == rules.MarkUnknown: // in a transaction of its own
			rec, ok, err := s.change(ctx, &w, r, next)
			if err != nil {
				return fail(err)
			}
			if ok && !freed(rec, next) {
				return rec, nil
			}
		case r != nil:
			w.was = r.Fence
			now, err := scanRow(q.row(s.sql.reaccept, args(with(accepted, was), &w)...), q.noRows)
			if err != nil {
				return fail(err)
			}
			if now != nil {
				return now.record(), nil
			}
		}
	}
	return fail(errContended)
}

// saveIn saves in a transaction.
func (s *Store) saveIn(ctx context.Context, q txQuery, c store.Claim, notes store.Notes, repeatable bool) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	var saved bool
	err := q.row(s.sql.save, c.ID[:], c.Fence, notes.Marshal(), repeatable).Scan(&saved)
	if errors.Is(err, q.noRows) {
		return store.ErrFenced
	}
	return explain("save (roll back)", err)
}

// InTx is Store.InTx. If fn ends the transaction, it cannot be kept from that, and
// the error is of kind ErrUnknown.
func (s *SQLStore[Tx]) InTx(ctx context.Context, fn func(context.Context, Tx) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if s.closed.Load() {
		return errClosed
	}
	tx, b, err := s.start(ctx)
	if err != nil {
		return explain("begin", err)
	}
	defer b.rollback() // also when fn panics or calls runtime.Goexit
	replicated, err := s.suits(ctx, tx)
	if err != nil {
		return err
	}
	if err := fn(ctx, tx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.commitTimeout)
	defer cancel()
	fault.At(fault.CommitBefore)
	err = b.commit(ctx)
	fault.At(fault.CommitAfter)
	switch {
	case err == nil && replicated: // as in RunTx
		return explain("commit", s.confirm(ctx))
	case err == nil:
		return nil
	case errors.Is(err, sql.ErrTxDone):
		return fmt.Errorf("postgres: %w: the function ended the transaction, which is not its to end", store.ErrUnknown)
	case codeOf(err) != "" && answered(err):
		return fmt.Errorf("%w (nothing was committed)", explain("commit", err))
	}
	return fmt.Errorf("%w (it may or may not have been committed)", explain("commit", err))
}

// suits reports whether commits wait for standbys there, and an error if claims cannot
// be settled in tx.
func (s *SQLStore[Tx]) suits(ctx context.Context, tx Querier) (replicates bool, err error) {
	var level string
	err = tx.QueryRowContext(ctx, "SELECT current_setting('transaction_isolation'), "+replicated).Scan(&level, &replicates)
	if err == nil {
		err = suitsInTx(level)
	}
	return replicates, explain("begin", err)
}

// AcceptTx is Store.AcceptTx.
func (s *SQLStore[Tx]) AcceptTx(ctx context.Context, tx Tx, req store.ClaimRequest, work []byte, after time.Duration) (store.Record, error) {
	return s.acceptIn(ctx, sqlQuery(ctx, tx), write{req: &req, job: newJob(work, after)})
}

// SaveTx is Store.SaveTx.
func (s *SQLStore[Tx]) SaveTx(ctx context.Context, tx Tx, c store.Claim, notes store.Notes, repeatable bool) error {
	return s.saveIn(ctx, sqlQuery(ctx, tx), c, notes, repeatable)
}
