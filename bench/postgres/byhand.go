package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/stet-go/stet/store"
)

// The idempotency table by hand, in the transaction of the business write. It takes as many round
// trips as the store: BEGIN, the insertion of the key and a read are one, the business write is one, and the
// response and COMMIT are one. A replay does not wait for its ROLLBACK.
const (
	handClaim = "INSERT INTO hand (id, fingerprint) VALUES ($1, $2) ON CONFLICT DO NOTHING"
	handLook  = "SELECT fingerprint, status, result FROM hand WHERE id = $1"
	handStore = "UPDATE hand SET status = 200, result = $2 WHERE id = $1"
)

const handTable = `
CREATE TABLE hand (id bytea PRIMARY KEY, fingerprint bytea NOT NULL, status int, result bytea, created_at timestamptz NOT NULL DEFAULT now());
CREATE INDEX ON hand USING brin (created_at);`

func (b *bench) hand(ctx context.Context) error {
	_, err := b.byHand(ctx, request())
	return err
}

// byHand returns the result, and runs the business write if the key is new.
func (b *bench) byHand(ctx context.Context, req store.ClaimRequest) ([]byte, error) {
	conn, err := b.pool.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	var batch pgx.Batch
	batch.BeginTx(pgx.TxOptions{})
	batch.Queue(handClaim, req.ID[:], req.Fingerprint[:])
	batch.Queue(handLook, req.ID[:])
	var fingerprint, stored []byte
	var status *int
	results := conn.SendBatch(ctx, &batch)
	tx := results.Tx()
	for range 2 { // BEGIN, the insertion
		_, next := results.Exec()
		err = errors.Join(err, next)
	}
	if err == nil {
		err = results.QueryRow().Scan(&fingerprint, &status, &stored)
	}
	err = errors.Join(err, results.Close())
	if err != nil || status != nil {
		go rollBack(conn, tx)
		if err == nil && !bytes.Equal(fingerprint, req.Fingerprint[:]) {
			err = errors.New("another request has the key")
		}
		return stored, err
	}
	if err := pay(ctx, tx); err != nil {
		rollBack(conn, tx)
		return nil, err
	}
	defer conn.Release()
	var end pgx.Batch
	end.Queue(handStore, req.ID[:], result)
	end.Queue("COMMIT")
	return result, conn.SendBatch(ctx, &end).Close()
}

func rollBack(conn *pgxpool.Conn, tx pgx.Tx) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	defer conn.Release() // closes the connection if it is still in a transaction
	_ = tx.Rollback(ctx)
}

// replayHand is a replay by hand.
func (b *bench) replayHand(ctx context.Context) error {
	got, err := b.byHand(ctx, b.settled[int(b.next.Add(1))%len(b.settled)])
	if err == nil && len(got) != len(result) {
		err = fmt.Errorf("read a result of %d bytes", len(got))
	}
	return err
}
