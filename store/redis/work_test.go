package redis_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	goredislib "github.com/redis/go-redis/v9"
	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/redis"
	"github.com/stet-go/stet/store/redis/goredis"
)

// waitsFor is what a record waits for.
type waitsFor int

const (
	toRun waitsFor = iota
	toSend
)

var kinds = map[waitsFor]string{toRun: "run", toSend: "relay"}

func mustAccept(t testing.TB, s store.WorkStore, req store.ClaimRequest, after time.Duration) store.Record {
	t.Helper()
	rec, err := s.Accept(context.Background(), req, []byte("work"), after)
	if err != nil || rec.State != store.Accepted || rec.Owner != req.Owner {
		t.Fatalf("Accept: %+v, %v", rec, err)
	}
	return rec
}

// mustSend settles a claim with messages.
func mustSend(t testing.TB, s store.Store, c store.Claim) {
	t.Helper()
	out := completed("x")
	out.Outbox = []byte("messages")
	if err := s.Settle(context.Background(), c, out, keep); err != nil {
		t.Fatalf("Settle with messages: %v", err)
	}
}

func mustDue(t testing.TB, s *redis.Store, what waitsFor, limit int, again time.Duration) (ids []store.ID) {
	t.Helper()
	due := s.DueMessages
	if what == toRun {
		due = func(ctx context.Context, limit int, again time.Duration) ([]store.Record, error) {
			return s.Due(ctx, limit, again)
		}
	}
	recs, err := due(context.Background(), limit, again)
	if err != nil {
		t.Fatalf("Due: %v", err)
	}
	for _, rec := range recs {
		if what == toRun && rec.Work == nil || what == toSend && rec.Outbox == nil {
			t.Errorf("Due returned a record without its work or its messages: %+v", rec)
		}
		ids = append(ids, rec.ID)
	}
	return ids
}

// wait makes a record that waits until it is due.
func wait(t testing.TB, s *redis.Store, what waitsFor) store.ID {
	t.Helper()
	req := request(stet.NewKey())
	if what == toRun {
		mustAccept(t, s, req, 0)
	} else {
		mustSend(t, s, mustClaim(t, s, req).Claim())
	}
	return req.ID
}

func TestAcceptedRecordsAndOutboxesNeverExpireByThemselves(t *testing.T) {
	eachServers(t, func(t *testing.T, c conn) {
		prefix := fresh()
		s := open(t, c, redis.Options{Prefix: prefix})
		req := request("k")
		result := strings.Replace(recordKey(prefix, req.ID), ":op:", ":result:", 1)
		outbox := strings.Replace(result, ":result:", ":outbox:", 1)
		stays := func(what string, names ...string) {
			t.Helper()
			for _, name := range names {
				if n := do(t, c, "PTTL", name); n != int64(-1) {
					t.Errorf("%s: PTTL of %s is %v; want -1, it never expires", what, name, n)
				}
			}
		}
		goes := func(what, name string, after time.Duration) {
			t.Helper()
			if n, _ := do(t, c, "PTTL", name).(int64); n <= 0 || n > after.Milliseconds()+1 {
				t.Errorf("%s: %s expires in %d ms; want %v", what, name, n, after)
			}
		}
		brief := store.Retention{Result: time.Minute, Tombstone: 2 * time.Minute}
		rec := mustClaim(t, s, req)
		if err := s.Save(t.Context(), rec.Claim(), store.Notes{Version: 1, Data: []byte("notes")}, false); err != nil {
			t.Fatal(err)
		}
		stays("with notes", recordKey(prefix, req.ID), result)
		if err := s.Release(t.Context(), rec.Claim(), brief); err != nil {
			t.Fatal(err)
		}
		goes("released", recordKey(prefix, req.ID), brief.Result)
		goes("released", result, brief.Result)
		req.Owner = store.NewOwner()
		rec = mustClaim(t, s, req)
		stays("claimed again", recordKey(prefix, req.ID), result)
		if err := s.Release(t.Context(), rec.Claim(), brief); err != nil {
			t.Fatal(err)
		}
		req.Owner = store.NewOwner()
		mustAccept(t, s, req, 0)
		stays("accepted", recordKey(prefix, req.ID), result)
		rec = mustTake(t, s, req.ID)
		if rec.Notes.Version != 1 || string(rec.Notes.Data) != "notes" || string(rec.Work) != "work" {
			t.Errorf("the notes of earlier runs are %q, the work %q", rec.Notes.Data, rec.Work)
		}
		stays("taken", recordKey(prefix, req.ID), result)
		if err := s.Return(t.Context(), rec.Claim(), 0); err != nil {
			t.Fatal(err)
		}
		stays("returned", recordKey(prefix, req.ID), result)
		rec = mustTake(t, s, req.ID)
		mustSend(t, s, rec.Claim())
		stays("settled with messages", recordKey(prefix, req.ID), outbox)
		goes("settled with messages", result, keep.Result)
		if err := s.Relayed(t.Context(), rec.Claim(), brief); err != nil {
			t.Fatal(err)
		}
		goes("relayed", recordKey(prefix, req.ID), brief.Tombstone)
		goes("relayed", result, brief.Tombstone) // which nothing of a later run finds there
		if n := do(t, c, "EXISTS", outbox); n != int64(0) {
			t.Error("the outbox is there after the messages were relayed")
		}
	})
}

// Programs that know nothing of work would lose it, or what a run has stored.
func TestRecordsWithWorkOrNotesAreOfAVersionOfTheirOwn(t *testing.T) {
	each(t, func(t *testing.T, c conn) {
		prefix := fresh()
		s := open(t, c, redis.Options{Prefix: prefix})
		of := func(what string, id store.ID, want string) {
			t.Helper()
			if got := do(t, c, "GETRANGE", recordKey(prefix, id), "0", "0"); got != want {
				t.Errorf("a record that is %s is of version %q; want %q", what, got, want)
			}
		}
		plain, req := request("plain"), request("with work")
		rec := mustClaim(t, s, plain)
		of("claimed", plain.ID, "\x01")
		if err := s.Save(t.Context(), rec.Claim(), store.Notes{Version: 1}, false); err != nil {
			t.Fatal(err)
		}
		of("claimed, with notes", plain.ID, "\x02")
		if err := s.Release(t.Context(), rec.Claim(), keep); err != nil {
			t.Fatal(err)
		}
		of("released, with notes", plain.ID, "\x02")
		plain.Owner = store.NewOwner()
		rec = mustClaim(t, s, plain)
		of("claimed again, with notes", plain.ID, "\x02")
		mustSettle(t, s, rec.Claim(), "x")
		of("settled", plain.ID, "\x01")

		mustAccept(t, s, req, 0)
		of("accepted", req.ID, "\x02")
		rec = mustTake(t, s, req.ID)
		of("taken", req.ID, "\x02")
		if err := s.Return(t.Context(), rec.Claim(), 0); err != nil {
			t.Fatal(err)
		}
		of("returned", req.ID, "\x02")
		rec, err := s.Take(t.Context(), store.TakeRequest{ID: req.ID, Owner: store.NewOwner(), Lease: 1})
		if err != nil {
			t.Fatal(err)
		}
		stettest.Eventually(t, "it is unknown", func() bool {
			rec, err := s.Take(t.Context(), store.TakeRequest{ID: req.ID, Owner: store.NewOwner(), Lease: 1})
			return err == nil && rec.State == store.Unknown
		})
		of("unknown", req.ID, "\x02")
		mustSend(t, s, rec.Claim())
		of("settled, with messages", req.ID, "\x02")
		if err := s.Relayed(t.Context(), rec.Claim(), keep); err != nil {
			t.Fatal(err)
		}
		of("relayed", req.ID, "\x01")
	})
}

func TestLostReplyOfEveryCallAboutWorkIsHarmless(t *testing.T) {
	t.Parallel() // its clients wait to dial again
	rounds := 300
	if testing.Short() {
		rounds = 30
	}
	eachLossy(t, func(t *testing.T, p *lossy, s *redis.Store) {
		ctx := t.Context()
		for i := range rounds {
			req := request(stet.NewKey())
			var rec store.Record
			if i == 0 { // the scripts are known to the server afterwards
				workOnce(t, s, request("warm up"))
			}
			again(t, p, "Accept", func() (err error) { rec, err = s.Accept(ctx, req, []byte("work"), 0); return err })
			if rec.State != store.Accepted || rec.Owner != req.Owner || rec.Attempt != 0 {
				t.Fatalf("an acceptance conflicts with itself: %+v", rec)
			}
			if i%4 == 0 {
				out := store.Settlement{State: store.Failed, Result: store.Result{Body: []byte("cancelled")}}
				again(t, p, "Cancel", func() error { _, err := s.Cancel(ctx, rec.Claim(), out, keep); return err })
				continue
			}
			for attempt := 1; attempt <= 2; attempt++ {
				owner := store.NewOwner()
				again(t, p, "Take", func() (err error) {
					rec, err = s.Take(ctx, store.TakeRequest{ID: req.ID, Owner: owner, Lease: time.Minute})
					return err
				})
				if rec.State != store.Running || rec.Owner != owner || rec.Attempt != attempt || string(rec.Work) != "work" {
					t.Fatalf("a take conflicts with itself: %+v", rec)
				}
				notes := store.Notes{Version: uint64(attempt), Data: []byte("notes")}
				again(t, p, "Save", func() error { return s.Save(ctx, rec.Claim(), notes, false) })
				if attempt == 1 {
					again(t, p, "Return", func() error { return s.Return(ctx, rec.Claim(), 0) })
				}
			}
			out := completed("x")
			out.Outbox = []byte("messages")
			again(t, p, "Settle", func() error { return s.Settle(ctx, rec.Claim(), out, keep) })
			again(t, p, "Relayed", func() error { return s.Relayed(ctx, rec.Claim(), keep) })
			if rec, err := s.Look(ctx, req.ID); err != nil || rec.State != store.Completed || rec.Work != nil || rec.Notes.Version != 0 || string(rec.Result.Body) != "x" {
				t.Fatalf("in the end the record is %+v, %v", rec, err)
			}
		}
		if left := browseAll(t, s, store.Query{States: []store.State{store.Accepted, store.Running, store.Unknown}}, func() {}); len(left) != 0 {
			t.Errorf("%d records have not ended", len(left))
		}
	})
}

// workOnce leads an operation through every script.
func workOnce(t *testing.T, s *redis.Store, req store.ClaimRequest) {
	t.Helper()
	ctx := t.Context()
	if _, err := s.Cancel(ctx, mustAccept(t, s, req, 0).Claim(), store.Settlement{State: store.Failed}, keep); err != nil {
		t.Fatal(err)
	}
	req = request(stet.NewKey())
	mustAccept(t, s, req, 0)
	mustDue(t, s, toRun, 1, time.Hour)
	rec := mustTake(t, s, req.ID)
	mustSend(t, s, rec.Claim())
	for what, err := range map[string]error{"Save": s.Save(ctx, rec.Claim(), store.Notes{Version: 1}, false), "Return": s.Return(ctx, rec.Claim(), 0)} {
		if !errors.Is(err, store.ErrFenced) {
			t.Fatalf("%s after the end: %v", what, err)
		}
	}
	if err := s.Relayed(ctx, rec.Claim(), keep); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Look(ctx, req.ID); err != nil {
		t.Fatal(err)
	}
}

func TestAcceptedRecordsAreBrowsedWithoutAScanOfTheKeys(t *testing.T) {
	eachServers(t, func(t *testing.T, c conn) {
		prefix := fresh()
		s := open(t, c, redis.Options{Prefix: prefix})
		want := make(map[store.ID]bool)
		for range 30 {
			want[wait(t, s, toRun)] = true
		}
		taken := wait(t, s, toRun)
		mustTake(t, s, taken)
		// By a stale index they are not taken out of the list of what can be browsed.
		for id := range want {
			do(t, c, "ZADD", fmt.Sprintf("%s:{%03x}:live", prefix, binary.BigEndian.Uint16(id[8:])%1024), "1", string(id[:]))
		}
		sweepAll(t, s)
		scans := new(atomic.Int64)
		browser := open(t, meddleScans(c, scans), redis.Options{Prefix: prefix})
		got := browseAll(t, browser, store.Query{States: []store.State{store.Accepted}, Limit: 7}, func() {})
		if scans.Load() != 0 {
			t.Error("all keys were read, instead of the list")
		}
		if !maps.EqualFunc(got, want, func(rec store.Record, _ bool) bool { return rec.State == store.Accepted }) {
			t.Errorf("%d accepted records came; want %d", len(got), len(want))
		}
	})
}

// scanning counts what SCAN is asked.
type scanning struct {
	conn
	n *atomic.Int64
}

func (s *scanning) Do(ctx context.Context, key string, args ...string) (any, error) {
	if args[0] == "SCAN" {
		s.n.Add(1)
	}
	return s.conn.Do(ctx, key, args...)
}

type scanningCluster struct{ *scanning }

func (s scanningCluster) Servers(ctx context.Context) (map[string]redis.Client, error) {
	s.n.Add(1) // only to scan, or to inspect, which happens once
	return s.conn.(redis.Cluster).Servers(ctx)
}

func meddleScans(c conn, n *atomic.Int64) redis.Client {
	if _, ok := c.(redis.Cluster); ok {
		n.Add(-1)
		return scanningCluster{&scanning{c, n}}
	}
	return &scanning{c, n}
}

func TestAcceptedWorkIsOnReplicasBeforeItsResponse(t *testing.T) {
	eachReplicated(t, func(t *testing.T, p pair, s, hasty *redis.Store) {
		ctx := t.Context()
		first, fresh := request("first"), request("fresh")
		mustAccept(t, s, first, 0)
		running := mustClaim(t, s, request("running"))
		p.pause(t)
		_, err := hasty.Accept(ctx, fresh, []byte("work"), 0)
		lacking(t, "Accept", err)
		fresh.Owner = store.NewOwner()
		_, err = hasty.Accept(ctx, fresh, []byte("work"), 0)
		lacking(t, "Accept of what another has accepted", err)
		owner := store.NewOwner()
		for range 2 {
			_, err = hasty.Take(ctx, store.TakeRequest{ID: first.ID, Owner: owner, Lease: time.Minute})
			lacking(t, "Take", err)
			lacking(t, "Save", hasty.Save(ctx, running.Claim(), store.Notes{Version: 1}, false))
		}
		if v, err := p.master.CLI(ctx, "--raw", "GETRANGE", recordKey("p", first.ID), "0", "0"); err != nil || !strings.HasPrefix(v, "\x02") {
			t.Errorf("writing it again has made it a record of version %q, %v", v, err)
		}
		p.resume(t)
		stettest.Eventually(t, "the same take is granted", func() bool {
			rec, err := s.Take(ctx, store.TakeRequest{ID: first.ID, Owner: owner, Lease: time.Minute})
			return err == nil && rec.State == store.Running && rec.Owner == owner && rec.Attempt == 1
		})
	})
}

func TestCommandsThatTheErrorNamesSuffice(t *testing.T) {
	server := rig.NewRedis(t, rig.RedisOptions{})
	login := func(rules ...string) redis.Client {
		name := stet.NewKey()
		if _, err := server.CLI(t.Context(), append([]string{"ACL", "SETUSER", name, "on", ">secret", "~*", "&*", "+@connection"}, rules...)...); err != nil {
			t.Fatal(err)
		}
		c, err := goredis.Open(&goredislib.UniversalOptions{Addrs: []string{server.Addr()}, Username: name, Password: "secret"})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	_, err := redis.New(t.Context(), login(), redis.Options{})
	mustContain(t, err, "the user needs the commands ")
	_, names, _ := strings.Cut(err.Error(), "the user needs the commands ")
	names, _, _ = strings.Cut(names, ", and for Options.Replicas")
	var rules []string
	for _, name := range strings.FieldsFunc(strings.ReplaceAll(names, " and ", " "), func(r rune) bool { return r == ',' || r == ' ' }) {
		rules = append(rules, "+"+strings.ToLower(name))
	}
	s := open(t, login(rules...), redis.Options{})
	workOnce(t, s, request("k"))
	rec := mustClaim(t, s, request("claimed"))
	for range 2 { // with notes of an earlier run
		if err := errors.Join(s.Save(t.Context(), rec.Claim(), store.Notes{Version: 1}, false), s.Release(t.Context(), rec.Claim(), keep)); err != nil {
			t.Fatal(err)
		}
		rec = mustClaim(t, s, request("claimed"))
	}
	mustSettle(t, s, rec.Claim(), "x")
	if err := s.Expire(t.Context(), rec.Claim()); err != nil {
		t.Error(err)
	}
	sweepAll(t, s)
	browseAll(t, s, store.Query{}, func() {})
	browseAll(t, s, store.Query{States: stuck}, func() {})
}
