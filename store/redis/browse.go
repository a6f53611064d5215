package redis

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stet-go/stet/store"
)

const (
	minScan  = 256 // keys that one SCAN, or records that one step, reads at least
	maxSteps = 16  // SCANs, or stretches of shards or parts of such, in one page
)

// Browse implements store.Browser. Accepted, running and unknown records are read from a list;
// for other states it scans all keys of the database. One page reads a bounded number of them.
// While a cluster moves slots, a record may be missing or come twice. The same is true of a scan
// while the server shrinks its table.
func (s *Store) Browse(ctx context.Context, q store.Query) (store.Page, error) {
	if err := s.begin(ctx); err != nil {
		return store.Page{}, err
	}
	if err := q.Check(); err != nil {
		return store.Page{}, err
	}
	at, err := parsePlace(q)
	if err != nil {
		return store.Page{}, err
	}
	b := &browsing{s: s, q: q, room: q.Limit}
	if b.room == 0 {
		b.room = store.DefaultBrowse
	}
	walk := b.scanned
	if indexedOnly(q) {
		walk = b.indexed
	}
	more, err := walk(ctx, &at)
	if err != nil {
		return store.Page{}, err
	}
	if more {
		b.page.Next = at.String(q)
	}
	return b.page, nil
}

// indexedOnly reports whether all records that q asks for are in the index.
func indexedOnly(q store.Query) bool {
	return len(q.States) > 0 && !slices.ContainsFunc(q.States, func(state store.State) bool {
		return state != store.Running && state != store.Unknown && state != store.Accepted
	})
}

// browsing is a page that is being filled.
type browsing struct {
	s    *Store
	q    store.Query
	room int
	page store.Page
}

// indexed reads the lists of shards, a stretch at a time, or as much of one as a step may read.
func (b *browsing) indexed(ctx context.Context, at *place) (more bool, err error) {
	limit := max(b.room, minScan)
	for range maxSteps {
		if at.part >= shards {
			return false, nil
		}
		from, list, after := at.part, "", ""
		if at.inside {
			list, after = b.s.list(at.part), string(at.after[:])
		}
		var names []string
		for shard := range min(stretch, shards-at.part) {
			names = append(names, b.s.list(at.part+shard))
		}
		lists, err := b.s.evalEach(ctx, liveScript, names, 1, strconv.Itoa(limit), list, after)
		if err != nil {
			return false, explain("browse", err)
		}
		ids, err := identities(slices.Concat(lists...))
		if err != nil {
			return false, err
		}
		some := ids[:min(len(ids), limit)] // of a cluster, each shard has given as many
		full, err := b.take(ctx, at, some)
		if at.inside {
			at.part = shardOf(at.after)
		}
		if err != nil || full {
			return full, err
		}
		if len(some) < limit {
			*at = place{part: from + stretch}
		}
	}
	return at.part < shards, nil
}

// scanned scans all keys, server by server.
func (b *browsing) scanned(ctx context.Context, at *place) (more bool, err error) {
	servers, err := b.s.masters(ctx)
	if err != nil {
		return false, err
	}
	pattern := b.s.pattern(b.q.Scope)
	count := max(b.room, minScan)
	for range maxSteps {
		if at.part >= len(servers) {
			return false, nil
		}
		ids, end, err := b.s.scan(ctx, servers[at.part], pattern, count, at.span)
		if err != nil {
			return false, err
		}
		at.span = span{at.span.start, end, true}
		slices.SortFunc(ids, func(x, y store.ID) int { return bytes.Compare(x[:], y[:]) })
		ids = slices.Compact(ids)
		if at.inside {
			ids = slices.DeleteFunc(ids, func(id store.ID) bool { return bytes.Compare(id[:], at.after[:]) <= 0 })
		}
		full, err := b.take(ctx, at, ids)
		if err != nil || full {
			return full, err
		}
		*at = place{part: at.part, span: span{start: end}}
		if end == 0 {
			*at = place{part: at.part + 1}
		}
	}
	return at.part < len(servers), nil
}

// masters returns the servers that have keys, in the order of their addresses.
func (s *Store) masters(ctx context.Context) (masters []scannable, err error) {
	all, err := servers(ctx, s.client)
	if err != nil || !s.cluster {
		return []scannable{{Client: s.client}}, err
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		info, err := askInfo(ctx, all[name])
		if err != nil {
			return nil, explain("browse", err)
		}
		if info["role"] == "master" {
			masters = append(masters, newScannable(all[name], info))
		}
	}
	return masters, nil
}

// take reads records in the given order and adds the matching ones to the page. It reports
// whether the page became full before the end.
func (b *browsing) take(ctx context.Context, at *place, ids []store.ID) (full bool, err error) {
	for len(ids) > 0 {
		if b.room == 0 {
			return true, nil
		}
		some := ids[:min(len(ids), max(b.room, maxGroup/2))]
		found, ages, err := b.s.peek(ctx, some)
		if err != nil {
			return false, err
		}
		for i, rec := range found {
			if b.room == 0 {
				return true, nil
			}
			at.after, at.inside = some[i], true
			if rec.Damage == "" && (rec.State == store.None || !b.q.Match(rec, ages[i])) || rec.Damage != "" && !b.asksForDamaged(rec) {
				continue
			}
			b.page.Records = append(b.page.Records, rec)
			b.room--
		}
		ids = ids[len(some):]
	}
	return false, nil
}

// asksForDamaged reports whether a record that cannot be read is shown. Its scope is part of its
// identity.
func (b *browsing) asksForDamaged(rec store.Record) bool {
	least, greatest := store.ScopeRange(b.q.Scope)
	return len(b.q.States) == 0 && b.q.OlderThan == 0 && b.q.NewerThan == 0 &&
		(b.q.Scope == store.ID{} || bytes.Compare(rec.ID[:], least[:]) >= 0 && bytes.Compare(rec.ID[:], greatest[:]) <= 0)
}

// peek reads records without their results, and how old they are.
func (s *Store) peek(ctx context.Context, ids []store.ID) ([]store.Record, []time.Duration, error) {
	recs, ages := make([]store.Record, len(ids)), make([]time.Duration, len(ids))
	groups := s.group(len(ids), func(i int) store.ID { return ids[i] })
	_, err := first(s.each(len(groups), func(g int) error {
		var names []string
		for _, i := range groups[g] {
			k := s.keys(ids[i])
			names = append(names, k.record, k.result)
		}
		reply, err := s.eval(ctx, peekScript, names)
		if err != nil {
			return explain("browse", err)
		}
		p := partsOf(reply)
		now := next[int64](p)
		for _, i := range groups[g] {
			packed, found := p.value(), next[int64](p)
			rec, err := unpack(ids[i], packed, now, found == 1)
			if err != nil {
				rec = damagedRecord(ids[i], packed)
			}
			recs[i], ages[i] = rec, time.UnixMicro(now).Sub(rec.ClaimedAt)
		}
		return p.err
	}))
	return recs, ages, err
}

// place is where a page ends: a shard, or a span of a server's keys, and if it ended inside of
// that, the last identity read.
type place struct {
	part   int
	span   span
	inside bool
	after  store.ID
}

// String makes the cursor of a query.
func (p place) String(q store.Query) string {
	after := ""
	if p.inside {
		after = hex.EncodeToString(p.after[:])
	}
	return fmt.Sprintf("1.%08x.%d.%x.%x.%t.%s", digest(q), p.part, p.span.start, p.span.end, p.span.bounded, after)
}

// parsePlace undoes String.
func parsePlace(q store.Query) (p place, err error) {
	if q.After == "" {
		return p, nil
	}
	var sum uint32
	var after string
	fields := strings.ReplaceAll(q.After, ".", " ")
	n, _ := fmt.Sscanf(fields, "1 %08x %d %x %x %t %s", &sum, &p.part, &p.span.start, &p.span.end, &p.span.bounded, &after)
	if p.inside = n == 6; p.inside {
		var b []byte
		if b, err = hex.DecodeString(after); err != nil || len(b) != len(p.after) {
			n = 0
		}
		copy(p.after[:], b)
	}
	if n < 5 || p.part < 0 || p.String(q) != q.After {
		return place{}, fmt.Errorf("%w: redis: Query.After is not the Next of a page of this query", store.ErrInvalid)
	}
	return p, nil
}

// digest distinguishes queries that must not share cursors.
func digest(q store.Query) uint32 {
	h := fnv.New32a()
	h.Write(q.Scope[:])
	for _, state := range q.States {
		h.Write([]byte{byte(state)})
	}
	return h.Sum32()
}
