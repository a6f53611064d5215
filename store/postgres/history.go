package postgres

import (
	"context"
	"fmt"

	"github.com/stet-go/stet/store"
)

var _ store.HistoryStore = (*Store)(nil)

// The foreign key of an entry locks its record FOR KEY SHARE until the commit. Other statements of the store lock
// records FOR NO KEY UPDATE, so neither skips or waits for the other, but for a deletion.
const sqlAddHistory = `
WITH first AS (
	DELETE FROM {history} WHERE id = $1::bytea AND $3::integer <= 1 AND fence < $2::bigint
), middle AS (
	DELETE FROM {history} h USING (
		SELECT o.seq, row_number() OVER (ORDER BY o.seq) AS n, count(*) OVER () AS total
		FROM {history} o WHERE o.id = $1::bytea AND ($3::integer > 1 OR o.fence >= $2::bigint)
	) o WHERE h.id = $1::bytea AND h.seq = o.seq AND o.n = $5::bigint AND o.total >= $6::bigint
)
INSERT INTO {history} (id, fence, attempt, data) SELECT r.id, $2::bigint, $3::integer, $4::bytea FROM {records} r WHERE r.id = $1::bytea`

const sqlHistory = `
SELECT e.n, h.fence, h.attempt, h.at, h.data
FROM unnest($1::bytea[]) WITH ORDINALITY AS e (id, n), LATERAL (
	SELECT * FROM {history} o WHERE o.id = e.id ORDER BY o.seq DESC LIMIT $2::bigint
) h ORDER BY e.n, h.seq`

// AddHistory implements store.HistoryStore. It has the connection of sweeps: neither operators nor
// the calls of requests share it.
func (s *Store) AddHistory(ctx context.Context, id store.ID, e store.HistoryEntry) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	err := s.alone(ctx, s.sweeps, func() []call {
		return []call{{s.sql.addHistory, []any{id[:], e.Fence, e.Attempt, e.Data, int64(store.HistoryStart + 1), int64(store.MaxHistory)}, nil}}
	})
	return explain("add to a history", err)
}

// History implements store.HistoryStore.
func (s *Store) History(ctx context.Context, ids []store.ID, most int) (all [][]store.HistoryEntry, err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	digests := make([][]byte, len(ids))
	for i := range ids {
		digests[i] = ids[i][:]
	}
	err = s.alone(ctx, s.slow, func() []call {
		all = make([][]store.HistoryEntry, len(ids))
		return []call{{s.sql.history, []any{digests, int64(most)}, func(from scanner) error {
			var n int
			var e store.HistoryEntry
			if err := from.Scan(&n, &e.Fence, &e.Attempt, &e.At, &e.Data); err != nil {
				return err
			}
			if n < 1 || n > len(all) {
				return fmt.Errorf("%w: the history has the place %d", errDamaged, n)
			}
			all[n-1] = append(all[n-1], e)
			return nil
		}}}
	})
	return all, explain("read histories", err)
}
