package redis_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"testing"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store/redis"
)

// do sends a command as it is, to the key of a record.
func do(t testing.TB, c redis.Client, args ...string) any {
	t.Helper()
	reply, err := c.Do(context.Background(), args[1], args...)
	if err != nil {
		t.Fatalf("%s: %v", args[0], err)
	}
	return reply
}

// recordKey is the name of a record. It is part of what is stored: a change of it
// forgets all operations.
func recordKey(prefix string, id stet.ID) string {
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
		req.Owner = stet.NewOwner()
		if rec := mustClaim(t, s, req); rec.Fence != claim.Fence+1 {
			t.Errorf("the fence after %d is %d", claim.Fence, rec.Fence)
		}
	})
}

func TestDamagedRecordIsAClearErrorAndGrantsNothing(t *testing.T) {
	each(t, func(t *testing.T, c conn) {
		prefix := fresh()
		s := open(t, c, redis.Options{Prefix: prefix})
		for name, spoil := range map[string]func(key string){
			"cut off":         func(key string) { do(t, c, "SET", key, "\x01\x01") },
			"empty":           func(key string) { do(t, c, "SET", key, "") },
			"a newer version": func(key string) { do(t, c, "SETRANGE", key, "0", "\x03") },
		} {
			req := request(name)
			rec := mustClaim(t, s, req)
			spoil(recordKey(prefix, req.ID))
			_, claimed := s.Claim(t.Context(), req)
			_, read := s.Read(t.Context(), req.ID)
			_, accepted := s.Accept(t.Context(), req, []byte("work"), 0)
			_, taken := s.Take(t.Context(), req.ID, req.Owner, req.Lease)
			_, looked := s.Look(t.Context(), req.ID)
			_, cancelled := s.Cancel(t.Context(), rec.Claim(), completed("x"), keep)
			_, extended := s.Extend(t.Context(), []stet.Claim{rec.Claim()}, keep.Result)
			for what, err := range map[string]error{
				"Claim": claimed, "Read": read, "Extend": extended, "Release": s.Release(t.Context(), rec.Claim(), keep),
				"Accept": accepted, "Take": taken, "Look": looked, "Cancel": cancelled, "Return": s.Return(t.Context(), rec.Claim(), 0),
				"Save": s.Save(t.Context(), rec.Claim(), []byte("00000001")), "Relayed": s.Relayed(t.Context(), rec.Claim(), keep),
				"Settle": s.Settle(t.Context(), rec.Claim(), completed("x"), keep), "Expire": s.Expire(t.Context(), rec.Claim()),
			} {
				if mustContain(t, err, "damaged, or was written by a newer version"); errors.Is(err, stet.ErrFenced) {
					t.Errorf("%s of a record that is %s: %v", what, name, err)
				}
			}
		}
		if got := browseAll(t, s, stet.Query{}, func() {}); len(got) != 0 {
			t.Errorf("Browse shows %d records that cannot be read", len(got))
		}
		sweepAll(t, s) // goes on past them
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
		req.Owner, req.Lease = stet.NewOwner(), 1
		mustClaim(t, s, req)
		req.Owner = stet.NewOwner()
		waitFor(t, "the record is parked", func() bool { rec, err := s.Claim(t.Context(), req); return err == nil && rec.State == stet.Unknown })
		if n := ttl(); n != -1 {
			t.Errorf("an unknown record expires in %d ms", n)
		}
	})
}

func TestIndexHoldsOnlyWhatRunsOrIsUnknown(t *testing.T) {
	each(t, func(t *testing.T, c conn) {
		prefix := fresh()
		s := open(t, c, redis.Options{Prefix: prefix})
		indexed := func(what string, id stet.ID, want int64) {
			t.Helper()
			for _, kind := range []string{"live", "list"} {
				name := fmt.Sprintf("%s:{%03x}:%s", prefix, binary.BigEndian.Uint16(id[8:])%1024, kind)
				if got := do(t, c, "ZCARD", name); got != want {
					t.Errorf("%s: %v records are in %s; want %d", what, got, name, want)
				}
			}
		}
		settled, released, parked := request("settled"), request("released"), request("parked")
		rec := mustClaim(t, s, settled)
		indexed("running", settled.ID, 1)
		mustSettle(t, s, rec.Claim(), "x")
		indexed("settled", settled.ID, 0)
		if err := s.Release(t.Context(), mustClaim(t, s, released).Claim(), keep); err != nil {
			t.Fatal(err)
		}
		indexed("released", released.ID, 0)
		parked.Lease = 1
		rec = mustClaim(t, s, parked)
		parked.Owner = stet.NewOwner()
		waitFor(t, "it is parked", func() bool { rec, err := s.Claim(t.Context(), parked); return err == nil && rec.State == stet.Unknown })
		indexed("unknown", parked.ID, 1)
		mustSettle(t, s, rec.Claim(), "late")
		indexed("settled after all", parked.ID, 0)
	})
}

func TestStaleIndexParksNoLiveRecord(t *testing.T) {
	each(t, func(t *testing.T, c conn) {
		prefix := fresh()
		s := open(t, c, redis.Options{Prefix: prefix})
		live, done := request("live"), request("done")
		mustClaim(t, s, live)
		mustSettle(t, s, mustClaim(t, s, done).Claim(), "x")
		for _, id := range []stet.ID{live.ID, done.ID, request("never claimed").ID} {
			shard := fmt.Sprintf("%s:{%03x}:", prefix, binary.BigEndian.Uint16(id[8:])%1024)
			do(t, c, "ZADD", shard+"live", "1", string(id[:]))
			do(t, c, "ZADD", shard+"list", "0", string(id[:]))
		}
		if got := sweepAll(t, s); got.Parked != 0 {
			t.Errorf("by a stale index %d records were parked", got.Parked)
		}
		for id, want := range map[stet.ID]stet.State{live.ID: stet.Running, done.ID: stet.Completed} {
			if rec := mustRead(t, s, id); rec.State != want {
				t.Errorf("a record that was %v is %v", want, rec.State)
			}
		}
		if got := browseAll(t, s, stet.Query{States: []stet.State{stet.Running, stet.Unknown}}, func() {}); len(got) != 1 {
			t.Errorf("by a stale index %d records are stuck; want 1", len(got))
		}
	})
}
