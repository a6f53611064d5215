package redis_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/redis"
)

// damages are ways to damage a record.
var damages = map[string]func(t *testing.T, c conn, key string){
	"cut off":         func(t *testing.T, c conn, key string) { do(t, c, "SET", key, "\x01\x01") },
	"a newer version": func(t *testing.T, c conn, key string) { do(t, c, "SETRANGE", key, "0", "\x03") },
	"another type":    func(t *testing.T, c conn, key string) { do(t, c, "DEL", key); do(t, c, "HSET", key, "a", "b") },
}

// eachDamaged runs a test on each kind of servers, with records. The records that it
// damages share a shard with the others.
func eachDamaged(t *testing.T, f func(t *testing.T, c conn, s *redis.Store, request func(i int) store.ClaimRequest, damage func(id store.ID))) {
	eachServers(t, func(t *testing.T, c conn) {
		for name, damage := range damages {
			t.Run(name, func(t *testing.T) {
				prefix := fresh()
				f(t, c, open(t, c, redis.Options{Prefix: prefix}), func(i int) store.ClaimRequest {
					req := request(fmt.Sprint(i))
					req.ID[8], req.ID[9] = 0, 7
					return req
				}, func(id store.ID) { damage(t, c, recordKey(prefix, id)) })
			})
		}
	})
}

// named requires that an error be of this record only.
func named(t *testing.T, err error, id store.ID) {
	t.Helper()
	partial, ok := errors.AsType[*store.PartialError](err)
	if !ok || len(partial.Claims) != 1 || partial.Claims[0].ID != id || !errors.Is(err, store.ErrDamaged) {
		t.Errorf("the error is %v; want a PartialError of the record that is damaged", err)
	}
}

func TestDamagedRecordCostsNoOtherItsLease(t *testing.T) {
	eachDamaged(t, func(t *testing.T, _ conn, s *redis.Store, request func(int) store.ClaimRequest, damage func(store.ID)) {
		var claims []store.Claim
		for i := range 5 {
			claims = append(claims, mustClaim(t, s, request(i)).Claim())
		}
		damage(claims[2].ID)
		lost, err := s.Extend(t.Context(), claims, time.Hour)
		if named(t, err, claims[2].ID); len(lost) != 0 {
			t.Errorf("lost: %v", lost)
		}
		for i, c := range claims {
			if i != 2 && mustRead(t, s, c.ID).LeaseLeft < time.Minute+time.Second {
				t.Errorf("claim %d was not renewed", i)
			}
		}
		_, err = s.Extend(t.Context(), claims[2:3], time.Hour)
		named(t, err, claims[2].ID)
	})
}

func TestDamagedRecordHidesNoWork(t *testing.T) {
	eachDamaged(t, func(t *testing.T, _ conn, s *redis.Store, request func(int) store.ClaimRequest, damage func(store.ID)) {
		want := make(map[store.ID]bool)
		for i := range 5 {
			want[mustAccept(t, s, request(i), 0).ID] = true
		}
		bad := request(2).ID
		delete(want, bad)
		damage(bad)
		recs, err := s.Due(t.Context(), 10, time.Hour)
		named(t, err, bad)
		for _, rec := range recs {
			delete(want, rec.ID)
		}
		if len(recs) != 4 || len(want) != 0 {
			t.Errorf("%d are due; want the 4 that can be read", len(recs))
		}
		if recs, err := s.Due(t.Context(), 10, time.Hour); err != nil || len(recs) != 0 {
			t.Errorf("right afterwards %d are due, %v; want none, also not the damaged one", len(recs), err)
		}
	})
}

func TestSweepSkipsADamagedRecord(t *testing.T) {
	eachDamaged(t, func(t *testing.T, _ conn, s *redis.Store, request func(int) store.ClaimRequest, damage func(store.ID)) {
		var last store.ID
		for i := range 5 {
			req := request(i)
			req.Lease = time.Millisecond
			last = mustClaim(t, s, req).ID
		}
		stettest.Eventually(t, "the leases run out", func() bool { return mustRead(t, s, last).LeaseLeft <= 0 })
		damage(request(2).ID)
		if swept := sweepAll(t, s); swept.MarkedUnknown != 4 {
			t.Errorf("%d became unknown of the 4 that can be read", swept.MarkedUnknown)
		}
	})
}

func TestOperatorSeesADamagedRecordAndExpiresIt(t *testing.T) {
	eachDamaged(t, func(t *testing.T, _ conn, s *redis.Store, request func(int) store.ClaimRequest, damage func(store.ID)) {
		req := request(1)
		least, _ := store.ScopeRange(req.Scope)
		copy(req.ID[:8], least[:8])
		mustAccept(t, s, req, 0)
		mustClaim(t, s, request(3))
		damage(req.ID)
		if all := browseAll(t, s, store.Query{}, func() {}); len(all) != 2 || all[req.ID].Damage == "" {
			t.Fatalf("of all records there are %+v", all)
		}
		all := browseAll(t, s, store.Query{Scope: req.Scope}, func() {})
		rec := all[req.ID]
		if rec.Damage == "" {
			t.Fatalf("of the scope there are %+v", all)
		}
		for _, q := range []store.Query{{States: []store.State{store.Accepted}}, {States: stuck}, {OlderThan: 1}, {NewerThan: time.Hour}, {Scope: store.DigestScope("", "other")}} {
			if _, shown := browseAll(t, s, q, func() {})[req.ID]; shown {
				t.Errorf("%+v shows it", q)
			}
		}
		other := rec.Claim()
		other.Fence++
		if err := s.Expire(t.Context(), other); !errors.Is(err, store.ErrFenced) {
			t.Errorf("Expire of a record that was not shown: %v", err)
		}
		for range 2 {
			if err := s.Expire(t.Context(), rec.Claim()); err != nil {
				t.Fatalf("Expire: %v", err)
			}
		}
		now := mustRead(t, s, req.ID)
		keep := now.ForgetAt.Sub(now.SettledAt)
		if now.State != store.Failed || !now.Gone || now.Fence != rec.Fence || now.Owner != rec.Owner || keep != 30*24*time.Hour {
			t.Errorf("it has become %+v, for %v", now, keep)
		}
		if recs, err := s.Due(t.Context(), 10, time.Hour); err != nil || len(recs) != 0 {
			t.Errorf("it is due: %v, %v", recs, err)
		}
		if all := browseAll(t, s, store.Query{States: append(stuck, store.Accepted)}, func() {}); len(all) != 1 {
			t.Errorf("%d are listed", len(all))
		}
		sweepAll(t, s)
	})
}
