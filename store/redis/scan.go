package redis

import (
	"context"
	"encoding/hex"
	"math/bits"
	"strconv"
	"strings"

	"github.com/stet-go/stet/store"
)

// span is a part of a SCAN of one server: from a cursor up to another, if it is
// bounded. 0 is both the beginning and the end.
type span struct {
	start, end uint64
	bounded    bool
}

// slotBits is how many bits the number of a slot has.
const slotBits = 14

// scannable is a server whose keys are scanned.
type scannable struct {
	Client
	slotted bool // it has a table for each slot
}

// newScannable takes the INFO of the server. In a cluster, Redis has a table for
// each slot since 7.4, and Valkey, which calls itself Redis 7.2, since 8.
func newScannable(c Client, info map[string]string) scannable {
	atLeast := func(version string, major, minor int) bool {
		fields := append(strings.Split(version, "."), "")
		x, _ := strconv.Atoi(fields[0])
		y, _ := strconv.Atoi(fields[1])
		return x > major || x == major && y >= minor
	}
	return scannable{c, info["cluster_enabled"] == "1" &&
		(atLeast(info["redis_version"], 7, 4) || atLeast(info["valkey_version"], 8, 0))}
}

// before reports whether a SCAN comes to the cursor a before b. Cursors are places
// in a table, in the order of their bits reversed. With a table for each slot they
// are that in the upper bits, and the slot in the lower; the slots come in order.
func (c scannable) before(a, b uint64) bool {
	if a == 0 || b == 0 {
		return a != 0
	}
	if c.slotted {
		const mask = 1<<slotBits - 1
		if a&mask != b&mask {
			return a&mask < b&mask
		}
		a, b = a>>slotBits, b>>slotBits
	}
	return bits.Reverse64(a) < bits.Reverse64(b)
}

// pattern matches the names of records; of one scope only, if it is not zero.
func (s *Store) pattern(scope store.ID) string {
	var b strings.Builder
	for _, c := range []byte(s.o.Prefix) {
		if strings.IndexByte(`*?[]\^-`, c) >= 0 {
			b.WriteByte('\\')
		}
		b.WriteByte(c)
	}
	b.WriteString(":{???}:op:")
	if scope != (store.ID{}) {
		least, greatest := store.ScopeRange(scope)
		for i := 0; i < len(least) && least[i] == greatest[i]; i++ {
			b.WriteString(hex.EncodeToString(least[i : i+1]))
		}
	}
	b.WriteByte('*')
	return b.String()
}

// scan returns the identities in a span, and where it ends. An unbounded span ends after about
// count keys. Keys stay in their span unless the server's table shrinks, so a page may end
// within a span and the next may continue there.
func (s *Store) scan(ctx context.Context, c scannable, pattern string, count int, sp span) (ids []store.ID, end uint64, err error) {
	for at := sp.start; ; {
		found, next, err := s.scanOnce(ctx, c, pattern, count, at)
		switch {
		case err != nil:
			return nil, 0, err
		case !sp.bounded || next == sp.end:
			return append(ids, found...), next, nil
		case c.before(next, sp.end):
			ids, at = append(ids, found...), next
		case count > 1:
			count = 1 // keys were deleted: small steps up to the end
		default:
			// One step takes one place that is not empty, which is its last:
			// that one is beyond the end.
			return ids, sp.end, nil
		}
	}
}

func (s *Store) scanOnce(ctx context.Context, c Client, pattern string, count int, at uint64) (ids []store.ID, end uint64, err error) {
	reply, err := c.Do(ctx, "", "SCAN", strconv.FormatUint(at, 10), "MATCH", pattern, "COUNT", strconv.Itoa(count))
	if err != nil {
		return nil, 0, explain("browse", err)
	}
	p := partsOf(reply)
	cursor, names := next[string](p), partsOf(next[[]any](p))
	if end, err = strconv.ParseUint(cursor, 10, 64); p.err != nil || err != nil {
		return nil, 0, errReply(reply)
	}
	for names.more() {
		name := next[string](names)
		_, digits, _ := strings.Cut(name, "}:op:")
		if id, err := store.ParseID(digits); err == nil && s.keys(id).record == name {
			ids = append(ids, id)
		}
	}
	return ids, end, names.err
}
