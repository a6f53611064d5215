package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/stet-go/stet/internal/fault"
	"github.com/stet-go/stet/store"
)

// InTx implements store.WorkTxStore. Like RunTx's, its transactions run one after
// the other, in the order of asking, and fn must not end its own.
func (s *Store) InTx(ctx context.Context, fn func(context.Context, *sql.Tx) error) error {
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
	defer s.w.handOver()
	tx, err := s.beginTx(ctx, asked)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // also when fn panics or calls runtime.Goexit
	in := &inside{store: s, tx: tx}
	defer in.over.Store(true)
	if err := fn(context.WithValue(ctx, insideKey{}, in), tx); err != nil {
		return err
	}
	if err := s.failed.check(); err != nil && tx.Rollback() == nil {
		return err
	}
	fault.At(fault.CommitBefore)
	err = s.commit(tx)
	fault.At(fault.CommitAfter)
	if errors.Is(err, sql.ErrTxDone) {
		return fmt.Errorf("sqlite: %w: the function ended the transaction, which is not its to end", store.ErrUnknown)
	}
	return s.uncommitted(err, "the transaction may or may not have been committed")
}

// AcceptTx implements store.WorkTxStore: it accepts inside a transaction of the
// caller's, begun as for SettleTx, on such a connection.
func (s *Store) AcceptTx(ctx context.Context, tx *sql.Tx, req store.ClaimRequest, work []byte, after time.Duration) (store.Record, error) {
	session, err := s.join(ctx, tx)
	if err != nil {
		return store.Record{}, err
	}
	var f fences
	rec, err := claim(session, &asked{&req, some(work), after}, s.o.Clock().UnixMicro(), func() (int64, error) { return f.draw(session) })
	if err == nil || errors.Is(err, store.ErrMismatch) {
		return rec, err
	}
	return store.Record{}, s.explain("accept", err, "roll back")
}

// SaveTx implements store.WorkTxStore, in a transaction that is begun as for
// SettleTx.
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
