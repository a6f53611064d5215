// Command zookeeper measures claim + settle of 1 KB on the ZooKeeper store, beside the pattern that
// services write by hand: an ephemeral lock znode and a result znode. Both use one session with an
// ensemble of three servers on this computer.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/stet-go/stet/bench/internal/rounds"
	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/zookeeper"
)

var (
	each = flag.Duration("each", 2*time.Second, "how long one measurement takes")
	n    = flag.Int("rounds", 3, "rounds")
)

func main() {
	flag.Parse()
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "zookeeper:", err)
		os.Exit(1)
	}
}

// operation is one call of a contender, for a key.
type operation func(ctx context.Context, id store.ID) error

var result = bytes.Repeat([]byte("r"), 1024)

func run(ctx context.Context) (err error) {
	r, err := rig.New()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	servers, err := r.StartZooKeeper(ctx, 3)
	if err != nil {
		return err
	}
	s, err := zookeeper.Open(ctx, servers.Addrs(), zookeeper.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	conn, _, err := zk.Connect(servers.Addrs(), 6*time.Second, zk.WithLogInfo(false))
	if err != nil {
		return err
	}
	defer conn.Close()
	for _, path := range []string{"/lock", "/result"} {
		if _, err := conn.Create(path, nil, 0, zk.WorldACL(zk.PermAll)); err != nil {
			return err
		}
	}
	done := store.Digest("bench", "s", "done")
	if err := errors.Join(pair(s)(ctx, done), byHand(conn)(ctx, done)); err != nil {
		return err
	}
	same := func(op operation) operation {
		return func(ctx context.Context, _ store.ID) error { return op(ctx, done) }
	}
	err = compare(ctx, "pairs of claim + settle", "pairs", pair(s), byHand(conn))
	return errors.Join(err, compare(ctx, "replays", "replays", same(replay(s)), same(replayByHand(conn))))
}

// compare measures the store beside the pattern by hand.
func compare(ctx context.Context, title, figure string, stet, hand operation) error {
	fmt.Printf("%s (1 KB) per second, three servers\n%8s %12s %12s %8s\n", title, "callers", "stet", "by hand", "ratio")
	for _, callers := range []int{1, 16, 64, 256} {
		rates, err := rounds.Compare(*n,
			rounds.Contender{Name: "stet", Measure: func() (float64, error) { return load(ctx, callers, stet) }},
			rounds.Contender{Name: "hand", Measure: func() (float64, error) { return load(ctx, callers, hand) }})
		if err != nil {
			return err
		}
		ratio := rounds.Ratio(rates["stet"], rates["hand"])
		fmt.Printf("%8d %12.0f %12.0f %8.2f\n", callers, rounds.Median(rates["stet"]), rounds.Median(rates["hand"]), ratio)
		rounds.Figure(fmt.Sprintf("zookeeper_%s_%d", figure, callers), rounds.Median(rates["stet"]), figure+"/s")
		rounds.Figure(fmt.Sprintf("zookeeper_%s_ratio_%d", figure, callers), ratio, "x a lock znode and a result znode")
	}
	return nil
}

func request(id store.ID) store.ClaimRequest {
	return store.ClaimRequest{ID: id, Owner: store.NewOwner(), Lease: 30 * time.Second}
}

// pair claims and settles a new operation.
func pair(s *zookeeper.Store) operation {
	return func(ctx context.Context, id store.ID) error {
		req := request(id)
		rec, err := s.Claim(ctx, req)
		if err != nil || rec.Owner != req.Owner {
			return fmt.Errorf("not granted: %v, %w", rec.State, err)
		}
		return s.Settle(ctx, rec.Claim(), store.Settlement{State: store.Completed, Result: store.Result{Body: result}},
			store.Retention{Result: 24 * time.Hour, Tombstone: 30 * 24 * time.Hour})
	}
}

// replay claims a settled operation.
func replay(s *zookeeper.Store) operation {
	return func(ctx context.Context, id store.ID) error {
		rec, err := s.Claim(ctx, request(id))
		if err != nil || len(rec.Result.Body) != len(result) {
			return fmt.Errorf("not replayed: %v, %w", rec.State, err)
		}
		return nil
	}
}

// byHand has a lock that ends with the session. It fences nothing, and compares no request.
func byHand(conn *zk.Conn) operation {
	acl := zk.WorldACL(zk.PermAll)
	return func(_ context.Context, id store.ID) error {
		lock, stored := "/lock/"+id.String(), "/result/"+id.String()
		if _, err := conn.Create(lock, nil, zk.FlagEphemeral, acl); err != nil {
			return err
		}
		if exists, _, err := conn.Exists(stored); exists || err != nil {
			return fmt.Errorf("there is a result: %w", err)
		}
		if _, err := conn.Create(stored, result, 0, acl); err != nil {
			return err
		}
		return conn.Delete(lock, -1)
	}
}

// replayByHand reads a result.
func replayByHand(conn *zk.Conn) operation {
	return func(_ context.Context, id store.ID) error {
		_, _, err := conn.Get("/result/" + id.String())
		return err
	}
}

var keys atomic.Int64

// load calls op with so many callers for a while.
func load(ctx context.Context, callers int, op operation) (rate float64, err error) {
	rate, _, err = rounds.Load(callers, *each, func(int) error { return op(ctx, store.Digest("bench", "s", fmt.Sprint(keys.Add(1)))) })
	return rate, err
}
