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

// AcceptTx implements store.WorkTxStore: it accepts inside a transaction of the
// caller's, begun as for SettleTx, on such a connection.
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
