package messages

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/stet-go/stet"
)

// createLedger makes the tables. None has a unique constraint: a second effect
// would show.
const createLedger = `
CREATE TABLE effects (id text, fence bigint, nonce text, emits boolean);
CREATE INDEX ON effects (id);
CREATE TABLE verdicts (id text, fence bigint, happened boolean);
CREATE INDEX ON verdicts (id);
CREATE TABLE refused (id text, fence bigint)`

// effect is what a handler does.
type effect struct {
	id    string
	fence int64
	nonce string // of this very call of the handler
	emits bool   // it also emits a message
}

const insertEffect = `INSERT INTO effects VALUES ($1, $2, $3, $4)`

func (e effect) insert(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, insertEffect, e.id, e.fence, e.nonce, e.emits)
	return err
}

// ledger keeps effects outside of the engine's store.
type ledger struct{ pool *pgxpool.Pool }

// errRefused says that the ledger has seen a greater fence, or has told a
// verifier that nothing happened under this one.
var errRefused = fmt.Errorf("the fence is stale: %w", stet.ErrRetryable)

// locked runs f in a transaction that has the id for itself.
func (l ledger) locked(ctx context.Context, id string, f func(pgx.Tx) error) error {
	return pgx.BeginFunc(ctx, l.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock(hashtextextended($1, 0))`, id); err != nil {
			return err
		}
		return f(tx)
	})
}

// have has an effect, unless its fence is stale. Of an error other than
// errRefused nobody knows what it left behind.
func (l ledger) have(ctx context.Context, e effect) error {
	err := l.locked(ctx, e.id, func(tx pgx.Tx) error {
		var stale bool
		err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM effects WHERE id = $1 AND fence > $2)
			OR EXISTS (SELECT FROM verdicts WHERE id = $1 AND NOT happened AND fence >= $2)`, e.id, e.fence).Scan(&stale)
		switch {
		case err != nil:
			return err
		case stale:
			return errRefused
		}
		return e.insert(ctx, tx)
	})
	if errors.Is(err, errRefused) {
		_, _ = l.pool.Exec(ctx, `INSERT INTO refused VALUES ($1, $2)`, e.id, e.fence) // a figure only
	}
	return err
}

// verify is a stet.Verify. When it finds no effect, no run up to that fence will
// have it any more: a verifier that only looked would have to know that the run
// is dead, and not just slow.
func (l ledger) verify(ctx context.Context, u stet.Unresolved) (v stet.Verdict, err error) {
	err = l.locked(ctx, u.Op.Key, func(tx pgx.Tx) error {
		var nonce string
		err := tx.QueryRow(ctx, `SELECT nonce FROM effects WHERE id = $1 LIMIT 1`, u.Op.Key).Scan(&nonce)
		happened := err == nil
		if err != nil && !errors.Is(err, pgx.ErrNoRows) {
			return err
		}
		v = stet.ItDidNotHappen()
		if happened {
			v = stet.ItHappened(outcome(byVerifier, nonce))
		}
		_, err = tx.Exec(ctx, `INSERT INTO verdicts VALUES ($1, $2, $3)`, u.Op.Key, u.Fence, happened)
		return err
	})
	if err != nil {
		return stet.CannotKnow(), err
	}
	return v, nil
}

// Who has settled an operation, in its result. What a run has emitted is kept
// with the outcome that it settled itself: a verifier's has none.
const (
	byRun      = "run"
	byVerifier = "verifier"
)

func outcome(by, nonce string) stet.Outcome {
	return stet.Outcome{State: stet.Completed, Result: []byte(by + " " + nonce)}
}

// settledBy undoes outcome.
func settledBy(result []byte) (by, nonce string) {
	by, nonce, _ = strings.Cut(string(result), " ")
	return by, nonce
}
