package sqlite

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/stet-go/stet/store"
)

var _ store.HistoryStore = (*Store)(nil)

// AddHistory implements store.HistoryStore.
func (s *Store) AddHistory(ctx context.Context, id store.ID, e store.HistoryEntry) error {
	return s.write(ctx, func(w *session) error {
		if e.Attempt <= 1 {
			if _, err := w.exec(qHistoryStart, id[:], e.Fence); err != nil {
				return err
			}
		}
		if _, err := w.exec(qHistoryFull, id[:], store.HistoryStart, store.MaxHistory); err != nil {
			return err
		}
		_, err := w.exec(qAddHistory, id[:], e.Fence, e.Attempt, w.now, e.Data)
		return err
	})
}

// History implements store.HistoryStore.
func (s *Store) History(ctx context.Context, ids []store.ID, most int) ([][]store.HistoryEntry, error) {
	all := make([][]store.HistoryEntry, len(ids))
	err := s.read(ctx, func(r *session) error {
		for i, id := range ids {
			if err := r.rows(qHistory, func(v []any) error {
				fence, ok1 := v[0].(int64)
				attempt, ok2 := v[1].(int64)
				at, ok3 := v[2].(int64)
				data, ok4 := v[3].([]byte)
				if !ok1 || !ok2 || !ok3 || !ok4 {
					return fmt.Errorf("%w: a row of stet_history", errDamaged)
				}
				all[i] = append(all[i], store.HistoryEntry{At: time.UnixMicro(at), Fence: fence, Attempt: int(attempt), Data: data})
				return nil
			}, id[:], most); err != nil {
				return err
			}
			slices.Reverse(all[i])
		}
		return nil
	})
	return all, err
}
