package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/stet-go/stet/store"
)

var _ store.HistoryStore = (*Store)(nil)

// AddHistory implements store.HistoryStore. It locks no record.
func (s *Store) AddHistory(ctx context.Context, id store.ID, e store.HistoryEntry) error {
	if s.batches.isClosed() {
		return errClosed
	}
	var exists int // read by itself: INSERT … SELECT would lock the record
	err := s.own.QueryRowContext(ctx, s.t.fill("SELECT 1 FROM {records} WHERE id = ?"), id[:]).Scan(&exists)
	if errors.Is(err, sql.ErrNoRows) {
		return nil
	}
	if err != nil {
		return explain("add to a history", err)
	}
	text, args := "", []any{}
	add := func(statement string, values ...any) { text, args = text+s.t.fill(statement), append(args, values...) }
	if e.Attempt <= 1 {
		add(`DELETE FROM {history} WHERE id = ? AND fence < ?; `, id[:], e.Fence)
	}
	add(`DELETE h FROM {history} AS h JOIN (SELECT seq, row_number() OVER (ORDER BY seq) AS n, count(*) OVER () AS total FROM {history} WHERE id = ?) AS o
		ON o.seq = h.seq AND o.n = ? AND o.total >= ?; `, id[:], store.HistoryStart+1, store.MaxHistory)
	add(`INSERT INTO {history} (id, fence, attempt, at, data) VALUES (?, ?, ?, `+nowColumn+` + ?, ?)`,
		id[:], e.Fence, e.Attempt, s.ahead.Load(), e.Data)
	_, err = s.own.ExecContext(ctx, text, args...)
	return explain("add to a history", err)
}

// History implements store.HistoryStore.
func (s *Store) History(ctx context.Context, ids []store.ID, most int) ([][]store.HistoryEntry, error) {
	lists := make([][]store.HistoryEntry, len(ids))
	if len(ids) == 0 {
		return lists, ctx.Err()
	}
	places, args := make(map[store.ID]int), []any{}
	for i := range ids {
		places[ids[i]] = i
		args = append(args, ids[i][:])
	}
	rows, err := s.own.QueryContext(ctx, s.t.fill(`SELECT id, fence, attempt, at, data FROM (
		SELECT *, row_number() OVER (PARTITION BY id ORDER BY seq DESC) AS n FROM {history} WHERE id IN `)+list(len(ids))+
		`) AS h WHERE n <= ? ORDER BY seq`, append(args, most)...)
	if err != nil {
		return nil, s.gaveUp("read histories", err)
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var id []byte
		var at micros
		var e store.HistoryEntry
		if err := rows.Scan(&id, &e.Fence, &e.Attempt, &at, &e.Data); err != nil {
			return nil, explain("read histories", err)
		}
		if len(id) != len(store.ID{}) {
			return nil, fmt.Errorf("mysql: read histories: an ID of %d bytes", len(id))
		}
		i := places[store.ID(id)]
		e.At = time.UnixMicro(at)
		lists[i] = append(lists[i], e)
	}
	return lists, explain("read histories", rows.Err())
}
