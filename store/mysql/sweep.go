package mysql

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/stet-go/stet/store"
)

const (
	sweepChunk        = 1000      // records that one Sweep reads
	sweepDamagedEvery = time.Hour // between two reads of a damaged record by sweeps
)

// Sweep implements store.Sweeper. It reads only records that are due, through an index. It skips records that
// another transaction has locked. One call reads at most 1,000, even if limit is larger.
func (s *Store) Sweep(ctx context.Context, limit int) (store.Swept, error) {
	if limit < 1 || ctx.Err() != nil {
		return store.Swept{}, ctx.Err()
	}
	limit = min(limit, sweepChunk)
	var w *sweeping
	err := s.inOwn(ctx, s.t.sweep, []any{s.ahead.Load(), limit}, func(a *answer) (string, []any) {
		w = &sweeping{s: s, now: a.now, swept: store.Swept{More: len(a.rows) == limit}}
		for _, r := range a.rows {
			w.add(r)
		}
		return w.statements()
	})
	if err != nil {
		return store.Swept{}, s.gaveUp("sweep", err)
	}
	return w.swept, w.bad.err()
}

// sweeping is what one Sweep has found.
type sweeping struct {
	s                                        *Store
	now                                      micros
	unknown, again, forgotten, expired, late []any // IDs
	swept                                    store.Swept
	bad                                      damage
}

func (w *sweeping) add(r *row) {
	id := r.ID[:]
	switch {
	case r.broken != nil:
	case r.lapsed(w.now) && r.repeatable():
		w.again = append(w.again, id)
		return
	case r.lapsed(w.now):
		w.unknown = append(w.unknown, id)
		w.swept.MarkedUnknown++
		return
	case r.forgotten(w.now) && (r.State.Settled() || r.State == store.Retryable):
		w.forgotten = append(w.forgotten, id)
		w.swept.Purged++
		return
	case r.State.Settled():
		w.expired = append(w.expired, id)
		w.swept.Expired++
		return
	default:
		r.broken = unreadable(r.ID, fmt.Sprintf("it is %v, and the sweep cannot change it", r.State))
	}
	// It is read again later, so that it does not block the sweep.
	w.bad.add(r.Claim(), r.broken)
	w.late = append(w.late, id)
}

// statements change the rows; it also returns their parameters.
func (w *sweeping) statements() (string, []any) {
	var texts []string
	var args []any
	add := func(text string, ids []any, values ...any) {
		if len(ids) > 0 {
			texts = append(texts, w.s.t.fill(text)+list(len(ids)))
			args = append(append(args, values...), ids...)
		}
	}
	add(`UPDATE {records} FORCE INDEX (PRIMARY) SET state = 5, settled = ?, lease = NULL, due = NULL, conn = NULL, queue = '`+unknowns+`', queue_due = NULL WHERE id IN `, w.unknown, w.now)
	add(`UPDATE {records} FORCE INDEX (PRIMARY) SET state = 6, settled = ?, lease = ?, due = NULL, conn = NULL WHERE id IN `, w.again, w.now, w.now)
	add(`DELETE r FROM {records} AS r FORCE INDEX (PRIMARY) WHERE r.id IN `, w.forgotten)
	add(`DELETE FROM {history} WHERE id IN `, w.forgotten)
	add(`UPDATE {records} FORCE INDEX (PRIMARY) SET expires = IF(gone, expires, LEAST(expires, ?)), gone = 1, status = NULL, content_type = NULL, head = NULL, body = NULL,
		due = forget WHERE id IN `, w.expired, w.now)
	add(`UPDATE {records} FORCE INDEX (PRIMARY) SET due = ? WHERE id IN `, w.late, w.now+span(sweepDamagedEvery))
	return strings.Join(texts, "; "), args
}
