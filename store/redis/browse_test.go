package redis_test

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stet-go/stet"
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

// populate makes n records, a fifth of each kind, in two scopes.
func populate(t *testing.T, s *redis.Store, n int) map[store.ID]store.State {
	t.Helper()
	made := make(map[store.ID]store.State)
	for i := range n {
		req := request("")
		scope := fmt.Sprint("scope ", i%2)
		req.ID, req.Scope = store.Digest("", scope, fmt.Sprint(i)), store.DigestScope("", scope)
		c := mustClaim(t, s, req).Claim()
		var err error
		made[req.ID] = store.Running
		switch i / 2 % 4 {
		case 1:
			made[req.ID] = store.Completed
			mustSettle(t, s, c, "result")
		case 2:
			made[req.ID] = store.Failed
			err = s.Settle(t.Context(), c, store.Settlement{State: store.Failed, Gone: true}, keep)
		case 3:
			made[req.ID] = store.Retryable
			err = s.Release(t.Context(), c, keep)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return made
}

func browseServers(t *testing.T, f func(t *testing.T, s *redis.Store)) {
	eachServers(t, func(t *testing.T, c conn) { f(t, open(t, c, redis.Options{})) })
}

func TestBrowseFindsEveryRecordOnce(t *testing.T) {
	browseServers(t, func(t *testing.T, s *redis.Store) {
		made := populate(t, s, 160)
		scope := store.DigestScope("", "scope 1")
		for _, limit := range []int{0, 1, 7, 1000} {
			for _, q := range []store.Query{
				{}, {Scope: scope}, {States: []store.State{store.Running}}, {States: []store.State{store.Running, store.Unknown}, Scope: scope},
				{States: []store.State{store.Completed, store.Failed}}, {OlderThan: time.Hour}, {NewerThan: time.Hour},
			} {
				q.Limit = limit
				var want int
				for _, state := range made {
					if (len(q.States) == 0 || slices.Contains(q.States, state)) && q.OlderThan == 0 {
						want++
					}
				}
				if q.Scope != (store.ID{}) {
					want /= 2
				}
				got := browseAll(t, s, q, func() {})
				if len(got) != want {
					t.Errorf("%+v: %d records; want %d", q, len(got), want)
				}
				for id, rec := range got {
					if rec.State != made[id] || !rec.Result.IsZero() || rec.Gone != (rec.State == store.Failed) || rec.Fence == 0 {
						t.Errorf("a record that is %v comes as %+v", made[id], rec)
					}
				}
			}
		}
	})
}

func TestBrowseFindsWhatStaysWhileOthersComeAndGo(t *testing.T) {
	browseServers(t, func(t *testing.T, s *redis.Store) {
		made := populate(t, s, 80)
		for _, q := range []store.Query{{Limit: 3}, {Limit: 3, States: []store.State{store.Running, store.Unknown}}} {
			n := 0
			got := browseAll(t, s, q, func() {
				if n++; n > 100 {
					return
				}
				for i := range 3 { // some that stay, some that go at once
					brief := store.Retention{Result: time.Duration(i+1) * time.Millisecond, Tombstone: time.Duration(i+1) * time.Millisecond}
					if err := s.Release(t.Context(), mustClaim(t, s, request(stet.NewKey())).Claim(), brief); err != nil {
						t.Fatal(err)
					}
				}
			})
			for id, state := range made {
				if _, ok := got[id]; !ok && (len(q.States) == 0 || state == store.Running) {
					t.Errorf("%+v: a record that was there all the while, %v, is missing", q, state)
				}
			}
		}
	})
}

func TestForeignCursorIsInvalid(t *testing.T) {
	each(t, func(t *testing.T, c conn) {
		s := open(t, c, redis.Options{})
		populate(t, s, 10)
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

func TestExpireLeavesATombstone(t *testing.T) {
	each(t, func(t *testing.T, c conn) {
		s := open(t, c, redis.Options{})
		req := request("k")
		rec := mustClaim(t, s, req)
		if err := s.Expire(t.Context(), rec.Claim()); !errors.Is(err, store.ErrFenced) {
			t.Errorf("Expire of a running record: %v; want ErrFenced", err)
		}
		mustSettle(t, s, rec.Claim(), "x")
		was := mustRead(t, s, req.ID)
		stale := rec.Claim()
		stale.Fence--
		if err := s.Expire(t.Context(), stale); !errors.Is(err, store.ErrFenced) {
			t.Errorf("Expire with another fence: %v; want ErrFenced", err)
		}
		for range 2 {
			if err := s.Expire(t.Context(), rec.Claim()); err != nil {
				t.Fatalf("Expire: %v", err)
			}
			now := mustRead(t, s, req.ID)
			if now.State != store.Completed || !now.Gone || !now.Result.IsZero() || !now.ForgetAt.Equal(was.ForgetAt) || !now.ExpiresAt.Before(was.ExpiresAt) {
				t.Errorf("after Expire the record is %+v", now)
			}
		}
		req.Owner = store.NewOwner()
		if got, err := s.Claim(t.Context(), req); err != nil || got.State != store.Completed || !got.Gone {
			t.Errorf("a claim after Expire: %+v, %v", got, err)
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
