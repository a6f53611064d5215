package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/fault"
)

// InTx implements stet.WorkTxStore. Like RunTx's, its transactions run one after
// the other, in the order of asking, and fn must not end its own.
func (s *Store) InTx(ctx context.Context, fn func(context.Context, *sql.Tx) error) error {
	if err := s.nested(ctx); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := s.w.acquire(ctx); err != nil {
		return err
	}
	defer s.w.handOver()
	tx, err := s.txs.BeginTx(context.WithoutCancel(ctx), nil) // as in RunTx
	if err != nil {
		return s.explain("begin", err, "nothing was committed")
	}
	defer func() { _ = tx.Rollback() }() // also when fn panics or calls runtime.Goexit
	in := &inside{store: s}
	defer in.over.Store(true)
	if err := fn(context.WithValue(ctx, insideKey{}, in), tx); err != nil {
		return err
	}
	fault.At(fault.CommitBefore)
	err = s.commit(tx)
	fault.At(fault.CommitAfter)
	if errors.Is(err, sql.ErrTxDone) {
		return fmt.Errorf("sqlite: %w: the function ended the transaction, which is not its to end", stet.ErrUnknown)
	}
	return s.explain("commit", err, "it may or may not have taken effect")
}

// AcceptTx implements stet.WorkTxStore: it accepts inside a transaction of the
// caller's, which is to be begun as for SettleTx.
func (s *Store) AcceptTx(ctx context.Context, tx *sql.Tx, req stet.ClaimRequest, work []byte, after time.Duration) (stet.Record, error) {
	session := txSession{ctx: ctx, tx: tx}
	var f fences
	rec, err := claim(session, &asked{&req, some(work), after}, s.o.Clock().UnixMicro(), func() (int64, error) { return f.draw(session) })
	if err == nil || errors.Is(err, stet.ErrMismatch) {
		return rec, err
	}
	return stet.Record{}, s.explain("accept", err, "roll back")
}

// SaveTx implements stet.WorkTxStore, in a transaction that is begun as for
// SettleTx.
func (s *Store) SaveTx(ctx context.Context, tx *sql.Tx, c stet.Claim, notes []byte) error {
	err := save(txSession{ctx: ctx, tx: tx}, c, notes, stet.Running)
	if err == nil || errors.Is(err, stet.ErrFenced) {
		return err
	}
	return s.explain("save", err, "roll back")
}
