package sqlite

import (
	"context"
	"fmt"
	"time"

	"github.com/stet-go/stet/store"
)

const (
	sweepChunk        = 1000      // records that one Sweep reads
	sweepDamagedEvery = time.Hour // between two reads of a damaged record by sweeps
)

// Sweep implements store.Sweeper. It reads only records that are due, through an index: its cost does
// not depend on how many there are. One call reads at most 1,000, even if limit is larger.
func (s *Store) Sweep(ctx context.Context, limit int) (store.Swept, error) {
	if limit < 1 {
		return store.Swept{}, ctx.Err()
	}
	limit = min(limit, sweepChunk)
	var swept store.Swept
	var bad damage
	err := s.write(ctx, func(w *session) (err error) {
		swept, bad, err = sweep(w, limit)
		return err
	})
	if err != nil {
		return store.Swept{}, err
	}
	return swept, bad.err()
}

// sweep is the body of Sweep, in a write transaction. It delays unreadable records, so that they do
// not block the sweep.
func sweep(s *session, limit int) (swept store.Swept, bad damage, err error) {
	var found []foundRow
	err = s.rows(qSweep, func(v []any) error {
		var d foundRow
		d.err = d.scan(v)
		found = append(found, d)
		return nil
	}, s.now, int64(limit))
	for _, d := range found {
		switch {
		case err != nil:
			return swept, bad, err
		case d.err != nil:
		case d.lapsed(s.now):
			if err = d.markUnknown(s); d.State == store.Unknown {
				swept.MarkedUnknown++
			}
			continue
		case d.forgotten(s.now) && (d.State.Settled() || d.State == store.Retryable):
			if _, err = s.exec(qDelete, d.Fence); err == nil {
				_, err = s.exec(qForgetHistory, d.ID[:])
			}
			swept.Purged++
			continue
		case d.State.Settled():
			_, err = s.exec(qExpire, s.now, d.Fence)
			swept.Expired++
			continue
		default:
			d.err = unreadable(d.ID, fmt.Sprintf("it is %v, and the sweep cannot change it", d.State))
		}
		bad.add(d.Claim(), d.err)
		_, err = s.exec(qSweepLater, s.now+span(sweepDamagedEvery), d.Fence)
	}
	swept.More = len(found) == limit
	return swept, bad, err
}
