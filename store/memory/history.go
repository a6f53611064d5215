package memory

import (
	"context"
	"slices"

	"github.com/stet-go/stet/store"
)

var _ store.HistoryStore = (*Store)(nil)

// AddHistory implements store.HistoryStore.
func (s *Store) AddHistory(ctx context.Context, id store.ID, e store.HistoryEntry) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	defer s.compact()
	sh := s.shard(id)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	now := s.now()
	if s.current(id, now) == nil {
		return nil
	}
	if sh.histories == nil {
		sh.histories = make(map[store.ID][]store.HistoryEntry)
	}
	list := sh.histories[id]
	if e.Attempt <= 1 {
		list = slices.DeleteFunc(list, func(old store.HistoryEntry) bool { return old.Fence < e.Fence })
	}
	if len(list) >= store.MaxHistory {
		list = slices.Delete(list, store.HistoryStart, store.HistoryStart+1)
	}
	e.At, e.Data = s.start.Add(now), slices.Clone(e.Data)
	sh.histories[id] = append(list, e)
	return nil
}

// History implements store.HistoryStore.
func (s *Store) History(ctx context.Context, ids []store.ID, most int) ([][]store.HistoryEntry, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	all := make([][]store.HistoryEntry, len(ids))
	for i, id := range ids {
		sh := s.shard(id)
		sh.mu.Lock()
		list := sh.histories[id]
		all[i] = slices.Clone(list[max(0, len(list)-most):])
		sh.mu.Unlock()
	}
	return all, nil
}
