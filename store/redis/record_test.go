package redis_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/redis"
)

// do sends a command unchanged, to the key of a record.
func do(t testing.TB, c redis.Client, args ...string) any {
	t.Helper()
	reply, err := c.Do(context.Background(), args[1], args...)
	if err != nil {
		t.Fatalf("%s: %v", args[0], err)
	}
	return reply
}

// recordKey is the name of a record. It is part of the data format: a change of it
// forgets all operations.
func recordKey(prefix string, id store.ID) string {
	return fmt.Sprintf("%s:{%03x}:op:%x", prefix, binary.BigEndian.Uint16(id[8:])%1024, id[:])
}

func TestFenceGrowsAlthoughTheClockGoesBack(t *testing.T) {
	each(t, func(t *testing.T, c conn) {
		prefix := fresh()
		s := open(t, c, redis.Options{Prefix: prefix})
		req := request("k")
		claim := mustClaim(t, s, req).Claim()
		claim.Fence += 1 << 50 // as if it had been granted when the clock was decades ahead
		do(t, c, "SETRANGE", recordKey(prefix, req.ID), "84", string(binary.BigEndian.AppendUint64(nil, uint64(claim.Fence))))
		if err := s.Release(t.Context(), claim, keep); err != nil {
			t.Fatal(err)
		}
		req.Owner = store.NewOwner()
		if rec := mustClaim(t, s, req); rec.Fence != claim.Fence+1 {
			t.Errorf("the fence after %d is %d", claim.Fence, rec.Fence)
		}
	})
}

// skewed is a client of a server whose clock is off by so many microseconds.
type skewed struct {
	redis.Client
	by int64
}

func (c *skewed) Do(ctx context.Context, key string, args ...string) (any, error) {
	switch args[0] {
	case "EVALSHA":
		return nil, redis.ReplyError("NOSCRIPT the source tells what to replace")
	case "EVAL":
		args = slices.Clone(args)
		args[1] = strings.Replace(args[1], "local now = ", fmt.Sprintf("local now = %d + ", c.by), 1)
	}
	return c.Client.Do(ctx, key, args...)
}

func TestFenceGrowsAlthoughTheRecordIsForgottenAndTheClockGoesBack(t *testing.T) {
	each(t, func(t *testing.T, c conn) {
		server := &skewed{Client: c}
		prefix := fresh()
		s := open(t, server, redis.Options{Prefix: prefix})
		var last int64
		for _, by := range []int64{0, -1, -3600e6, -3600e6, -86400e6, 3600e6, 0} {
			server.by = by
			req := request("k")
			rec := mustClaim(t, s, req)
			if rec.Fence <= last {
				t.Errorf("with the clock off by %d s the fence after %d is %d", by/1e6, last, rec.Fence)
			}
			last = rec.Fence
			if err := s.Release(t.Context(), rec.Claim(), store.Retention{}); err != nil {
				t.Fatal(err)
			}
			do(t, c, "DEL", recordKey(prefix, req.ID)) // as the server's own clock does
			accepted := mustAccept(t, s, req, 0)
			taken := mustTake(t, s, req.ID)
			if accepted.Fence <= last || taken.Fence <= accepted.Fence {
				t.Errorf("after the fence %d an accepted record has %d, and a taken one %d", last, accepted.Fence, taken.Fence)
			}
			last = taken.Fence
			mustSettle(t, s, taken.Claim(), "x")
			do(t, c, "DEL", recordKey(prefix, req.ID))
		}
	})
}

func TestDamagedRecordIsAClearErrorAndGrantsNothing(t *testing.T) {
	each(t, func(t *testing.T, c conn) {
		prefix := fresh()
		s := open(t, c, redis.Options{Prefix: prefix})
		for name, damage := range map[string]func(key string){
			"cut off":         func(key string) { do(t, c, "SET", key, "\x01\x01") },
			"empty":           func(key string) { do(t, c, "SET", key, "") },
			"a newer version": func(key string) { do(t, c, "SETRANGE", key, "0", "\x03") },
			"in no state":     func(key string) { do(t, c, "SETRANGE", key, "1", "\x07") },
			"without a fence": func(key string) { do(t, c, "SETRANGE", key, "84", "\x7f") },
			"another type":    func(key string) { do(t, c, "DEL", key); do(t, c, "HSET", key, "a", "b") },
		} {
			req := request(name)
			rec := mustClaim(t, s, req)
			damage(recordKey(prefix, req.ID))
			_, claimed := s.Claim(t.Context(), req)
			_, read := s.Read(t.Context(), req.ID)
			_, accepted := s.Accept(t.Context(), req, []byte("work"), 0)
			_, taken := s.Take(t.Context(), store.TakeRequest{ID: req.ID, Owner: req.Owner, Lease: req.Lease})
			_, looked := s.Look(t.Context(), req.ID)
			_, cancelled := s.Cancel(t.Context(), rec.Claim(), completed("x"), keep)
			_, extended := s.Extend(t.Context(), []store.Claim{rec.Claim()}, keep.Result)
			for what, err := range map[string]error{
				"Claim": claimed, "Read": read, "Extend": extended, "Release": s.Release(t.Context(), rec.Claim(), keep),
				"Accept": accepted, "Take": taken, "Look": looked, "Cancel": cancelled, "Return": s.Return(t.Context(), rec.Claim(), 0),
				"Save": s.Save(t.Context(), rec.Claim(), store.Notes{Version: 1}, false), "Relayed": s.Relayed(t.Context(), rec.Claim(), keep),
				"Settle": s.Settle(t.Context(), rec.Claim(), completed("x"), keep), "Amend": s.Amend(t.Context(), rec.Claim(), store.Notes{Version: 1}),
			} {
				if mustContain(t, err, "damaged, or was written by a newer version"); !errors.Is(err, store.ErrDamaged) {
					t.Errorf("%s of a record that is %s: %v", what, name, err)
				}
			}
		}
		sweepAll(t, s) // continues past them
	})
}

func TestServerThatHasLostItsScriptsGetsThemAgain(t *testing.T) {
	each(t, func(t *testing.T, c conn) {
		s := open(t, c, redis.Options{})
		for range 2 {
			rec := mustClaim(t, s, request(stet.NewKey()))
			do(t, c, "SCRIPT", "FLUSH")
			mustSettle(t, s, rec.Claim(), "x")
			do(t, c, "SCRIPT", "FLUSH")
		}
	})
}

func TestRunningAndUnknownRecordsNeverExpireByThemselves(t *testing.T) {
	each(t, func(t *testing.T, c conn) {
		prefix := fresh()
		s := open(t, c, redis.Options{Prefix: prefix})
		req := request("k")
		ttl := func() int64 { n, _ := do(t, c, "PTTL", recordKey(prefix, req.ID)).(int64); return n }
		rec := mustClaim(t, s, req)
		if n := ttl(); n != -1 {
			t.Errorf("a running record expires in %d ms", n)
		}
		if err := s.Release(t.Context(), rec.Claim(), keep); err != nil {
			t.Fatal(err)
		}
		if n := ttl(); n <= 0 || n > keep.Result.Milliseconds()+1 {
			t.Errorf("a released record expires in %d ms; want %v", n, keep.Result)
		}
		req.Owner, req.Lease = store.NewOwner(), 1
		mustClaim(t, s, req)
		req.Owner = store.NewOwner()
		stettest.Eventually(t, "the record is unknown", func() bool { rec, err := s.Claim(t.Context(), req); return err == nil && rec.State == store.Unknown })
		if n := ttl(); n != -1 {
			t.Errorf("an unknown record expires in %d ms", n)
		}
	})
}

func TestIndexHoldsOnlyRunningAndUnknownRecords(t *testing.T) {
	each(t, func(t *testing.T, c conn) {
		prefix := fresh()
		s := open(t, c, redis.Options{Prefix: prefix})
		indexed := func(what string, id store.ID, want int64) {
			t.Helper()
			for _, kind := range []string{"live", "list"} {
				name := fmt.Sprintf("%s:{%03x}:%s", prefix, binary.BigEndian.Uint16(id[8:])%1024, kind)
				if got := do(t, c, "ZCARD", name); got != want {
					t.Errorf("%s: %v records are in %s; want %d", what, got, name, want)
				}
			}
		}
		settled, released, unknown := request("settled"), request("released"), request("unknown")
		rec := mustClaim(t, s, settled)
		indexed("running", settled.ID, 1)
		mustSettle(t, s, rec.Claim(), "x")
		indexed("settled", settled.ID, 0)
		if err := s.Release(t.Context(), mustClaim(t, s, released).Claim(), keep); err != nil {
			t.Fatal(err)
		}
		indexed("released", released.ID, 0)
		unknown.Lease = 1
		rec = mustClaim(t, s, unknown)
		unknown.Owner = store.NewOwner()
		stettest.Eventually(t, "it is unknown", func() bool {
			rec, err := s.Claim(t.Context(), unknown)
			return err == nil && rec.State == store.Unknown
		})
		indexed("unknown", unknown.ID, 1)
		mustSettle(t, s, rec.Claim(), "late")
		indexed("settled after all", unknown.ID, 0)
	})
}

func TestStaleIndexMarksNoLiveRecordUnknown(t *testing.T) {
	each(t, func(t *testing.T, c conn) {
		prefix := fresh()
		s := open(t, c, redis.Options{Prefix: prefix})
		live, done := request("live"), request("done")
		mustClaim(t, s, live)
		mustSettle(t, s, mustClaim(t, s, done).Claim(), "x")
		for _, id := range []store.ID{live.ID, done.ID, request("never claimed").ID} {
			shard := fmt.Sprintf("%s:{%03x}:", prefix, binary.BigEndian.Uint16(id[8:])%1024)
			do(t, c, "ZADD", shard+"live", "1", string(id[:]))
			do(t, c, "ZADD", shard+"list", "0", string(id[:]))
		}
		if got := sweepAll(t, s); got.MarkedUnknown != 0 {
			t.Errorf("by a stale index %d records became unknown", got.MarkedUnknown)
		}
		for id, want := range map[store.ID]store.State{live.ID: store.Running, done.ID: store.Completed} {
			if rec := mustRead(t, s, id); rec.State != want {
				t.Errorf("a record that was %v is %v", want, rec.State)
			}
		}
		if got := browseAll(t, s, store.Query{States: []store.State{store.Running, store.Unknown}}, func() {}); len(got) != 1 {
			t.Errorf("by a stale index %d records are stuck; want 1", len(got))
		}
	})
}
