package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/stet-go/stet/internal/fault"
	"github.com/stet-go/stet/store"
)

// sqlLockTable is how many locks the server has room for, for all of its clients.
const sqlLockTable = `SELECT current_setting('max_locks_per_transaction')::bigint *
	(current_setting('max_connections')::bigint + current_setting('max_prepared_transactions')::bigint)`

// groupShare is the part of that room that a store's groups take together, one lock for
// each key: an eighth. Where there is none left, statements of anybody fail.
const groupShare = 8

// groupPatience is how long a group waits for a lock at its end. All of it waits, on one
// key that another transaction is about to write.
const groupPatience = "1s"

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
	if err := s.durability.refusal(); err != nil {
		return nil, err
	}
	keys := min(int64(len(reqs)), s.groupKeys)
	err := s.groups.Acquire(ctx, keys)
	if err != nil {
		return nil, explain("begin", err)
	}
	defer s.groups.Release(keys)
	t := &transaction{s: s, options: s.o.TxOptions}
	if t.conn, err = s.pool.Acquire(ctx); err != nil {
		return nil, explain("begin", err)
	}
	defer t.rollBack() // also when fn panics
	g := &group{s: s, reqs: reqs, keep: keep, t: t}
	if err := g.enter(ctx); err != nil {
		return nil, explain("begin", err)
	}
	recs := make([]store.Record, len(reqs))
	for n, i := range g.free {
		rec := store.Record{ID: reqs[i].ID, Scope: reqs[i].Scope, Label: reqs[i].Label, State: store.Running, Fingerprint: reqs[i].Fingerprint,
			Owner: reqs[i].Owner, Fence: g.fences[n], Attempt: 1, LeaseLeft: reqs[i].Lease, ClaimedAt: g.claimed}
		out, err := fn(ctx, &userTx{t.tx}, i, rec)
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
		t.rollBackLater() // it has locked nothing
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
	b.BeginTx(g.t.options)
	b.Queue(g.s.sql.enterGroup.sql, keys, records).Query(g.read)
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
		if err := rows.Scan(&fence, &g.claimed, &g.t.replicated); err != nil {
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
	var writes []*write
	ids, waiters := make([][]byte, len(g.free)), make([]int64, len(g.free))
	for k, i := range g.free {
		rec := store.Record{Fence: g.fences[k], Attempt: 1, ClaimedAt: g.claimed}
		writes = append(writes, &write{req: &g.reqs[i], end: &ending{out: g.outs[k], keep: g.keep[i]}, rec: rec})
		ids[k], waiters[k] = g.reqs[i].ID[:], g.locks[i].waiters
	}
	fault.At(fault.CommitBefore)
	defer fault.At(fault.CommitAfter)
	a, err := g.t.committing(ctx, !g.t.replicated, func(ctx context.Context, t *transaction) (a answer, err error) {
		var b pgx.Batch
		b.Queue("SELECT set_config('lock_timeout', $1, true), "+audible, groupPatience)
		b.Queue(g.s.sql.finishGroup.sql, arrays(finished, writes)...).
			Query(func(rows pgx.Rows) error {
				for rows.Next() {
					if err := rows.Scan(&a.at); err != nil {
						return err
					}
				}
				return rows.Err()
			})
		b.Queue(g.s.sql.tellGroup.sql, ids, waiters)
		return a, t.sendCommit(ctx, &b)
	})
	switch {
	case err == nil:
		return a.at, nil
	case answered(err) || errors.Is(err, pgx.ErrTxCommitRollback):
		return at, uncommitted(err)
	}
	return at, errors.Join(store.ErrUnknown, explain("commit", err))
}
