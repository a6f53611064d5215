package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// byHand is the idempotency table that a good engineer writes for a service with PostgreSQL:
// the row of the key is locked first, its fingerprint is compared, and the response is stored
// with the business rows, in one transaction.
type byHand struct {
	s *service
	// pipelined sends what needs no answer in between in one round trip: BEGIN with the
	// insertion and the look, the response with COMMIT.
	pipelined bool

	claim, look, keep string
}

// stored is the row of a key.
type stored struct {
	fingerprint []byte
	status      int // 0: nothing is stored yet, as the row is this transaction's
	contentType string
	body        []byte
}

func keysTable(kind string) string {
	return "CREATE TABLE keys_" + kind + ` (
	scope text, key text, fingerprint bytea NOT NULL, status int NOT NULL DEFAULT 0, content_type text NOT NULL DEFAULT '', body bytea,
	created_at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (scope, key));
CREATE INDEX ON keys_` + kind + " USING brin (created_at);\n" // by which old rows are deleted
}

func serveByHand(pipelined bool) func(context.Context, *service) (handler, error) {
	return func(_ context.Context, s *service) (handler, error) {
		t := "keys_" + s.kind
		return serveHTTP(&byHand{
			s: s, pipelined: pipelined,
			claim: "INSERT INTO " + t + " (scope, key, fingerprint) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING",
			look:  "SELECT fingerprint, status, content_type, body FROM " + t + " WHERE scope = $1 AND key = $2",
			keep:  "UPDATE " + t + " SET status = $3, content_type = $4, body = $5 WHERE scope = $1 AND key = $2",
		}), nil
	}
}

const (
	tenant  = "tenant"
	maxBody = 1 << 20
)

// ServeHTTP implements http.Handler.
func (h *byHand) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	key := r.Header.Get("Idempotency-Key")
	if key == "" || len(key) > 255 {
		http.Error(w, "Idempotency-Key is missing, or too long", http.StatusBadRequest)
		return
	}
	content, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	digest := sha256.New()
	_, _ = io.WriteString(digest, r.Method+" "+r.URL.RequestURI()+"\n"+r.Header.Get("Content-Type")+"\n")
	_, _ = digest.Write(content)
	r.Body = io.NopCloser(bytes.NewReader(content))
	if err := h.serve(w, r, key, digest.Sum(nil)); err != nil {
		failed(w, err)
	}
}

// serve begins the transaction, and runs or replays.
func (h *byHand) serve(w http.ResponseWriter, r *http.Request, key string, fingerprint []byte) error {
	ctx := r.Context()
	conn, err := h.s.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	begin := h.beginEach
	if h.pipelined {
		begin = h.begin
	}
	tx, row, err := begin(ctx, conn, key, fingerprint)
	if err != nil || row.status != 0 {
		go func() { // the answer does not wait for the end of a transaction that wrote nothing
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			defer cancel()
			defer conn.Release() // which closes it, if it is still in a transaction
			if tx != nil {
				_ = tx.Rollback(ctx)
			}
		}()
	}
	switch {
	case err != nil:
		return err
	case row.status == 0:
		defer conn.Release()
		return h.run(w, r, conn, tx, key)
	case !bytes.Equal(row.fingerprint, fingerprint):
		http.Error(w, "the key was used for another request", http.StatusUnprocessableEntity)
	default:
		w.Header().Set("Idempotent-Replayed", "true")
		row.send(w)
	}
	return nil
}

func (row *stored) send(w http.ResponseWriter) {
	w.Header().Set("Content-Type", row.contentType)
	w.WriteHeader(row.status)
	_, _ = w.Write(row.body)
}

// begin takes one trip. The insertion waits for a transaction that has inserted the same key
// and is still open; the look, which is a statement of its own, sees what that one stored.
func (h *byHand) begin(ctx context.Context, conn *pgxpool.Conn, key string, fingerprint []byte) (tx pgx.Tx, row stored, err error) {
	var b pgx.Batch
	b.BeginTx(pgx.TxOptions{})
	b.Queue(h.claim, tenant, key, fingerprint)
	b.Queue(h.look, tenant, key)
	results := conn.SendBatch(ctx, &b)
	for range 2 { // BEGIN, claim
		if _, eerr := results.Exec(); err == nil {
			err = eerr
		}
	}
	if err == nil {
		err = row.scan(results.QueryRow())
	}
	return results.Tx(), row, errors.Join(err, results.Close())
}

// beginEach takes a trip for each statement.
func (h *byHand) beginEach(ctx context.Context, conn *pgxpool.Conn, key string, fingerprint []byte) (tx pgx.Tx, row stored, err error) {
	if tx, err = conn.Begin(ctx); err != nil {
		return nil, row, err
	}
	tag, err := tx.Exec(ctx, h.claim, tenant, key, fingerprint)
	if err == nil && tag.RowsAffected() == 0 {
		err = row.scan(tx.QueryRow(ctx, h.look, tenant, key))
	}
	return tx, row, err
}

func (row *stored) scan(r pgx.Row) error {
	return r.Scan(&row.fingerprint, &row.status, &row.contentType, &row.body)
}

// run pays, and stores the response with the payment.
func (h *byHand) run(w http.ResponseWriter, r *http.Request, conn *pgxpool.Conn, tx pgx.Tx, key string) (err error) {
	ctx := r.Context()
	defer func() {
		if err != nil && conn.Conn().PgConn().TxStatus() != 'I' {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			defer cancel()
			_ = tx.Rollback(ctx)
		}
	}()
	p := new(payment)
	if err := json.NewDecoder(r.Body).Decode(p); err != nil {
		return err
	}
	paid, err := h.s.insert(ctx, tx, key, p)
	if err != nil {
		return err
	}
	row := stored{status: http.StatusCreated, contentType: "application/json"}
	if row.body, err = json.Marshal(paid); err != nil {
		return err
	}
	if h.pipelined {
		err = h.commit(ctx, conn, key, &row)
	} else if _, err = tx.Exec(ctx, h.keep, tenant, key, row.status, row.contentType, row.body); err == nil {
		err = tx.Commit(ctx)
	}
	if err == nil {
		row.send(w)
	}
	return err
}

// commit stores the response and commits, in one trip.
func (h *byHand) commit(ctx context.Context, conn *pgxpool.Conn, key string, row *stored) error {
	var b pgx.Batch
	b.Queue(h.keep, tenant, key, row.status, row.contentType, row.body)
	b.Queue("commit")
	results := conn.SendBatch(ctx, &b)
	_, err := results.Exec()
	tag, cerr := results.Exec()
	if err == nil && cerr == nil && tag.String() != "COMMIT" {
		cerr = pgx.ErrTxCommitRollback
	}
	return errors.Join(err, cerr, results.Close())
}
