package redis_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/redis"
)

// eachLossy runs a test with each library through a proxy. The store's regular check sends a
// script of its own, whose reply the proxy would lose instead of the test's: it is off.
func eachLossy(t *testing.T, f func(t *testing.T, p *lossy, s *redis.Store)) {
	addr := rig.Redis(t).Addr()
	for _, l := range libraries {
		t.Run(l.name, func(t *testing.T) {
			p := newLossy(t, addr)
			f(t, p, open(t, dial(t, l, p.Addr().String()), redis.Options{CheckEvery: -1}))
		})
	}
}

// again makes a call of which one reply is lost, and repeats it until it is
// answered.
func again(t *testing.T, p *lossy, what string, call func() error) {
	t.Helper()
	lost := p.lost.Load()
	p.lose(1)
	for try := 1; ; try++ {
		err := call()
		if err == nil && try > 1 && p.lost.Load() == lost+1 {
			return
		}
		if err == nil {
			t.Fatalf("%s: try %d succeeded with %d replies lost; want one lost, and no repetition by the client itself", what, try, p.lost.Load()-lost)
		}
		if errors.Is(err, store.ErrFenced) || errors.Is(err, store.ErrMismatch) || try == 100 {
			t.Fatalf("%s, repeated after its reply was lost: %v", what, err)
		}
		time.Sleep(time.Millisecond) // the client reconnects
	}
}

func TestLostReplyOfEveryCallIsHarmless(t *testing.T) {
	t.Parallel() // its clients wait to dial again
	rounds := 1000
	if testing.Short() {
		rounds = 50
	}
	eachLossy(t, func(t *testing.T, p *lossy, s *redis.Store) {
		ctx := t.Context()
		mustSettle(t, s, mustClaim(t, s, request("warm up")).Claim(), "x") // the scripts are known to the server
		for i := range rounds {
			req := request(stet.NewKey())
			var rec store.Record
			again(t, p, "Claim", func() (err error) {
				rec, err = s.Claim(ctx, req)
				return err
			})
			if rec.State != store.Running || rec.Owner != req.Owner || rec.Attempt != 1 {
				t.Fatalf("claim %d conflicts with itself: %+v", i, rec)
			}
			again(t, p, "Extend", func() error {
				lost, err := s.Extend(ctx, []store.Claim{rec.Claim()}, time.Minute)
				if len(lost) != 0 {
					t.Fatal("Extend reports its own claim as lost")
				}
				return err
			})
			if i%2 == 0 {
				again(t, p, "Release", func() error { return s.Release(ctx, rec.Claim(), keep) })
				continue
			}
			again(t, p, "Settle", func() error { return s.Settle(ctx, rec.Claim(), completed("x"), keep) })
			again(t, p, "Expire", func() error { return s.Expire(ctx, rec.Claim()) })
		}
	})
}

func TestServerThatAnswersLateIsNotWaitedFor(t *testing.T) {
	for _, l := range libraries {
		t.Run(l.name, func(t *testing.T) {
			server := rig.NewRedis(t, rig.RedisOptions{})
			s := open(t, dial(t, l, server.Addr()), redis.Options{})
			req := request("k")
			mustClaim(t, s, request("warm up"))
			if err := server.Pause(); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			defer cancel()
			began := time.Now()
			if rec, err := s.Claim(ctx, req); err == nil {
				t.Errorf("a server that does not answer granted %+v", rec)
			}
			if took := time.Since(began); took > 10*time.Second {
				t.Errorf("the call came back %v after its context had ended", took)
			}
			if err := server.Resume(); err != nil {
				t.Fatal(err)
			}
			// Whatever became of the first, the same owner is not in its own way.
			stettest.Eventually(t, "the server answers again", func() bool {
				rec, err := s.Claim(t.Context(), req)
				return err == nil && rec.State == store.Running && rec.Owner == req.Owner && rec.Attempt == 1
			})
		})
	}
}

func TestStoppedServerIsAnErrorAndNothingRuns(t *testing.T) {
	for _, l := range libraries {
		t.Run(l.name, func(t *testing.T) {
			server := rig.NewRedis(t, rig.RedisOptions{Settings: map[string]string{"appendonly": "yes", "appendfsync": "always"}})
			s := open(t, dial(t, l, server.Addr()), redis.Options{Prefix: "p"})
			done := request("done")
			mustSettle(t, s, mustClaim(t, s, done).Claim(), "x")
			running := mustClaim(t, s, request("running"))
			if err := server.Kill(); err != nil {
				t.Fatal(err)
			}
			e := stettest.Engine(t, s, stet.Options{StoreTimeout: time.Second, SweepEvery: -1})
			_, err := stet.Do(t.Context(), e, stet.Op{Scope: "test", Key: "k"}, func(context.Context) (int, error) {
				t.Error("it ran without a durable claim")
				return 0, nil
			})
			if stet.KindOf(err) != stet.KindStore || stet.ExecutionOf(err) != stet.NotExecuted {
				t.Errorf("Do on a stopped server: %v; want ErrStore, not executed", err)
			}
			if err := server.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			stettest.Eventually(t, "the client has connected again", func() bool { _, err := s.Read(t.Context(), done.ID); return err == nil })
			if rec := mustRead(t, s, done.ID); string(rec.Result.Body) != "x" {
				t.Errorf("with appendfsync always, an outcome did not survive a crash: %+v", rec)
			}
			if rec := mustRead(t, s, running.ID); rec.Fence != running.Fence || rec.State != store.Running {
				t.Errorf("with appendfsync always, a claim did not survive a crash: %+v", rec)
			}
		})
	}
}

func TestServerThatRefusesWritesServesReplays(t *testing.T) {
	server := rig.NewRedis(t, rig.RedisOptions{})
	for _, setting := range []string{"maxmemory", "min-replicas-to-write"} {
		for _, l := range libraries {
			t.Run(setting+", "+l.name, func(t *testing.T) {
				s := open(t, dial(t, l, server.Addr()), redis.Options{})
				done := request("done")
				mustSettle(t, s, mustClaim(t, s, done).Claim(), "x")
				live := mustClaim(t, s, request("live"))
				config(t, server, setting, "1")
				defer config(t, server, setting, "0")
				rec, err := s.Claim(t.Context(), request("new"))
				for _, err := range []error{err, s.Settle(t.Context(), live.Claim(), completed("y"), keep)} {
					mustContain(t, err, setting)
					mustContain(t, err, "nothing was done")
				}
				if rec.State != store.None {
					t.Errorf("a claim was granted: %+v", rec)
				}
				again := done
				again.Owner = store.NewOwner()
				if rec, err := s.Claim(t.Context(), again); err != nil || string(rec.Result.Body) != "x" {
					t.Errorf("a replay: %+v, %v", rec, err)
				}
				if rec := mustRead(t, s, done.ID); string(rec.Result.Body) != "x" {
					t.Errorf("a read: %+v", rec)
				}
				if rec := mustRead(t, s, live.ID); rec.State != store.Running {
					t.Errorf("a record whose settlement was refused is %v", rec.State)
				}
			})
		}
	}
}

// config sets a parameter of a running server.
func config(t testing.TB, s *rig.RedisServer, name, value string) {
	t.Helper()
	if _, err := s.CLI(context.Background(), "CONFIG", "SET", name, value); err != nil {
		t.Fatal(err)
	}
}

func TestFullDiskRefusesClaimsAndServesReplays(t *testing.T) {
	dir := t.TempDir()
	for _, d := range []string{dir, filepath.Dir(dir), filepath.Dir(filepath.Dir(dir))} {
		_ = os.Chmod(d, 0o755) // servers may run as another user
	}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=8m,mode=0777"); err != nil {
		t.Logf("a small file system cannot be mounted here (%v); a snapshot that fails stands in for the full disk", err)
		return // TestFailedSnapshotRefusesClaimsAndServesReplays
	}
	defer func() {
		if out, err := exec.Command("umount", "-l", dir).CombinedOutput(); err != nil {
			t.Errorf("umount: %v: %s", err, out)
		}
	}()
	server := rig.NewRedis(t, rig.RedisOptions{Settings: map[string]string{"dir": dir, "appendonly": "yes", "appendfsync": "everysec",
		"auto-aof-rewrite-percentage": "0"}})
	refusesClaims(t, server, func(s *redis.Store) (refused error) {
		large := completed(string(make([]byte, 1<<20)))
		for i := 0; i < 100 && refused == nil; i++ {
			var rec store.Record
			if rec, refused = s.Claim(t.Context(), request(fmt.Sprint(i))); refused == nil {
				refused = s.Settle(t.Context(), rec.Claim(), large, keep)
			}
		}
		return refused
	})
}

func TestFailedSnapshotRefusesClaimsAndServesReplays(t *testing.T) {
	// A snapshot is renamed to its name, which is that of a folder.
	server := rig.NewRedis(t, rig.RedisOptions{Settings: map[string]string{"save": "1 1", "dbfilename": "folder"}})
	if err := os.MkdirAll(filepath.Join(dirOf(t, server), "folder", "x"), 0o755); err != nil {
		t.Fatal(err)
	}
	refusesClaims(t, server, func(s *redis.Store) (refused error) {
		stettest.Eventually(t, "a snapshot fails, and writes are refused", func() bool {
			_, refused = s.Claim(t.Context(), request(stet.NewKey()))
			return refused != nil
		})
		return refused
	})
}

// dirOf is where a server keeps its files.
func dirOf(t testing.TB, s *rig.RedisServer) string {
	t.Helper()
	out, err := s.CLI(t.Context(), "CONFIG", "GET", "dir")
	if err != nil {
		t.Fatal(err)
	}
	_, dir, _ := strings.Cut(out, "\n")
	return dir
}

// refusesClaims requires that a server that cannot write to its disk, once fill
// has got a refusal, still serve replays.
func refusesClaims(t *testing.T, server *rig.RedisServer, fill func(*redis.Store) error) {
	s := open(t, dial(t, libraries[1], server.Addr()), redis.Options{})
	done := request("done")
	mustSettle(t, s, mustClaim(t, s, done).Claim(), "x")
	refused := fill(s)
	mustContain(t, refused, "cannot write to its disk")
	mustContain(t, refused, "nothing was done")
	again := done
	again.Owner = store.NewOwner()
	if rec, err := s.Claim(t.Context(), again); err != nil || string(rec.Result.Body) != "x" {
		t.Errorf("a replay while nothing can be written: %+v, %v", rec, err)
	}
	if rec := mustRead(t, s, done.ID); string(rec.Result.Body) != "x" {
		t.Errorf("a read while nothing can be written: %+v", rec)
	}
}
