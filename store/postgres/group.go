package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/stet-go/stet/internal/fault"
	"github.com/stet-go/stet/store"
)

// sqlEnterGroup is sqlEnter for many keys that nobody has used: 0 for one that is
// being run, or has a record. It is not a join, for which the planner would choose to
// read all of a table that was empty not long ago: the connection is the service's,
// and so are its settings. It publishes no fingerprints, which would be a lock more
// for each key: meanwhile the same key is in flight for everybody else, whatever is
// asked for.
const sqlEnterGroup = `
SELECT CASE WHEN (SELECT r.id FROM {records} r WHERE r.id = u.id) IS NULL AND pg_try_advisory_xact_lock(u.key) THEN
	nextval({fence}::regclass) ELSE 0 END, statement_timestamp()
FROM unnest($1::bigint[], $2::bytea[]) WITH ORDINALITY AS u (key, id, n)
ORDER BY u.n`

// sqlLockTable is how many locks the server has room for, for all of its clients.
const sqlLockTable = `SELECT current_setting('max_locks_per_transaction')::bigint *
	(current_setting('max_connections')::bigint + current_setting('max_prepared_transactions')::bigint)`

// groupShare is the part of that room that a store's groups take together, one lock for
// each key: an eighth. Where there is none left, statements of anybody fail.
const groupShare = 8

// groupPatience is how long a group waits for a lock at its end. All of it waits, on one
// key that somebody else is about to write.
const groupPatience = "1s"

// sqlFinishGroup is sqlCommitNew for many.
const sqlFinishGroup = `
INSERT INTO {records} (id, scope, fingerprint, owner, fence, attempt, state, gone, result, claimed_at, settled_at, expires_at, forget_at, due_at,
	class, name, ref)
SELECT u.id, u.scope, u.fingerprint, u.owner, u.fence, 1, u.state, u.gone, u.result, $9::timestamptz,
	statement_timestamp(), statement_timestamp() + u.keep * interval '1 microsecond',
	statement_timestamp() + u.forget * interval '1 microsecond', statement_timestamp() + u.due * interval '1 microsecond', u.class, u.name, u.ref
FROM unnest($1::bytea[], $2::bytea[], $3::bytea[], $4::bytea[], $5::bigint[], $6::smallint[], $7::boolean[], $8::bytea[],
	$10::bigint[], $11::bigint[], $12::bigint[], $13::text[], $14::text[], $15::text[])
	AS u (id, scope, fingerprint, owner, fence, state, gone, result, keep, forget, due, class, name, ref)
ORDER BY u.id
RETURNING settled_at`

// sqlTellGroup tells whoever waits for one of these keys. It has no more than one lock
// at a time.
const sqlTellGroup = `
SELECT CASE WHEN CASE WHEN pg_try_advisory_lock(u.waiters) THEN NOT pg_advisory_unlock(u.waiters) ELSE true END THEN {tell each} END
FROM unnest($1::bytea[], $2::bigint[]) AS u (id, waiters)`

// group is one try of RunGroup.
type group struct {
	s     *Store
	reqs  []store.ClaimRequest
	keep  []store.Retention
	t     *transaction
	locks []locks

	free    []int // of reqs
	fences  []int64
	claimed time.Time
	outs    []store.Settlement // of free
}

// RunGroup implements store.GroupTxStore. Keys that have a record, or are being
// run elsewhere, are left out. All groups of a store together have no more keys at a
// time than an eighth of the locks that the server has room for (800 with its default
// settings); others wait, before they take a connection. A larger group runs by itself.
func (s *Store) RunGroup(ctx context.Context, reqs []store.ClaimRequest, keep []store.Retention,
	fn func(ctx context.Context, tx pgx.Tx, i int, rec store.Record) (store.Settlement, error)) ([]store.Record, error) {
	if s.closed.Load() {
		return nil, errClosed
	}
	keys := min(int64(len(reqs)), s.groupKeys)
	err := s.groups.Acquire(ctx, keys)
	if err != nil {
		return nil, explain("begin", err)
	}
	defer s.groups.Release(keys)
	t := &transaction{s: s}
	if t.conn, err = s.pool.Acquire(ctx); err != nil {
		return nil, explain("begin", err)
	}
	defer t.abandon() // also when fn panics
	g := &group{s: s, reqs: reqs, keep: keep, t: t}
	if err := g.enter(ctx); err != nil {
		return nil, explain("begin", err)
	}
	recs := make([]store.Record, len(reqs))
	for n, i := range g.free {
		rec := store.Record{ID: reqs[i].ID, Scope: reqs[i].Scope, Label: reqs[i].Label, State: store.Running, Fingerprint: reqs[i].Fingerprint,
			Owner: reqs[i].Owner, Fence: g.fences[n], Attempt: 1, LeaseLeft: reqs[i].Lease, ClaimedAt: g.claimed}
		out, err := fn(ctx, &guarded{Tx: t.tx}, i, rec)
		if err == nil {
			err = intact(ctx, t.tx) // before the next writes outside of it
		}
		switch {
		case err != nil:
			return nil, err
		case !out.State.Settled():
			return nil, fmt.Errorf("%w: an outcome is completed or failed, not %v", store.ErrInvalid, out.State)
		case out.Outbox != nil:
			return nil, fmt.Errorf("%w: messages do not leave from a group", store.ErrInvalid)
		}
		g.outs = append(g.outs, out)
		recs[i] = rec
	}
	if len(g.free) == 0 {
		return recs, nil
	}
	at, err := g.leave(ctx)
	if err != nil {
		return nil, err
	}
	for n, i := range g.free {
		recs[i] = settled(recs[i], &ending{out: g.outs[n], keep: keep[i]}, at)
	}
	return recs, nil
}

// enter begins the transaction and locks the keys that are free, in one round trip.
func (g *group) enter(ctx context.Context) error {
	n := len(g.reqs)
	keys, records := make([]int64, n), make([][]byte, n)
	g.locks = make([]locks, n)
	for i := range g.reqs {
		l := g.s.locks(g.reqs[i].ID, g.reqs[i].Fingerprint)
		g.locks[i], keys[i], records[i] = l, l.key, g.reqs[i].ID[:]
	}
	var b pgx.Batch
	b.BeginTx(g.s.o.TxOptions)
	b.Queue(g.s.sql.enterGroup, keys, records).Query(g.read)
	results := g.t.conn.SendBatch(ctx, &b)
	g.t.tx = results.Tx()
	err := results.Close()
	if sqlState(err) == codeNoStatement {
		g.t.discard() // as in transaction.enter
	}
	return err
}

// read reads what sqlEnterGroup has returned.
func (g *group) read(rows pgx.Rows) error {
	for i := 0; rows.Next(); i++ {
		var fence int64
		if err := rows.Scan(&fence, &g.claimed); err != nil {
			return err
		}
		if fence > 0 {
			g.free, g.fences = append(g.free, i), append(g.fences, fence)
		}
	}
	return rows.Err()
}

// leave writes the records and commits, in one round trip.
func (g *group) leave(ctx context.Context) (at time.Time, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), g.s.commitTimeout)
	defer cancel()
	n := len(g.free)
	ids, scopes, fingerprints, owners, results := make([][]byte, n), make([][]byte, n), make([][]byte, n), make([][]byte, n), make([][]byte, n)
	states, gone := make([]int16, n), make([]bool, n)
	classes, names, refs := make([]string, n), make([]string, n), make([]string, n)
	keep, forget, due, waiters := make([]int64, n), make([]int64, n), make([]int64, n), make([]int64, n)
	for k, i := range g.free {
		req, out := &g.reqs[i], g.outs[k]
		e := &ending{out: out, keep: g.keep[i]}
		ids[k], scopes[k], fingerprints[k], owners[k] = req.ID[:], req.Scope[:], req.Fingerprint[:], req.Owner[:]
		classes[k], names[k], refs[k] = req.Label.Class, req.Label.Name, req.Label.Ref
		states[k], gone[k], results[k] = int16(out.State), out.Gone, out.Result
		if !out.Gone && out.Result == nil {
			results[k] = []byte{}
		}
		sweep, _ := e.due() // there are no messages
		keep[k], forget[k], due[k] = micros(e.keep.Result), micros(e.keep.Tombstone), micros(sweep)
		waiters[k] = g.locks[i].waiters
	}
	fault.At(fault.CommitBefore)
	defer fault.At(fault.CommitAfter)
	a, err := g.t.committing(ctx, func(ctx context.Context, t *transaction) (a answer, err error) {
		var b pgx.Batch
		b.Queue("SELECT set_config('lock_timeout', $1, true), "+audible, groupPatience)
		b.Queue(g.s.sql.finishGroup, ids, scopes, fingerprints, owners, g.fences, states, gone, results, g.claimed, keep, forget, due, classes, names, refs).
			Query(func(rows pgx.Rows) error {
				for rows.Next() {
					if err := rows.Scan(&a.at); err != nil {
						return err
					}
				}
				return rows.Err()
			})
		b.Queue(g.s.sql.tellGroup, ids, waiters)
		b.Queue(cmp.Or(g.s.o.TxOptions.CommitQuery, "commit")).Exec(func(tag pgconn.CommandTag) error {
			if tag.String() == "ROLLBACK" {
				return pgx.ErrTxCommitRollback
			}
			return nil
		})
		return a, t.conn.SendBatch(ctx, &b).Close()
	})
	switch {
	case err == nil:
		return a.at, nil
	case answered(err) || errors.Is(err, pgx.ErrTxCommitRollback):
		return at, fmt.Errorf("%w (nothing was committed)", explain("commit", err))
	}
	return at, errors.Join(store.ErrUnknown, explain("commit", err))
}
