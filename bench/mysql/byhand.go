package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/stet-go/stet/store"
)

// byHand is a table of keys as a service would write it, with prepared statements.
type byHand struct {
	db                         *sql.DB
	claim, settle, read, known *sql.Stmt
	payment                    *sql.Stmt
}

func newByHand(ctx context.Context, db *sql.DB) (h *byHand, err error) {
	h = &byHand{db: db}
	for into, text := range map[**sql.Stmt]string{
		&h.claim:   `INSERT INTO ops (id, fingerprint, owner, state, lease) VALUES (?, ?, ?, 1, ?)`,
		&h.settle:  `UPDATE ops SET state = 2, result = ?, expires = ? WHERE id = ? AND owner = ? AND state = 1`,
		&h.read:    `SELECT fingerprint, state, result FROM ops WHERE id = ?`,
		&h.known:   `SELECT fingerprint, state, result FROM ops WHERE state = ? LIMIT 1`,
		&h.payment: insertPayment,
	} {
		if *into, err = db.PrepareContext(ctx, text); err != nil {
			return nil, err
		}
	}
	return h, nil
}

func changed(res sql.Result, err error) error {
	if err != nil {
		return err
	}
	if n, err := res.RowsAffected(); err != nil || n != 1 {
		return fmt.Errorf("%d rows changed, %w", n, err)
	}
	return nil
}

// lease inserts the key, and updates it, each in a transaction of its own.
func (h *byHand) lease(ctx context.Context, id store.ID) error {
	owner, now := store.NewOwner(), time.Now()
	if err := changed(h.claim.ExecContext(ctx, id[:], make([]byte, 33), owner[:], now.Add(30*time.Second).UnixMicro())); err != nil {
		return err
	}
	return changed(h.settle.ExecContext(ctx, result, now.Add(keep.Result).UnixMicro(), id[:], owner[:]))
}

// transaction reads the key, inserts it and the payment, and stores the result, in one transaction.
func (h *byHand) transaction(ctx context.Context, id store.ID) error {
	tx, err := h.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	owner, now := store.NewOwner(), time.Now()
	var fingerprint, body []byte
	var state int
	if err := tx.StmtContext(ctx, h.read).QueryRowContext(ctx, id[:]).Scan(&fingerprint, &state, &body); !errors.Is(err, sql.ErrNoRows) {
		return fmt.Errorf("the key is not new: %w", err)
	}
	if err := changed(tx.StmtContext(ctx, h.claim).ExecContext(ctx, id[:], make([]byte, 33), owner[:], 0)); err != nil {
		return err
	}
	if err := changed(tx.StmtContext(ctx, h.payment).ExecContext(ctx, 1000)); err != nil {
		return err
	}
	if err := changed(tx.StmtContext(ctx, h.settle).ExecContext(ctx, result, now.Add(keep.Result).UnixMicro(), id[:], owner[:])); err != nil {
		return err
	}
	return tx.Commit()
}

// replay reads a record by its key.
func (h *byHand) replay(ctx context.Context, _ store.ID) error {
	var fingerprint, body []byte
	var state int
	return h.known.QueryRowContext(ctx, 2).Scan(&fingerprint, &state, &body)
}
