package redis_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/redis"
	"github.com/stet-go/stet/store/storetest"
)

// pair is a master with a replica.
type pair struct{ master, replica *rig.RedisServer }

func newPair(t testing.TB) pair {
	t.Helper()
	master := rig.NewRedis(t, rig.RedisOptions{})
	return pair{master, rig.NewRedis(t, rig.RedisOptions{ReplicaOf: master})}
}

// pause keeps the replica from acknowledging anything until resume.
func (p pair) pause(t testing.TB) {
	t.Helper()
	if err := p.replica.Pause(); err != nil {
		t.Fatal(err)
	}
}

func (p pair) resume(t testing.TB) {
	t.Helper()
	if err := p.replica.Resume(); err != nil {
		t.Fatal(err)
	}
}

// eachReplicated runs a test with each library, against a master and a replica. What
// patient writes is waited for as long as a busy machine takes; hasty, another store of
// the same records, is for what the replica cannot get.
func eachReplicated(t *testing.T, f func(t *testing.T, p pair, patient, hasty *redis.Store)) {
	for _, l := range libraries {
		t.Run(l.name, func(t *testing.T) {
			p := newPair(t)
			c := dial(t, l, p.master.Addr())
			f(t, p, open(t, c, redis.Options{Prefix: "p", Replicas: 1, ReplicaTimeout: 10 * time.Second}),
				open(t, c, redis.Options{Prefix: "p", Replicas: 1, ReplicaTimeout: 300 * time.Millisecond}))
		})
	}
}

// lacking requires that a call says that replicas lack its write.
func lacking(t testing.TB, what string, err error) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), "0 of 1 replicas") || errors.Is(err, store.ErrFenced) {
		t.Errorf("%s without the replica: %v; want it to say that 0 of 1 replicas have it", what, err)
	}
}

func TestStoreThatWaitsForReplicasKeepsTheContract(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	for _, l := range libraryOf("rueidis") {
		t.Run(l.name, func(t *testing.T) {
			t.Parallel()
			c := dial(t, l, p.master.Addr())
			storetest.Run(t, contract(c, redis.Options{Replicas: 1, ReplicaTimeout: 10 * time.Second}))
		})
	}
}

func TestOutcomeThatReplicasLackIsUnknownAndNotReturned(t *testing.T) {
	t.Parallel()
	eachReplicated(t, func(t *testing.T, p pair, s, _ *redis.Store) {
		t.Parallel()
		e := stettest.Engine(t, s, stet.Options{SweepEvery: -1})
		op := stet.Op{Scope: "test", Key: "k"}
		charge := func(fn func(context.Context) (string, error)) (stet.Result[string], error) {
			return stet.Do(t.Context(), e, op, fn)
		}
		again := func(context.Context) (string, error) {
			t.Error("it ran twice")
			return "", nil
		}
		_, err := charge(func(context.Context) (string, error) {
			p.pause(t)
			return "charged", nil
		})
		if stet.KindOf(err) != stet.KindUnknown { // of its many tries the last may have been cut short, so why is another test's question
			t.Errorf("an outcome that no replica has: %v; want KindUnknown", err)
		}
		if res, err := charge(again); err == nil {
			t.Errorf("an outcome that no replica has was returned: %+v", res)
		}
		p.resume(t)
		stettest.Eventually(t, "a retry gets the outcome", func() bool {
			res, err := charge(again)
			return err == nil && res.Replayed && res.Value == "charged"
		})
	})
}

func TestClaimThatReplicasLackRunsNothing(t *testing.T) {
	eachReplicated(t, func(t *testing.T, p pair, s, hasty *redis.Store) {
		p.pause(t)
		req := request("k")
		rec, err := hasty.Claim(t.Context(), req)
		lacking(t, "Claim", err)
		if rec.State != store.None {
			t.Errorf("a claim that no replica has was granted: %+v", rec)
		}
		_, err = hasty.Claim(t.Context(), req)
		lacking(t, "the same Claim again", err)
		p.resume(t)
		stettest.Eventually(t, "the same claim is granted", func() bool {
			rec, err := s.Claim(t.Context(), req)
			return err == nil && rec.State == store.Running && rec.Owner == req.Owner && rec.Attempt == 1
		})
	})
}

func TestEveryCallThatNeedsReplicasWaitsForThem(t *testing.T) {
	eachReplicated(t, func(t *testing.T, p pair, s, hasty *redis.Store) {
		known, fresh := request("known"), request("fresh")
		mustSettle(t, s, mustClaim(t, s, known).Claim(), "x")
		mustRead(t, s, known.ID) // and so it is known to be on the replica
		rec := mustClaim(t, s, fresh)
		other := mustClaim(t, s, request("other"))
		p.pause(t)
		s = hasty
		for range 2 { // the second has nothing to change
			lacking(t, "Settle", s.Settle(t.Context(), rec.Claim(), completed("x"), keep))
		}
		_, err := s.Read(t.Context(), fresh.ID)
		lacking(t, "Read", err)
		fresh.Owner = store.NewOwner()
		_, err = s.Claim(t.Context(), fresh)
		lacking(t, "a replay", err)

		if rec := mustRead(t, s, known.ID); string(rec.Result.Body) != "x" {
			t.Errorf("an outcome that the replica had: %+v", rec)
		}
		known.Owner = store.NewOwner()
		if rec, err := s.Claim(t.Context(), known); err != nil || string(rec.Result.Body) != "x" {
			t.Errorf("a replay of an outcome that the replica had: %+v, %v", rec, err)
		}
		fresh.Fingerprint = stet.NewFingerprint([]byte("another"))
		if _, err := s.Claim(t.Context(), fresh); !errors.Is(err, store.ErrMismatch) {
			t.Errorf("a mismatch without the replica: %v", err)
		}
		if lost, err := s.Extend(t.Context(), []store.Claim{other.Claim()}, time.Minute); err != nil || len(lost) != 0 {
			t.Errorf("a heartbeat without the replica: lost %v, %v", lost, err)
		}
		if err := s.Release(t.Context(), other.Claim(), keep); err != nil {
			t.Errorf("Release without the replica: %v", err)
		}
		p.resume(t)
	})
}

func TestEveryCallAboutWorkThatNeedsReplicasWaitsForThem(t *testing.T) {
	eachReplicated(t, func(t *testing.T, p pair, s, hasty *redis.Store) {
		ctx := t.Context()
		accept := func(req store.ClaimRequest) error { _, err := s.Accept(ctx, req, []byte("work"), 0); return err }
		take := func(req store.ClaimRequest) (store.Record, error) {
			return s.Take(ctx, store.TakeRequest{ID: req.ID, Owner: store.NewOwner(), Lease: time.Minute})
		}
		waits, runs, dead, sent := request("waits"), request("runs"), request("dead"), request("sent")
		for _, req := range []store.ClaimRequest{waits, runs, dead} {
			if err := accept(req); err != nil {
				t.Fatal(err)
			}
		}
		running, err := take(runs)
		if err != nil {
			t.Fatal(err)
		}
		unknown, err := s.Take(ctx, store.TakeRequest{ID: dead.ID, Owner: store.NewOwner(), Lease: time.Microsecond})
		if err != nil {
			t.Fatal(err)
		}
		stettest.Eventually(t, "the expired run is unknown", func() bool {
			rec, err := take(dead)
			return err == nil && rec.State == store.Unknown
		})
		outcome := completed("x")
		outcome.Outbox = []byte("messages")
		relayed := mustClaim(t, s, sent).Claim()
		if err := s.Settle(ctx, relayed, outcome, keep); err != nil {
			t.Fatal(err)
		}

		p.pause(t)
		s = hasty
		for what, req := range map[string]store.ClaimRequest{"Accept": request("new"), "Accept of what waits": waits, "Accept of what runs": runs} {
			for range 2 { // by the same, and the second has nothing to change
				lacking(t, what, accept(req))
			}
			req.Owner = store.NewOwner() // which has not accepted it
			lacking(t, what+" by another", accept(req))
		}
		lacking(t, "Save", s.Save(ctx, running.Claim(), store.Notes{Version: 1, Data: []byte("noted")}, false))
		lacking(t, "Amend", s.Amend(ctx, unknown.Claim(), store.Notes{Version: 1, Data: []byte("amended")}))
		if rec, err := s.Cancel(ctx, running.Claim(), store.Settlement{State: store.Failed}, keep); err != nil || !rec.Cancelling {
			t.Errorf("Cancel of what runs, without the replica: %+v, %v", rec, err)
		}
		if err := s.Return(ctx, running.Claim(), 0); err != nil {
			t.Errorf("Return without the replica: %v", err)
		}
		if err := s.Relayed(ctx, relayed, keep); err != nil {
			t.Errorf("Relayed without the replica: %v", err)
		}
		_, err = take(waits)
		lacking(t, "Take", err)
		p.resume(t)
	})
}

// WAIT waits for the writes of its connection, and Redis promises nothing of a
// connection that has made none.
func TestRepeatedCallsHaveAWriteToWaitFor(t *testing.T) {
	eachReplicated(t, func(t *testing.T, p pair, s, _ *redis.Store) {
		req := request("k")
		rec := mustClaim(t, s, req)
		writes := func() string {
			info, err := p.master.CLI(t.Context(), "INFO", "persistence")
			if err != nil {
				t.Fatal(err)
			}
			_, count, _ := strings.Cut(info, "rdb_changes_since_last_save:")
			count, _, _ = strings.Cut(count, "\r")
			return count
		}
		repeat := func(what string, call func()) {
			call()
			before := writes()
			if call(); writes() == before {
				t.Errorf("a %s that changed nothing has waited for nothing", what)
			}
		}
		repeat("Claim", func() { mustClaim(t, s, req) })
		repeat("Settle", func() { mustSettle(t, s, rec.Claim(), "x") })
	})
}

func TestNothingThatReplicasHaveIsLostInAFailover(t *testing.T) {
	for _, l := range libraries {
		t.Run(l.name, func(t *testing.T) {
			p := newPair(t)
			s := open(t, dial(t, l, p.master.Addr()), redis.Options{Prefix: "p", Replicas: 1, ReplicaTimeout: 10 * time.Second})
			var settled, running []store.Record
			for i := range 50 {
				settled = append(settled, mustClaim(t, s, request(fmt.Sprint("settled ", i))))
				mustSettle(t, s, settled[i].Claim(), "x")
				running = append(running, mustClaim(t, s, request(fmt.Sprint("running ", i))))
			}
			if err := p.master.Kill(); err != nil {
				t.Fatal(err)
			}
			if _, err := p.replica.CLI(t.Context(), "REPLICAOF", "NO", "ONE"); err != nil {
				t.Fatal(err)
			}
			s = open(t, dial(t, l, p.replica.Addr()), redis.Options{Prefix: "p"})
			for i := range settled {
				if rec := mustRead(t, s, settled[i].ID); string(rec.Result.Body) != "x" || rec.Fence != settled[i].Fence {
					t.Errorf("after the failover a settled record is %+v", rec)
				}
				if rec := mustRead(t, s, running[i].ID); rec.State != store.Running || rec.Fence != running[i].Fence {
					t.Errorf("after the failover a running record is %+v", rec)
				}
			}
		})
	}
}

// newReplicatedCluster starts a cluster whose masters have one replica each.
func newReplicatedCluster(t testing.TB, masters int) *rig.RedisCluster {
	t.Helper()
	c := rig.NewRedisCluster(t, masters, rig.RedisOptions{})
	for _, master := range c.Servers {
		replica := rig.NewRedis(t, rig.RedisOptions{Settings: map[string]string{"cluster-enabled": "yes", "cluster-node-timeout": "5000"}})
		cli := func(s *rig.RedisServer, args ...string) string {
			out, err := s.CLI(t.Context(), args...)
			if err != nil {
				t.Fatal(err)
			}
			return out
		}
		host, port, _ := strings.Cut(master.Addr(), ":")
		id := cli(master, "CLUSTER", "MYID")
		cli(replica, "CLUSTER", "MEET", host, port)
		stettest.Eventually(t, "the replica knows its master", func() bool {
			_, err := replica.CLI(t.Context(), "CLUSTER", "REPLICATE", id)
			return err == nil
		})
		stettest.Eventually(t, "the master has its replica", func() bool {
			return strings.Contains(cli(master, "INFO", "replication"), "state=online") &&
				strings.Contains(cli(replica, "CLUSTER", "INFO"), "cluster_state:ok")
		})
	}
	return c
}

// thereAndBack moves slots between two servers. A server refuses a move until it has
// received the previous one.
func thereAndBack(ctx context.Context, c *rig.RedisCluster) error {
	for from := range 2 {
		err := errors.New("not moved")
		for end := time.Now().Add(30 * time.Second); err != nil && time.Now().Before(end); {
			err = c.Move(ctx, from, 1-from, 500)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func TestReplicasOfAClusterAreWaitedForWhileSlotsMove(t *testing.T) {
	cluster := newReplicatedCluster(t, 2)
	for _, l := range libraries {
		t.Run(l.name, func(t *testing.T) {
			s := open(t, dial(t, l, cluster.Addrs()...), redis.Options{Replicas: 1, ReplicaTimeout: 10 * time.Second})
			moved := make(chan error, 1)
			go func() { moved <- thereAndBack(t.Context(), cluster) }()
			e := stettest.Engine(t, s, stet.Options{StoreTimeout: 30 * time.Second, SweepEvery: -1})
			for n := 0; ; n++ {
				for range 2 {
					res, err := stet.Do(t.Context(), e, stet.Op{Scope: "test", Key: fmt.Sprint(n)}, func(context.Context) (int, error) { return n, nil })
					if err != nil || res.Value != n {
						t.Fatalf("operation %d while slots move: %+v, %v", n, res, err)
					}
				}
				select {
				case err := <-moved:
					if err != nil {
						t.Fatal(err)
					}
					t.Logf("%d operations", n)
					return
				default:
				}
			}
		})
	}
}

func TestWaitingForReplicasDelaysNoOther(t *testing.T) {
	for _, l := range libraries {
		t.Run(l.name, func(t *testing.T) {
			p := newPair(t)
			s := open(t, dial(t, l, p.master.Addr()), redis.Options{Replicas: 1, ReplicaTimeout: 10 * time.Second})
			p.pause(t)
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			claimed := make(chan error, 1)
			req := request("k")
			go func() { _, err := s.Claim(ctx, req); claimed <- err }()
			stettest.Eventually(t, "the claim is written", func() bool { return mustRead(t, s, req.ID).State == store.Running })
			for range 10 {
				mustRead(t, s, request("another").ID)
			}
			select {
			case err := <-claimed:
				t.Errorf("reads came after a claim that waits for 10 s: %v", err)
			default:
			}
			p.resume(t)
			if err := <-claimed; err != nil {
				t.Errorf("the claim: %v", err)
			}
		})
	}
}

func TestReplicasNeedAClientAndSenseToBeWaitedFor(t *testing.T) {
	_, err := redis.New(t.Context(), saying(""), redis.Options{Replicas: 1})
	mustContain(t, err, "Pipeliner")
	for _, o := range []redis.Options{{Replicas: -1}, {ReplicaTimeout: -1}, {ReplicaTimeout: time.Minute}} {
		_, err = redis.New(t.Context(), saying(""), o)
		mustContain(t, err, "Options.Replicas")
	}
}

// failing is a client that has moved on to the new master when it is about to wait.
type failing struct {
	conn
	promoted redis.Pipeliner
}

func (f failing) Pipeline(ctx context.Context, key string, commands ...[]string) ([]any, error) {
	return f.promoted.Pipeline(ctx, key, commands...)
}

func TestReplicasOfANewMasterDoNotVouchForTheOldOnesWrites(t *testing.T) {
	for _, l := range libraries {
		t.Run(l.name, func(t *testing.T) {
			p := newPair(t)
			third := rig.NewRedis(t, rig.RedisOptions{ReplicaOf: p.replica})
			old, promoted := dial(t, l, p.master.Addr()), dial(t, l, p.replica.Addr())
			o := redis.Options{Prefix: "p", Replicas: 1, ReplicaTimeout: 10 * time.Second}
			rec := mustClaim(t, open(t, old, o), request("k"))
			if _, err := p.replica.CLI(t.Context(), "REPLICAOF", "NO", "ONE"); err != nil {
				t.Fatal(err)
			}
			stettest.Eventually(t, "the third follows the new master", func() bool {
				info, err := third.CLI(t.Context(), "INFO", "replication")
				return err == nil && strings.Contains(info, "master_link_status:up")
			})
			err := open(t, failing{old, promoted}, o).Settle(t.Context(), rec.Claim(), completed("x"), keep)
			mustContain(t, err, "failover")
			s := open(t, promoted, o)
			if now := mustRead(t, s, rec.ID); now.State != store.Running {
				t.Fatalf("the new master has a write that only the old one received: %+v", now)
			}
			mustSettle(t, s, rec.Claim(), "x") // as the engine repeats it
		})
	}
}

// asked is a server of a cluster, or of all of them, for tests of redirections.
type asked struct {
	member
	pipeline func(commands [][]string) []any
}

func (a asked) Pipeline(_ context.Context, _ string, commands ...[]string) ([]any, error) {
	return a.pipeline(commands), nil
}

func (a asked) Servers(context.Context) (map[string]redis.Client, error) {
	b := asked{member: a.member, pipeline: func(commands [][]string) []any {
		switch {
		case commands[0][0] != "ASKING":
			return []any{redis.ReplyError("MOVED 1 a"), int64(1)}
		case commands[1][0] == "EVALSHA":
			return []any{"OK", redis.ReplyError("NOSCRIPT No matching script"), int64(1)}
		}
		return []any{"OK", int64(1), int64(1)}
	}}
	return map[string]redis.Client{"b": b}, nil
}

// fit answers the requests for a suitable server.
func fit(args []string) (any, error) {
	if args[0] == "INFO" {
		return "redis_version:7.0.15\r\nrole:master\r\nmaxmemory_policy:noeviction\r\ncluster_enabled:1\r\naof_enabled:1\r\nconnected_slaves:0\r\n", nil
	}
	return int64(1), nil
}

func TestSlotOnTheMoveIsFollowedToTheReplicasOfItsNewServer(t *testing.T) {
	log := new(stettest.Log)
	c := asked{
		member:   member{fit},
		pipeline: func([][]string) []any { return []any{redis.ReplyError("ASK 1 b"), int64(0)} },
	}
	s := open(t, c, redis.Options{Replicas: 1, Logger: slog.New(slog.NewTextHandler(log, nil))})
	mustSettle(t, s, store.Claim{Fence: 1}, "x")
	if !strings.Contains(log.String(), "fewer replicas") {
		t.Errorf("a server without replicas is worth a warning; the log says:\n%s", log)
	}
}

// plain is a client that is no Pipeliner.
type plain struct{ redis.Client }

// mixed is a cluster some of whose servers' clients are no Pipeliners.
type mixed struct{ asked }

func (m mixed) Servers(ctx context.Context) (map[string]redis.Client, error) {
	servers, err := m.asked.Servers(ctx)
	for name, c := range servers {
		servers[name] = plain{c}
	}
	return servers, err
}

func TestReplicasOfAClusterNeedPipeliners(t *testing.T) {
	c := mixed{asked{
		member:   member{fit},
		pipeline: func([][]string) []any { return []any{redis.ReplyError("ASK 1 b"), int64(0)} },
	}}
	s := open(t, c, redis.Options{Replicas: 1, Logger: quiet})
	err := s.Settle(t.Context(), store.Claim{Fence: 1}, completed("x"), keep)
	mustContain(t, err, "must be Pipeliners")
}
