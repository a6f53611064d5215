package redis_test

import (
	"encoding/hex"
	"fmt"
	"maps"
	"math/bits"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/redis"
)

// slotTables is a server of a cluster that has a table of eight places for each
// slot, as Redis has since 7.4. For the slot it takes the shard.
type slotTables struct {
	version string
	tables  map[uint64][]string // the keys at a cursor, in whose order SCAN goes
}

func (s *slotTables) add(prefix string, id store.ID) {
	shard := (uint64(id[8])<<8 | uint64(id[9])) % 1024
	at := uint64(id[31]%8)<<14 | shard
	s.tables[at] = append(s.tables[at], fmt.Sprintf("%s:{%03x}:op:%s", prefix, shard, hex.EncodeToString(id[:])))
}

func (s *slotTables) do(args []string) (any, error) {
	switch args[0] {
	case "INFO":
		return s.version + "\r\nrole:master\r\nmaxmemory_policy:noeviction\r\ncluster_enabled:1\r\naof_enabled:1\r\n", nil
	case "SCAN":
		return s.scan(args[1], args[5]), nil
	}
	n, _ := strconv.Atoi(args[2]) // it is asked for records, and whether they have results
	reply := []any{int64(1)}
	for range n / 2 {
		reply = append(reply, "\x01\x02"+strings.Repeat("\x00", 134), int64(1))
	}
	return reply, nil
}

func (s *slotTables) scan(from, count string) any {
	at, _ := strconv.ParseUint(from, 10, 64)
	most, _ := strconv.Atoi(count)
	order := func(c uint64) uint64 { return c&(1<<14-1)<<3 | bits.Reverse64(c>>14)>>61 }
	cursors := slices.SortedFunc(maps.Keys(s.tables), func(a, b uint64) int { return int(order(a)) - int(order(b)) })
	found := []any{}
	for _, c := range cursors {
		if order(c) < order(at) {
			continue
		}
		if len(found) >= most {
			return []any{strconv.FormatUint(c, 10), found}
		}
		for _, name := range s.tables[c] {
			found = append(found, name)
		}
	}
	return []any{"0", found}
}

func TestBrowseFollowsCursorsThatNameASlot(t *testing.T) {
	for _, version := range []string{"redis_version:7.4.0", "redis_version:8.2.1", "redis_version:7.2.4\r\nvalkey_version:8.1.0"} {
		server := &slotTables{version, make(map[uint64][]string)}
		prefix := fresh()
		s := open(t, member{server.do}, redis.Options{Prefix: prefix, CheckEvery: -1})
		stays := make(map[store.ID]bool)
		for i := range 3000 {
			id := store.Digest("", "test", fmt.Sprint(i))
			stays[id] = true
			server.add(prefix, id)
		}
		n := 3000
		got := browseAll(t, s, store.Query{Limit: 50}, func() {
			for range 5 { // so that the same SCAN ends elsewhere
				server.add(prefix, store.Digest("", "test", fmt.Sprint(n)))
				n++
			}
		})
		for id := range stays {
			if _, ok := got[id]; !ok {
				t.Errorf("%q: a record that was there all the while is missing", version)
				break
			}
		}
	}
}
