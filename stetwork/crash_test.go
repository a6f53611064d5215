package stetwork_test

import (
	"bufio"
	"bytes"
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"log"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/fault"
	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/stetwork"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/sqlite"
)

var cycles = flag.Int("cycles", 15, "how often the process is killed that accepts and runs operations")

const crashEnv = "STETWORK_CRASH"

func TestMain(m *testing.M) {
	if plan := os.Getenv(crashEnv); plan != "" {
		if err := dying(plan); err != nil {
			log.Fatal(err)
		}
		return
	}
	if url := os.Getenv(killedEnv); url != "" {
		if err := dyingInTx(url); err != nil {
			log.Fatal(err)
		}
		return
	}
	goleak.VerifyTestMain(rig.Main(m))
}

// points are where the process is killed.
var points = []fault.Point{
	fault.AcceptBefore, fault.AcceptAfter, fault.ClaimBefore, fault.ClaimAfter, fault.HandlerBefore, fault.HandlerAfter,
	fault.StepBefore, fault.StepAfter, fault.SettleBefore, fault.SettleAfter, fault.CommitBefore, fault.CommitAfter,
	fault.ReleaseBefore, fault.ReleaseAfter, fault.TakeoverBefore, fault.TakeoverAfter,
}

// shop is a service whose effects are rows, and lines of a file, that anybody can
// count.
type shop struct {
	dir    string
	store  *sqlite.Store
	engine *stet.Engine
	worker *stetwork.Worker
}

var shopHandlers = []string{"tx", "steps", "plain"}

func openShop(ctx context.Context, dir string) (*shop, error) {
	s := &shop{dir: dir}
	var err error
	if s.store, err = sqlite.Open(ctx, filepath.Join(dir, "stet.db"), sqlite.Options{}); err != nil {
		return nil, err
	}
	if _, err = s.store.DB().ExecContext(ctx, `CREATE TABLE IF NOT EXISTS shipments (book TEXT)`); err != nil {
		return nil, err
	}
	s.engine, err = stet.New(s.store, stet.Options{Policy: stet.Policy{Lease: 500 * time.Millisecond}, SweepEvery: 200 * time.Millisecond, StoreTimeout: time.Minute})
	if err != nil {
		return nil, err
	}
	s.worker, err = stetwork.New(s.engine, stetwork.Options{ErrorLog: quiet(), RecoverEvery: 100 * time.Millisecond, MaxAttempts: -1,
		Backoff:  func(int) time.Duration { return 10 * time.Millisecond },
		Dispatch: stetwork.DispatcherOptions{Poll: 20 * time.Millisecond, Again: time.Second}})
	if err != nil {
		return nil, err
	}
	return s, errors.Join(
		stetwork.HandleTx(s.worker, stettest.TxEngine(s.engine, s.store), "tx", func(ctx context.Context, tx *sql.Tx, p parcel) (receipt, error) {
			return receipt{}, insert(ctx, tx, p)
		}),
		stetwork.HandleIdempotent(s.worker, "steps", s.inSteps),
		stetwork.Handle(s.worker, "plain", func(ctx context.Context, p parcel) (receipt, error) {
			if stet.FromContext(ctx).Attempt() == 1 && len(p.Book)%2 == 0 {
				return receipt{}, stet.Retryable(errors.New("busy"))
			}
			return receipt{}, s.write(p)
		}))
}

// inSteps has one effect outside of the store, another in it, and a third that may be
// repeated.
func (s *shop) inSteps(ctx context.Context, p parcel) (receipt, error) {
	if _, err := stet.StepOnce(ctx, "charge", func(context.Context) (string, error) { return p.Book, s.write(p) }); err != nil {
		return receipt{}, err
	}
	if _, err := stet.StepTx(ctx, stettest.TxEngine(s.engine, s.store), "ship", func(ctx context.Context, tx *sql.Tx) (string, error) { return p.Book, insert(ctx, tx, p) }); err != nil {
		return receipt{}, err
	}
	return stet.Step(ctx, "mail", func(context.Context) (receipt, error) { return receipt{1}, nil })
}

// write has an effect that is durable at once, and outside of the store.
func (s *shop) write(p parcel) error {
	f, err := os.OpenFile(filepath.Join(s.dir, "effects"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(f, p.Book)
	return errors.Join(err, f.Close())
}

func (s *shop) close() { _ = errors.Join(s.engine.Close(), s.store.Close()) }

// dying is the process that is killed: it accepts operations, says so, and runs
// due operations, until it passes its point for the n-th time.
func dying(plan string) error {
	var dir, cycle string
	var point fault.Point
	var n int64
	if _, err := fmt.Sscanf(plan, "%s %s %s %d", &dir, &cycle, &point, &n); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	s, err := openShop(ctx, dir)
	if err != nil {
		return err
	}
	defer s.close()
	var passed atomic.Int64
	fault.Set(func(p fault.Point) {
		if p == point && passed.Add(1) == n {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {} // until it has happened
		}
	})
	running, stop := context.WithCancel(ctx)
	defer stop()
	done := make(chan error, 1)
	go func() { done <- s.worker.Run(running) }()
	var ids []store.ID
	for i, name := range shopHandlers {
		key := fmt.Sprintf("%s-%s-%s", name, cycle, strings.Repeat("x", i+rand.N(2)))
		st, err := s.accept(ctx, name, key)
		if err != nil {
			return err
		}
		fmt.Println("accepted", key)
		ids = append(ids, st.Record.ID)
	}
	for _, id := range ids {
		if _, err := s.engine.Await(ctx, "shop", id); err != nil {
			return err
		}
	}
	stop()
	return <-done
}

func (s *shop) accept(ctx context.Context, name, key string) (stet.Status, error) {
	work, err := stetwork.NewWork(name, parcel{Book: key})
	if err != nil {
		return stet.Status{}, err
	}
	return s.engine.Accept(ctx, stet.Op{Scope: "shop", Key: key}, work)
}

func TestKillsLoseNoOperationAndRepeatNoEffect(t *testing.T) {
	dir := t.TempDir()
	self, err := os.Executable()
	must(t, err)
	accepted := map[string]string{} // names, by key
	kills := 0
	for i := range *cycles {
		point := points[i%len(points)]
		cmd := exec.Command(self)
		cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %d %s %d", crashEnv, dir, i, point, 1+rand.N(3)))
		var errs bytes.Buffer
		cmd.Stderr = &errs
		out, err := cmd.Output()
		var exit *exec.ExitError
		switch {
		case errors.As(err, &exit) && exit.ProcessState.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL:
			kills++
		case err != nil:
			t.Fatalf("%s: %v: %s", point, err, errs.String())
		}
		for lines := bufio.NewScanner(bytes.NewReader(out)); lines.Scan(); {
			if key, ok := strings.CutPrefix(lines.Text(), "accepted "); ok {
				accepted[key], _, _ = strings.Cut(key, "-")
			}
		}
	}
	s, err := openShop(t.Context(), dir)
	must(t, err)
	defer s.close()
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.worker.Run(ctx) }()
	unknown := s.check(t, accepted)
	stop()
	must(t, <-done)
	t.Logf("%d operations, %d kills in %d cycles; %d of them stay unknown, as they must", len(accepted), kills, *cycles, unknown)
	if kills < *cycles/3 || len(accepted) == 0 {
		t.Errorf("only %d kills, %d operations", kills, len(accepted))
	}
}

// check waits until every operation has ended, and counts effects.
func (s *shop) check(t *testing.T, accepted map[string]string) (unknown int) {
	t.Helper()
	settled := map[string]stet.Status{}
	for key := range accepted {
		for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
			st, err := s.engine.Lookup(t.Context(), s.engine.ID("shop", key))
			must(t, err)
			settled[key] = st
			if st.Record.State == store.Completed || st.Record.State == store.Unknown && !s.repeats(st) {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("%s is %v, attempt %d", key, st.Record.State, st.Record.Attempt)
			}
		}
	}
	written, err := os.ReadFile(filepath.Join(s.dir, "effects"))
	must(t, err)
	for key, name := range accepted {
		lines := bytes.Count(written, []byte(key+"\n"))
		var rows int
		must(t, s.store.DB().QueryRow(`SELECT count(*) FROM shipments WHERE book = ?`, key).Scan(&rows))
		want := map[string][2]int{"tx": {0, 1}, "steps": {1, 1}, "plain": {1, 0}}[name]
		switch st := settled[key]; {
		case lines > 1 || rows > 1:
			t.Errorf("%s: %d lines, %d rows: an effect came twice", key, lines, rows)
		case st.Record.State == store.Unknown:
			unknown++
		case lines != want[0] || rows != want[1]:
			t.Errorf("%s is %v with %d lines, %d rows; want %v", key, st.Record.State, lines, rows, want)
		}
	}
	return unknown
}

// repeats reports whether an unknown operation is run again without anybody's help.
func (s *shop) repeats(st stet.Status) bool {
	return st.Name == "tx" || st.Name == "steps" && st.OpenStep == ""
}
