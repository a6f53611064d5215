package postgres

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"github.com/stet-go/stet/store"
)

// browseLook is how many records one Browse looks at when some of them may not
// match.
const browseLook = 2000

var _ store.Browser = (*Store)(nil)

// The filters of both statements: retention, states, scope, and ages. Results are not read.
const (
	browseMatch = `(r.forget_at IS NULL OR r.forget_at > statement_timestamp())
		AND ({states}::smallint[] IS NULL AND {older}::bigint IS NULL AND {newer}::bigint IS NULL OR ` + readable + `)
		AND ({states}::smallint[] IS NULL OR r.state = ANY ({states}::smallint[]))
		AND ({scope}::bytea IS NULL OR r.scope = {scope}::bytea)
		AND ({older}::bigint IS NULL OR r.claimed_at < statement_timestamp() - {older}::bigint * interval '1 microsecond')
		AND ({newer}::bigint IS NULL OR r.claimed_at > statement_timestamp() - {newer}::bigint * interval '1 microsecond')`
)

// sqlBrowse walks the primary key, and says how many records it looked at and
// which was the last one, also when none matches.
var sqlBrowse = filtered(3, `
WITH l AS MATERIALIZED (
	SELECT {kept}, {match} AS matches
	FROM {records} r WHERE r.id > $1::bytea AND r.id <= $2::bytea ORDER BY r.id LIMIT {look}::bigint
)
SELECT t.looked, t.last, `+selected(columns)+`
FROM (SELECT count(*) AS looked, (SELECT id FROM l ORDER BY id DESC LIMIT 1) AS last FROM l) t
LEFT JOIN (SELECT * FROM l WHERE matches ORDER BY id LIMIT {limit}::bigint) r ON true ORDER BY r.id`)

// sqlBrowseOpen is sqlBrowse for states that are not settled. It walks the index
// of these by fence, which is the order in which they were claimed.
var sqlBrowseOpen = filtered(2, `
WITH l AS MATERIALIZED (
	SELECT {kept}, {match} AS matches
	FROM unnest({states}::smallint[]) AS s (state), LATERAL (
		SELECT * FROM {records} o WHERE o.open_state = s.state AND o.fence > $1::bigint
		ORDER BY o.fence LIMIT {look}::bigint
	) r ORDER BY r.fence LIMIT {look}::bigint
)
SELECT t.looked, t.last, `+selected(columns)+`
FROM (SELECT count(*) AS looked, max(fence) AS last FROM l) t
LEFT JOIN (SELECT * FROM l WHERE matches ORDER BY fence LIMIT {limit}::bigint) r ON true ORDER BY r.fence`)

// filtered puts the filters into sql, with their parameters from number n on.
func filtered(n int, sql string) string {
	sql = strings.NewReplacer("{match}", browseMatch, "{kept}", unread()).Replace(sql)
	for i, name := range []string{"{look}", "{limit}", "{states}", "{scope}", "{older}", "{newer}"} {
		sql = strings.ReplaceAll(sql, name, fmt.Sprintf("$%d", n+i))
	}
	return sql
}

const sqlExpire = `
UPDATE {records} r SET gone = true, ` + bare + `, due_at = r.forget_at,
	expires_at = CASE WHEN r.gone THEN r.expires_at ELSE least(r.expires_at, statement_timestamp()) END
WHERE r.id = $1::bytea AND r.fence = $2::bigint AND r.state IN ({completed}, {failed}) AND (r.forget_at IS NULL OR r.forget_at > statement_timestamp())
RETURNING 1`

// Browse implements store.Browser. It reads at most 2,000 records of each state. Unsettled records
// come in the order of their claims if q asks for such states only, and for at most one of running,
// retryable and accepted, because a change between these moves a record in that order. All others
// come in the order of their IDs. With q.Scope, the order by IDs reads the records of the scope
// only, and the order by claims those of all scopes.
func (s *Store) Browse(ctx context.Context, q store.Query) (store.Page, error) {
	if err := ctx.Err(); err != nil {
		return store.Page{}, err
	}
	if err := q.Check(); err != nil {
		return store.Page{}, err
	}
	w, err := newWalk(q)
	if err != nil {
		return store.Page{}, err
	}
	var page store.Page
	err = s.alone(ctx, s.slow, func() []call {
		page = store.Page{}
		st := s.sql.browse
		if w.open {
			st = s.sql.browseOpen
		}
		return []call{{st, w.args(), func(from scanner) error { return w.add(&page, from) }}}
	})
	if err != nil {
		return store.Page{}, explain("browse", err)
	}
	return page, nil
}

// Expire implements store.Browser. What a transaction is about to settle
// (SettleTx) is not settled until it commits.
func (s *Store) Expire(ctx context.Context, c store.Claim) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	done := false
	err := s.onRow(ctx, s.slow, c.ID, func() []call {
		done = false
		row := func(scanner) error { done = true; return nil }
		return []call{{s.sql.expire, []any{c.ID[:], c.Fence}, row}, {s.sql.replace, []any{c.ID[:], c.Fence, c.Owner[:]}, row}}
	})
	if err == nil && !done {
		return store.ErrFenced
	}
	return explain("expire", err)
}

// walk is one page of a query.
type walk struct {
	q     store.Query
	open  bool   // through the index of records that are not settled
	after []byte // an ID or a fence: where to begin, exclusively
	most  store.ID
	look  int
}

const (
	byFence = "f" // begin cursors
	byID    = "i"
)

func newWalk(q store.Query) (*walk, error) {
	has := func(state store.State) bool { return slices.Contains(q.States, state) }
	moving := 0
	for _, state := range []store.State{store.Running, store.Retryable, store.Accepted} {
		if has(state) {
			moving++
		}
	}
	w := &walk{q: q, look: browseLook,
		open: len(q.States) > 0 && !has(store.Completed) && !has(store.Failed) && moving < 2}
	if w.q.Limit == 0 {
		w.q.Limit = store.DefaultBrowse
	}
	if q.OlderThan == 0 && q.NewerThan == 0 && (w.open && q.Scope == store.ID{} || len(q.States) == 0) {
		w.look = w.q.Limit // nearly all match
	}
	kind, size, least := byID, len(store.ID{}), []byte{}
	switch {
	case w.open:
		kind, size, least = byFence, 8, make([]byte, 8)
	case q.Scope == store.ID{}:
		w.most = store.ID(bytes.Repeat([]byte{0xff}, size))
	default:
		var first store.ID
		first, w.most = store.ScopeRange(q.Scope)
		least = bytes.TrimRight(first[:], "\x00") // the shorter value sorts before it
	}
	if w.after = least; q.After == "" {
		return w, nil
	}
	text, ok := strings.CutPrefix(q.After, kind)
	at, err := hex.DecodeString(text)
	if !ok || err != nil || w.open && len(at) != size || bytes.Compare(at, least) < 0 || w.open && at[0] > 0x7f {
		return nil, fmt.Errorf("postgres: %w: Query.After is no Page.Next of this query", store.ErrInvalid)
	}
	w.after = at
	return w, nil
}

func (w *walk) args() []any {
	args := []any{w.after, w.most[:]}
	if w.open {
		args = []any{int64(binary.BigEndian.Uint64(w.after))}
	}
	optional := func(there bool, v any) any {
		if there {
			return v
		}
		return nil
	}
	var states []int16
	for _, state := range slices.Compact(slices.Sorted(slices.Values(w.q.States))) {
		states = append(states, int16(state))
	}
	return append(args, int64(w.look), int64(w.q.Limit), states, optional(w.q.Scope != store.ID{}, w.q.Scope[:]),
		optional(w.q.OlderThan > 0, micros(w.q.OlderThan)), optional(w.q.NewerThan > 0, micros(w.q.NewerThan)))
}

// add takes a row of the statement: how many records it read, where the last one
// was, and a record that matches, if there is any.
func (w *walk) add(page *store.Page, from scanner) error {
	var r row
	var looked int
	var lastID []byte
	var lastFence *int64
	last := any(&lastID)
	if w.open {
		last = &lastFence
	}
	err := r.scan(from, columns, &looked, last)
	if err != nil && r.damage == nil || looked == 0 {
		return err
	}
	if looked == w.look {
		page.Next = w.cursor(lastID, lastFence)
	}
	switch {
	case r.read.id == nil:
		return nil
	case r.damage != nil:
		page.Records = append(page.Records, store.Record{ID: r.ID, Scope: r.Scope, Owner: r.Owner, Fence: r.Fence, Damage: r.damage.Error()})
	default:
		page.Records = append(page.Records, r.record())
	}
	if len(page.Records) == w.q.Limit {
		page.Next = w.cursor(r.read.id, &r.Fence)
	}
	return nil
}

// cursor is Page.Next after the record with this ID and fence.
func (w *walk) cursor(id []byte, fence *int64) string {
	if w.open {
		return byFence + hex.EncodeToString(binary.BigEndian.AppendUint64(nil, uint64(*fence)))
	}
	return byID + hex.EncodeToString(id)
}
