package zookeeper

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/store"
)

// losses are the multis of a client that its network loses.
type losses struct {
	requests, replies atomic.Int32
	before            func() // called before the connection of a lost reply ends; nil: not
}

const (
	opMulti  = 14
	opHeader = 12 // bytes of length, xid and opcode
)

// faulty is a connection that loses some of its requests or replies, and itself with them.
type faulty struct {
	net.Conn
	l    *losses
	lost atomic.Bool
}

func isMulti(b []byte) bool {
	return len(b) >= opHeader && binary.BigEndian.Uint32(b[8:]) == opMulti
}

func (f *faulty) Write(b []byte) (int, error) {
	if isMulti(b) && f.l.requests.Add(-1) >= 0 {
		_ = f.Close()
		return len(b), nil
	}
	if isMulti(b) && f.l.replies.Add(-1) >= 0 {
		f.lost.Store(true)
	}
	return f.Conn.Write(b)
}

func (f *faulty) Read(b []byte) (int, error) {
	n, err := f.Conn.Read(b)
	if f.lost.Load() && err == nil {
		if f.l.before != nil {
			f.l.before()
		}
		_ = f.Close()
		return 0, net.ErrClosed
	}
	return n, err
}

// faultyStore opens a store whose network loses multis.
func faultyStore(t *testing.T) (*Store, *losses) {
	t.Helper()
	l := &losses{}
	dial := func(network, address string, timeout time.Duration) (net.Conn, error) {
		c, err := net.DialTimeout(network, address, timeout)
		if err != nil {
			return nil, err
		}
		return &faulty{Conn: c, l: l}, nil
	}
	s, err := Open(t.Context(), servers(t), Options{Path: "/" + rig.Named(t, "-"), Dial: dial})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	warm := request("warm") // the folders exist
	mustSettle(t, s, mustClaim(t, s, warm).Claim(), "x")
	return s, l
}

func TestLostRepliesAndRequestsChangeNoAnswer(t *testing.T) {
	t.Parallel()
	s, l := faultyStore(t)
	for name, lose := range map[string]func(){
		"reply":          func() { l.replies.Store(1) },
		"request":        func() { l.requests.Store(1) },
		"two replies":    func() { l.replies.Store(2) },
		"request, reply": func() { l.requests.Store(1); l.replies.Store(1) },
	} {
		req := request("lost " + name)
		lose()
		rec := mustClaim(t, s, req)
		if rec.Attempt != 1 {
			t.Errorf("%s of a claim lost: it is attempt %d; want 1", name, rec.Attempt)
		}
		lose()
		if lost, err := s.Extend(t.Context(), []store.Claim{rec.Claim()}, time.Hour); err != nil || len(lost) > 0 {
			t.Errorf("%s of a heartbeat lost: %d lost claims, %v", name, len(lost), err)
		}
		lose()
		mustSettle(t, s, rec.Claim(), "result")
		if now := mustRead(t, s, req.ID); now.State != store.Completed || now.Fence != rec.Fence || string(now.Result.Body) != "result" {
			t.Errorf("%s of an outcome lost: %v with fence %d; want completed with %d", name, now.State, now.Fence, rec.Fence)
		}
		req = request("released " + name)
		rec = mustClaim(t, s, req)
		lose()
		if err := s.Release(t.Context(), rec.Claim(), keep); err != nil {
			t.Errorf("%s of a release lost: %v", name, err)
		}
		lose()
		req.Owner = store.NewOwner()
		if again := mustClaim(t, s, req); again.Attempt != 2 || again.Fence <= rec.Fence {
			t.Errorf("%s of a second claim lost: attempt %d, fence %d after %d", name, again.Attempt, again.Fence, rec.Fence)
		}
		l.replies.Store(0)
	}
}

// Such a call had its effect, and another caller has changed the record. It must say neither that
// nothing was written nor that the claim is granted.
func TestLostReplyIsUnknownWhenTheRecordHasChanged(t *testing.T) {
	t.Parallel()
	s, l := faultyStore(t)
	other := openStore(t, servers(t), s.root)
	req := request("released")
	run := mustClaim(t, s, req)
	l.before = func() {
		next := req
		next.Owner = store.NewOwner()
		mustClaim(t, other, next)
	}
	l.replies.Store(1)
	unknown := func(what string, err error) {
		t.Helper()
		if err == nil || errors.Is(err, store.ErrFenced) || errors.Is(err, store.ErrNotDone) {
			t.Errorf("%s: %v; want an error that wraps neither ErrFenced nor ErrNotDone", what, err)
		}
	}
	unknown("a release, after which another claimed", s.Release(t.Context(), run.Claim(), keep))
	if err := s.Release(t.Context(), run.Claim(), keep); !errors.Is(err, store.ErrFenced) {
		t.Errorf("the same release again: %v; want it fenced", err)
	}

	req = request("claimed")
	l.before = func() {
		rec := mustRead(t, other, req.ID)
		if err := other.Release(context.Background(), rec.Claim(), keep); err != nil {
			t.Error(err)
		}
	}
	l.replies.Store(1)
	_, err := s.Claim(t.Context(), req)
	unknown("a claim that was released by another", err)
}

// A write that was planned before the znode was made anew has the right version and the right time in
// the schedule by accident.
func TestDelayedWriteCannotChangeALaterClaim(t *testing.T) {
	t.Parallel()
	s := openStore(t, servers(t))
	now, err := s.now(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	claim := func(owner store.Owner) view { // at the same time
		t.Helper()
		req := request("k")
		req.Owner = owner
		v, err := s.see(t.Context(), req.ID, true, 0)
		if err != nil {
			t.Fatal(err)
		}
		v.now = now
		n, err := s.commit(t.Context(), v, grant(v, v.record(), req))
		if err != nil {
			t.Fatal(err)
		}
		return view{node: n, now: now}
	}
	v := claim(store.NewOwner())
	if _, err := s.commit(t.Context(), v, &write{}); err != nil {
		t.Fatal(err)
	}
	second := claim(store.NewOwner())
	if second.stat.Version != v.stat.Version || second.Slot != v.Slot {
		t.Fatalf("the versions are %d and %d, the slots %v and %v; this test needs the same", v.stat.Version, second.stat.Version, v.Slot, second.Slot)
	}
	for name, w := range map[string]*write{"marking unknown": markUnknown(v), "removal": {}, "claim": grant(v, v.record(), request("k"))} {
		if _, err := s.commit(t.Context(), v, w); !conflict(err) {
			t.Errorf("a delayed %s was not refused: %v", name, err)
		}
	}
	renewed := v.with(store.Running, times{Lease: hour})
	renewed.Slot = v.Slot
	if _, err := s.commit(t.Context(), v, &write{to: renewed}); !conflict(err) {
		t.Errorf("a delayed heartbeat was not refused: %v", err)
	}
	if rec := mustRead(t, s, second.id); rec.State != store.Running || rec.Fence != second.stat.Czxid {
		t.Errorf("after delayed writes the record is %v with fence %d; want running with %d", rec.State, rec.Fence, second.stat.Czxid)
	}
}

func TestFenceGrowsAfterTheRecordWasDeleted(t *testing.T) {
	t.Parallel()
	s := openStore(t, servers(t))
	req := request("k")
	var last int64
	for range 5 {
		req.Owner = store.NewOwner()
		rec := mustClaim(t, s, req)
		if rec.Fence <= last {
			t.Fatalf("the fence %d follows %d", rec.Fence, last)
		}
		last = rec.Fence
		if err := s.Release(t.Context(), rec.Claim(), store.Retention{}); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Sweep(t.Context(), 100); err != nil {
			t.Fatal(err)
		}
		if exists, _, err := s.conn.Exists(s.path(req.ID)); exists || err != nil {
			t.Fatalf("the sweep left a record that was released without retention: %v, %v", exists, err)
		}
	}
}

func TestClockIsNeverAheadOfTheLeader(t *testing.T) {
	t.Parallel()
	s := openStore(t, servers(t))
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range 100 {
				req := request(fmt.Sprint("clock ", i, time.Now().UnixNano()))
				mustClaim(t, s, req)
				before := time.Now() // the leader runs on this computer
				now, err := s.now(t.Context())
				after := time.Now()
				if err != nil || now > after.UnixMilli() || now < before.Add(-2*time.Second).UnixMilli() {
					t.Errorf("the clock says %d, %v; it is %d to %d", now, err, before.UnixMilli(), after.UnixMilli())
				}
			}
		})
	}
	wg.Wait()
	s.clock.taken -= 2 * sampleAge
	offset := s.clock.offset
	s.clock.offset -= time.Hour
	if now, err := s.now(t.Context()); err != nil || s.clock.offset == offset-time.Hour {
		t.Errorf("a sample that is too old is used: the clock says %d, %v", now, err)
	}
}

func TestWithoutQuorumNothingIsExecuted(t *testing.T) {
	t.Parallel()
	z := rig.NewZooKeeper(t, 3)
	s := openStore(t, z.Addrs())
	run := mustClaim(t, s, request("before"))
	for _, server := range z.Servers[:2] {
		if err := server.Kill(); err != nil {
			t.Fatal(err)
		}
	}
	short, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	// The only claim in flight may reach the last server while it still serves; the others cannot.
	_, _ = s.Claim(short, request("last"))
	req := request("refused")
	var err error
	for range 2 {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		_, err = s.Claim(ctx, req)
		cancel()
		if err == nil {
			t.Fatal("a claim was granted without a quorum")
		}
	}
	if !errors.Is(err, store.ErrNotDone) {
		t.Errorf("a claim without a quorum: %v; want an error that wraps ErrNotDone", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := s.Settle(ctx, run.Claim(), completed("x"), keep); err == nil {
		t.Error("an outcome was stored without a quorum")
	}
	if err := z.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if rec := eventually(t, func(ctx context.Context) (store.Record, error) { return s.Read(ctx, req.ID) }); rec.State != store.None {
		t.Errorf("a claim that was not executed left a record that is %v", rec.State)
	}
	mustSettle(t, s, run.Claim(), "x")
}

// eventually calls do until it succeeds: servers elect a leader.
func eventually[T any](t *testing.T, do func(context.Context) (T, error)) T {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for {
		v, err := do(t.Context())
		if err == nil {
			return v
		}
		if time.Now().After(deadline) {
			t.Fatalf("still failing after a minute: %v", err)
		}
	}
}

// The leader has the write, and no other server acknowledges it.
func TestUnacknowledgedWriteIsNotCalledNotExecuted(t *testing.T) {
	t.Parallel()
	z := rig.NewZooKeeper(t, 3)
	leader, err := z.Leader(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s := openStore(t, []string{leader.Addr()})
	mustClaim(t, s, request("warm"))
	req := request("k")
	if _, err := s.now(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, server := range z.Servers {
		if server != leader {
			if err := server.Pause(); err != nil {
				t.Fatal(err)
			}
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	_, err = s.Claim(ctx, req)
	for _, server := range z.Servers {
		if err := server.Resume(); err != nil {
			t.Fatal(err)
		}
	}
	if err == nil || errors.Is(err, store.ErrNotDone) {
		t.Errorf("a claim that no follower acknowledged: %v; want an error without ErrNotDone", err)
	}
	rec := eventually(t, func(ctx context.Context) (store.Record, error) { return s.Claim(ctx, req) })
	if rec.State != store.Running || rec.Owner != req.Owner || rec.Attempt != 1 {
		t.Errorf("the same claim again: %v, attempt %d; want it granted, attempt 1", rec.State, rec.Attempt)
	}
}

func TestKilledLeadersLoseNothingAndGrantNothingTwice(t *testing.T) {
	t.Parallel()
	z := rig.NewZooKeeper(t, 3)
	type outcome struct {
		id   store.ID
		body string
	}
	var mu sync.Mutex
	var settled []outcome
	granted := make(map[store.ID]int)
	ctx, cancel := context.WithCancel(t.Context())
	var callers sync.WaitGroup
	for c := range 8 {
		s := openStore(t, z.Addrs(), "/stet")
		callers.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				req := request(fmt.Sprint("key ", i)) // all callers want the same keys
				rec, err := s.Claim(ctx, req)
				if err != nil || rec.State != store.Running || rec.Owner != req.Owner {
					continue
				}
				mu.Lock()
				granted[req.ID]++
				mu.Unlock()
				body := fmt.Sprint(c, " ", i)
				if s.Settle(ctx, rec.Claim(), completed(body), keep) == nil {
					mu.Lock()
					settled = append(settled, outcome{req.ID, body})
					mu.Unlock()
				}
			}
		})
	}
	for range 3 {
		time.Sleep(1500 * time.Millisecond) // load between the faults
		leader, err := z.Leader(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := leader.Kill(); err != nil {
			t.Fatal(err)
		}
		if err := z.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(time.Second) // as above
	cancel()
	callers.Wait()
	for id, n := range granted {
		if n > 1 {
			t.Errorf("%v was granted %d times", id, n)
		}
	}
	s := openStore(t, z.Addrs(), "/stet")
	for _, o := range settled {
		if rec := mustRead(t, s, o.id); rec.State != store.Completed || string(rec.Result.Body) != o.body {
			t.Errorf("an acknowledged outcome %q is now %v %q", o.body, rec.State, rec.Result.Body)
		}
	}
	t.Logf("3 leaders killed; %d keys granted, %d outcomes acknowledged", len(granted), len(settled))
	if len(settled) < 100 {
		t.Errorf("only %d outcomes were stored; this tests nothing", len(settled))
	}
}

func TestWrongConfigurationIsRefused(t *testing.T) {
	t.Parallel()
	addrs := servers(t)
	for want, open := range map[string]func() (*Store, error){
		"the address of one server": func() (*Store, error) { return Open(t.Context(), nil, Options{}) },
		"must begin with a slash":   func() (*Store, error) { return Open(t.Context(), addrs, Options{Path: "stet"}) },
		"have no empty part":        func() (*Store, error) { return Open(t.Context(), addrs, Options{Path: "/stet/"}) },
		"user:password":             func() (*Store, error) { return Open(t.Context(), addrs, Options{Auth: "secret"}) },
		"could not connect": func() (*Store, error) {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			addr, err := rig.FreeAddr()
			if err != nil {
				t.Fatal(err)
			}
			return Open(ctx, []string{addr}, Options{})
		},
	} {
		s, err := open()
		if err == nil {
			_ = s.Close()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Open: %v; want an error with %q", err, want)
		}
	}
}

func TestServerWithSmallRequestsIsRefused(t *testing.T) {
	t.Parallel()
	z := rig.NewZooKeeper(t, 1, "-Djute.maxbuffer=100000")
	s, err := Open(t.Context(), z.Addrs(), Options{})
	if err == nil {
		_ = s.Close()
	}
	if err == nil || !strings.Contains(err.Error(), "jute.maxbuffer") {
		t.Errorf("Open on a server with jute.maxbuffer 100000: %v; want an error that names it", err)
	}
}

func TestRecordsAreOnlyForTheirUser(t *testing.T) {
	t.Parallel()
	path := "/" + rig.Named(t, "-")
	s, err := Open(t.Context(), servers(t), Options{Path: path, Auth: "stet:secret"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	req := request("k")
	mustClaim(t, s, req)
	other, err := Open(t.Context(), servers(t), Options{Path: path})
	if err == nil {
		_ = other.Close()
	}
	if !errors.Is(err, zk.ErrNoAuth) || strings.Contains(err.Error(), "secret") {
		t.Errorf("Open by another user: %v; want it refused", err)
	}
}

// The context ends after a write that was not acknowledged.
func TestEndedContextDoesNotHideAnUnacknowledgedWrite(t *testing.T) {
	t.Parallel()
	s, l := faultyStore(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	req := request("k")
	l.before = cancel
	l.replies.Store(1)
	if _, err := s.Claim(ctx, req); err == nil || errors.Is(err, store.ErrNotDone) {
		t.Errorf("a claim whose reply was lost and whose context ended: %v; want an error without ErrNotDone", err)
	}
	if rec := mustClaim(t, s, req); rec.Attempt != 1 {
		t.Errorf("the same claim again is attempt %d; want 1", rec.Attempt)
	}
	if _, err := s.Claim(ctx, request("late")); !errors.Is(err, store.ErrNotDone) {
		t.Errorf("a claim with a context that has ended: %v; want ErrNotDone", err)
	}
}
