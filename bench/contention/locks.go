package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"maps"
	"runtime"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/pprof/profile"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/bench/internal/rounds"
	"github.com/stet-go/stet/store/memory"
)

const (
	ours   = "github.com/stet-go/stet"
	itself = ours + "/bench/"
)

// locks prints what the locks of ours cost under load: as many callers as there may be
// threads, each with one operation after the other, of which every second is a replay, over
// the memory store. Nothing else takes any time, so it is the most that they can cost.
//
// Of the time that callers wait little can be said where there are more threads than
// processors: a thread that holds a lock may not be run for milliseconds.
func locks(ctx context.Context, procs int) error {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(procs))
	var cpu bytes.Buffer
	if err := pprof.StartCPUProfile(&cpu); err != nil {
		return err
	}
	operations, took, err := once(ctx, procs)
	pprof.StopCPUProfile()
	if err != nil {
		return err
	}
	rounds.Figure(fmt.Sprintf("contention_locks_%d_rate", procs), float64(operations)/took.Seconds(), "operations/s")
	samples, total, err := read(&cpu, 0)
	if err != nil {
		return err
	}
	tell("cpu", procs, "of the samples", samples, float64(total))

	before, err := waits()
	if err != nil {
		return err
	}
	runtime.SetMutexProfileFraction(1)
	runtime.SetBlockProfileRate(1)
	operations, took, err = once(ctx, procs)
	runtime.SetMutexProfileFraction(0)
	runtime.SetBlockProfileRate(0)
	if err != nil {
		return err
	}
	after, err := waits()
	if err != nil {
		return err
	}
	for _, kind := range []string{"mutex", "block"} {
		for i, of := range []struct {
			name, what string
			total      float64
		}{{"waits", "of the operations", float64(operations)}, {"time", "of the callers' time", float64(took) * float64(procs)}} {
			shares := make(map[string]int64)
			for lock, n := range after[kind][i] {
				shares[lock] = n - before[kind][i][lock]
			}
			tell(kind+"_"+of.name, procs, of.what, shares, of.total)
		}
	}
	return nil
}

// tell prints the share of each lock, and as a figure the greatest.
func tell(name string, procs int, of string, all map[string]int64, total float64) {
	worst := 0.0
	for _, lock := range slices.SortedFunc(maps.Keys(all), func(a, b string) int { return cmp.Compare(all[b], all[a]) }) {
		share := 100 * float64(all[lock]) / total
		worst = max(worst, share)
		fmt.Printf("%s, GOMAXPROCS %d: %-18s %6.2f %% %s\n", name, procs, lock, share, of)
	}
	rounds.Figure(fmt.Sprintf("contention_%s_%d_worst", name, procs), worst, "%")
}

// once runs a load on an engine of its own.
func once(ctx context.Context, procs int) (operations int64, took time.Duration, err error) {
	engine, err := stet.New(memory.New(memory.Options{MaxRecords: 50_000_000}), stet.Options{})
	if err != nil {
		return 0, 0, err
	}
	defer engine.Close()
	runtime.GC()
	return load(ctx, engine, procs)
}

// load runs operations for a while, and checks that each ran once.
func load(ctx context.Context, engine *stet.Engine, callers int) (operations int64, took time.Duration, err error) {
	var wg sync.WaitGroup
	var runs, replays atomic.Int64
	errs := make([]error, callers)
	began := time.Now()
	for i := range callers {
		wg.Go(func() {
			for n := 0; time.Since(began) < *each && ctx.Err() == nil && errs[i] == nil; n++ {
				op := stet.Op{Scope: "s", Key: strconv.Itoa(i) + "-" + strconv.Itoa(n)}
				for _, again := range []bool{false, true} {
					res, err := stet.Do(ctx, engine, op, func(context.Context) (int, error) {
						runs.Add(1)
						return n, nil
					})
					if err == nil && (res.Value != n || res.Replayed != again) {
						err = fmt.Errorf("got %d, replayed %v; want %d, %v", res.Value, res.Replayed, n, again)
					}
					if err != nil {
						errs[i] = err
						return
					}
				}
				replays.Add(1)
			}
		})
	}
	wg.Wait()
	took = time.Since(began)
	for _, err := range errs {
		if err != nil {
			return 0, 0, err
		}
	}
	if runs.Load() != replays.Load() {
		return 0, 0, fmt.Errorf("%d executions of %d operations", runs.Load(), replays.Load())
	}
	return runs.Load() + replays.Load(), took, nil
}

// waits returns how often, and for how many nanoseconds, callers have waited for each lock
// of ours since the program began, by the profiles that say so.
func waits() (map[string][2]map[string]int64, error) {
	all := make(map[string][2]map[string]int64)
	for _, kind := range []string{"mutex", "block"} {
		var both [2]map[string]int64
		for i := range both {
			var b bytes.Buffer
			err := pprof.Lookup(kind).WriteTo(&b, 0)
			if err == nil {
				both[i], _, err = read(&b, i)
			}
			if err != nil {
				return nil, err
			}
		}
		all[kind] = both
	}
	return all, nil
}

// read adds up one value of the samples of a profile: those of each lock of ours, and all.
func read(b *bytes.Buffer, value int) (byLock map[string]int64, total int64, err error) {
	p, err := profile.Parse(b)
	if err != nil {
		return nil, 0, err
	}
	byLock = make(map[string]int64)
	for _, s := range p.Sample {
		total += s.Value[value]
		if lock := lockOf(s); lock != "" {
			byLock[lock] += s.Value[value]
		}
	}
	return byLock, total, nil
}

// lockOf returns whose lock a sample is of, "" for none of ours: the type of the innermost
// method of ours, which has called sync.
func lockOf(s *profile.Sample) string {
	inSync := false
	for _, l := range s.Location {
		for _, line := range l.Line {
			name := line.Function.Name
			switch {
			case strings.HasPrefix(name, "sync.(*Mutex)"), strings.HasPrefix(name, "internal/sync.(*Mutex)"):
				inSync = true
			case strings.HasPrefix(name, "sync."), strings.HasPrefix(name, "internal/sync."), strings.HasPrefix(name, "internal/runtime"), strings.HasPrefix(name, "runtime."):
			case inSync && strings.HasPrefix(name, ours) && !strings.HasPrefix(name, itself):
				name = name[strings.LastIndexByte(name, '/')+1:]
				if end := strings.LastIndex(name, ")."); end >= 0 {
					name = name[:end+1]
				}
				return name
			default:
				return ""
			}
		}
	}
	return ""
}
