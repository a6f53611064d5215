package redis_test

import (
	"errors"
	"sync"
	"testing"

	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/redis"
)

// browseAll goes through all pages, and requires that none be too large and no
// record come twice. between is called after each page.
func browseAll(t *testing.T, s *redis.Store, q store.Query, between func()) map[store.ID]store.Record {
	t.Helper()
	all := make(map[store.ID]store.Record)
	for pages := 0; ; pages++ {
		page, err := s.Browse(t.Context(), q)
		if err != nil || pages > 20_000 {
			t.Fatalf("Browse, page %d: %v", pages, err)
		}
		if limit := max(q.Limit, 1); q.Limit != 0 && len(page.Records) > limit {
			t.Errorf("a page with the limit %d has %d records", q.Limit, len(page.Records))
		}
		for _, rec := range page.Records {
			if _, twice := all[rec.ID]; twice {
				t.Errorf("a record came twice: %v", rec.State)
			}
			all[rec.ID] = rec
		}
		if q.After = page.Next; q.After == "" {
			return all
		}
		between()
	}
}

func TestForeignCursorIsInvalid(t *testing.T) {
	each(t, func(t *testing.T, c conn) {
		s := open(t, c, redis.Options{})
		for _, key := range []string{"a", "b", "c"} {
			mustSettle(t, s, mustClaim(t, s, request(key)).Claim(), "x")
		}
		page, err := s.Browse(t.Context(), store.Query{Limit: 1})
		if err != nil || page.Next == "" {
			t.Fatalf("got %+v, %v; want page.Next != \"\", no error", page, err)
		}
		for _, q := range []store.Query{
			{After: page.Next, Scope: store.DigestScope("", "x")}, {After: page.Next, States: []store.State{store.Running}},
			{After: "x"}, {After: page.Next + "0"}, {After: "1.2.3"}, {After: " "}, {After: page.Next[1:]}, {Limit: -1}, {Limit: store.MaxBrowse + 1},
		} {
			if _, err := s.Browse(t.Context(), q); !errors.Is(err, store.ErrInvalid) {
				t.Errorf("%+v: %v; want ErrInvalid", q, err)
			}
		}
	})
}

func TestKeysOfStoresWithOtherPrefixesAreApart(t *testing.T) {
	each(t, func(t *testing.T, c conn) {
		var wg sync.WaitGroup
		for _, prefix := range []string{"*", "?", "[a]", "a:b", "a", `\`, "é"} {
			prefix := fresh() + prefix
			wg.Go(func() {
				s := open(t, c, redis.Options{Prefix: prefix})
				mustClaim(t, s, request("the same"))
				if n := len(browseAll(t, s, store.Query{}, func() {})); n != 1 {
					t.Errorf("prefix %q: %d records; want 1", prefix, n)
				}
			})
		}
		wg.Wait()
	})
}
