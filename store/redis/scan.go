package redis

import (
	"context"
	"encoding/hex"
	"math/bits"
	"strconv"
	"strings"

	"github.com/stet-go/stet"
)

// span is a part of a SCAN of one server: from a cursor up to another, if it is
// bounded. Cursors are places in the server's table, in the order of their bits
// reversed; 0 is both the beginning and the end.
type span struct {
	start, end uint64
	bounded    bool
}

// before reports whether a SCAN comes to the cursor a before b.
func before(a, b uint64) bool {
	if a == 0 || b == 0 {
		return a != 0
	}
	return bits.Reverse64(a) < bits.Reverse64(b)
}

// pattern matches the names of records; of one scope only, if it is not zero.
func (s *Store) pattern(scope stet.ID) string {
	var b strings.Builder
	for _, c := range []byte(s.o.Prefix) {
		if strings.IndexByte(`*?[]\^-`, c) >= 0 {
			b.WriteByte('\\')
		}
		b.WriteByte(c)
	}
	b.WriteString(":{???}:op:")
	if scope != (stet.ID{}) {
		least, greatest := stet.ScopeRange(scope)
		for i := 0; i < len(least) && least[i] == greatest[i]; i++ {
			b.WriteString(hex.EncodeToString(least[i : i+1]))
		}
	}
	b.WriteByte('*')
	return b.String()
}

// scan returns the identities in a span, and where it ends. An unbounded span
// ends after about count keys. What is in a span stays in it, as long as the
// server's table does not shrink, so a page may end in the middle of one and the
// next go on there.
func (s *Store) scan(ctx context.Context, c Client, pattern string, count int, sp span) (ids []stet.ID, end uint64, err error) {
	for at := sp.start; ; {
		found, next, err := s.scanOnce(ctx, c, pattern, count, at)
		switch {
		case err != nil:
			return nil, 0, err
		case !sp.bounded || next == sp.end:
			return append(ids, found...), next, nil
		case before(next, sp.end):
			ids, at = append(ids, found...), next
		case count > 1:
			count = 1 // keys have gone: in small steps up to the end
		default:
			// One step takes one place that is not empty, which is its last:
			// that one is beyond the end.
			return ids, sp.end, nil
		}
	}
}

func (s *Store) scanOnce(ctx context.Context, c Client, pattern string, count int, at uint64) (ids []stet.ID, next uint64, err error) {
	reply, err := c.Do(ctx, "", "SCAN", strconv.FormatUint(at, 10), "MATCH", pattern, "COUNT", strconv.Itoa(count))
	if err != nil {
		return nil, 0, explain("browse", err)
	}
	pair, ok := reply.([]any)
	if !ok || len(pair) != 2 {
		return nil, 0, errReply(reply)
	}
	cursor, _ := pair[0].(string)
	if next, err = strconv.ParseUint(cursor, 10, 64); err != nil {
		return nil, 0, errReply(pair[0])
	}
	names, ok := pair[1].([]any)
	if !ok {
		return nil, 0, errReply(pair[1])
	}
	for _, n := range names {
		name, _ := n.(string)
		var id stet.ID
		_, digits, _ := strings.Cut(name, "}:op:")
		if b, err := hex.DecodeString(digits); err == nil && copy(id[:], b) == len(id) && s.keys(id).record == name {
			ids = append(ids, id)
		}
	}
	return ids, next, nil
}
