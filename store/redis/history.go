package redis

import (
	"context"
	"encoding/binary"
	"strconv"
	"time"

	"github.com/stet-go/stet/store"
)

var _ store.HistoryStore = (*Store)(nil)

var historyScript = newScript("history")

// longestHistory is how long the history of a record stays that has no end yet. A later entry
// counts from anew.
const longestHistory = 365 * 24 * time.Hour

// history is the key of a record's history, a list. An entry is its fence and its time, in eight
// bytes each, its attempt in four, and its data.
func (s *Store) history(id store.ID) string { return s.keyOf(shardOf(id), "history:"+id.String()) }

// AddHistory implements store.HistoryStore. The list ends with the record, or after a year if the
// record has no end yet.
func (s *Store) AddHistory(ctx context.Context, id store.ID, e store.HistoryEntry) error {
	entry := string(binary.BigEndian.AppendUint32(nil, uint32(e.Attempt))) + string(e.Data) //nolint:gosec // an attempt is small and positive
	_, err := s.call(ctx, "add to a history", historyScript, []string{s.keys(id).record, s.history(id)},
		fence(e.Fence), strconv.Itoa(e.Attempt), entry, strconv.Itoa(store.HistoryStart), strconv.Itoa(store.MaxHistory), strconv.FormatInt(longestHistory.Milliseconds(), 10))
	return err
}

// headOfEntry is how many bytes an entry has before its data.
const headOfEntry = 8 + 8 + 4

// History implements store.HistoryStore.
func (s *Store) History(ctx context.Context, ids []store.ID, most int) ([][]store.HistoryEntry, error) {
	if err := s.begin(ctx); err != nil {
		return nil, err
	}
	all := make([][]store.HistoryEntry, len(ids))
	_, err := first(concurrently(atATime, len(ids), func(i int) error {
		key := s.history(ids[i])
		reply, err := s.client.Do(ctx, key, "LRANGE", key, strconv.Itoa(-most), "-1")
		if err != nil {
			return explain("read a history", err)
		}
		p := partsOf(reply)
		for p.more() {
			packed := next[string](p)
			if len(packed) < headOfEntry {
				return errReply(packed)
			}
			b := []byte(packed)
			all[i] = append(all[i], store.HistoryEntry{Fence: int64(binary.BigEndian.Uint64(b)), At: time.UnixMicro(int64(binary.BigEndian.Uint64(b[8:]))), //nolint:gosec // the script's
				Attempt: int(binary.BigEndian.Uint32(b[16:])), Data: b[headOfEntry:]})
		}
		return p.err
	}))
	return all, err
}
