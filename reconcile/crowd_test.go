package reconcile_test

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"flag"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/rig"
	"github.com/stet-go/stet/reconcile"
	"github.com/stet-go/stet/store/memory"
	"github.com/stet-go/stet/store/postgres"
	"github.com/stet-go/stet/store/sqlite"
)

// records is how many records the processes find; make reconcile says 100,000.
var records = flag.Int("records", 1000, "how many records nobody knows about")

const processes = 4

func TestFourProcessesResolveEachRecordOnceAndRightly(t *testing.T) {
	t.Run("memory", func(t *testing.T) {
		s := memory.New(memory.Options{})
		crowd(t, func() stet.Store { return s })
	})
	t.Run("sqlite", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "stet.db")
		crowd(t, func() stet.Store {
			s, err := sqlite.Open(ctx, file, sqlite.Options{})
			must(t, err)
			t.Cleanup(func() { _ = s.Close() })
			return s
		})
	})
	t.Run("postgres", func(t *testing.T) {
		url := rig.Postgres(t).Database(t)
		crowd(t, func() stet.Store {
			pool, err := pgxpool.New(ctx, url)
			must(t, err)
			t.Cleanup(pool.Close)
			must(t, postgres.Migrate(ctx, pool, postgres.Options{}))
			s, err := postgres.New(ctx, pool, postgres.Options{})
			must(t, err)
			t.Cleanup(func() { _ = s.Close() })
			return s
		})
	})
}

// crowd has processes reconcile one store at the same time.
func crowd(t *testing.T, open func() stet.Store) {
	t.Helper()
	first := open()
	park(t, first, *records)
	var mu sync.Mutex
	verdicts := make(map[stet.ID]int, *records) // how often each was carried out
	var asked, said atomic.Int64
	observer := stet.ObserverFunc(func(_ context.Context, ev stet.Event) {
		if ev.Kind == stet.EventResolved && ev.Err == nil {
			mu.Lock()
			defer mu.Unlock()
			verdicts[ev.ID]++
		}
	})
	var wg sync.WaitGroup
	began := time.Now()
	for i := range processes {
		store := first
		if i > 0 {
			store = open()
		}
		e, err := stet.New(store, stet.Options{SweepEvery: -1, StoreTimeout: time.Minute, Observer: observer})
		must(t, err)
		defer e.Close()
		r, err := reconcile.New(e, reconcile.Options{Rate: -1, Concurrency: 16, ErrorLog: slog.New(slog.NewTextHandler(t.Output(), nil)),
			Verify: func(_ context.Context, st stet.Status) (stet.Verdict, error) {
				asked.Add(1)
				return verdict(st.Record.ID), nil
			}})
		must(t, err)
		wg.Go(func() {
			for try := 1; ; try++ { // a loaded machine may need a second pass
				report, err := r.Pass(ctx)
				said.Add(int64(report.Completed + report.Failed + report.Again))
				if err != nil || report.Errors > 0 && try == 5 {
					t.Errorf("%+v, %v", report, err)
				}
				if report.Errors == 0 {
					return
				}
			}
		})
	}
	wg.Wait()
	took := time.Since(began)
	n := map[stet.State]int{}
	for i := range *records {
		id := number(i)
		rec, err := first.Read(ctx, id)
		must(t, err)
		n[rec.State]++
		want := verdict(id).State()
		if rec.State != want || rec.Attempt != 1 {
			t.Fatalf("%d is %v, attempt %d; want %v", i, rec.State, rec.Attempt, want)
		}
		if want == stet.Completed && rec.Gone || (want == stet.Unknown) != (verdicts[id] == 0) {
			t.Fatalf("%d was resolved %d times", i, verdicts[id])
		}
	}
	repeated := 0
	for _, n := range verdicts {
		repeated += n - 1
	}
	t.Logf("%d records in %v by %d processes: %v; asked %d times, %d verdicts carried out, of which %d found the same one standing",
		*records, took.Round(time.Millisecond), processes, n, asked.Load(), said.Load(), repeated)
}

// verdict answers in three ways, always the same for one record.
func verdict(id stet.ID) stet.Verdict {
	switch id[31] % 3 {
	case 0:
		result, _ := json.Marshal(id.String())
		return stet.ItHappened(stet.Outcome{State: stet.Completed, Result: result})
	case 1:
		return stet.ItDidNotHappen()
	default:
		return stet.CannotKnow()
	}
}

func number(i int) stet.ID { return stet.Digest("", "shop", fmt.Sprint(i)) }

// park fills a store with records whose runs have died.
func park(t *testing.T, s stet.Store, n int) {
	t.Helper()
	next := make(chan int)
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			for i := range next {
				var owner stet.Owner
				binary.BigEndian.PutUint64(owner[:], uint64(i)+1)
				req := stet.ClaimRequest{ID: number(i), Scope: stet.DigestScope("", "shop"), Owner: owner, Lease: time.Microsecond}
				if _, err := s.Claim(ctx, req); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	wg.Wait()
	sweeper, ok := s.(stet.Sweeper)
	if !ok {
		t.Fatalf("%T does not sweep", s)
	}
	for parked := 0; parked < n; {
		swept, err := sweeper.Sweep(ctx, 1000)
		must(t, err)
		parked += swept.Parked
	}
}
