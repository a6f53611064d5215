package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/stet-go/stet/bench/internal/rounds"
	"github.com/stet-go/stet/store"
)

// spending is what pairs take: of one pair, processor time of the client and of the servers
// in microseconds, and allocations; how long callers wait, in milliseconds; and the rate.
type spending struct{ client, server, allocs, p50, p99, rate float64 }

// spend has so many callers make pairs for a while.
func (b *bench) spend(ctx context.Context, s store.Store, callers int) (it spending, err error) {
	server, err := b.serverCPU(ctx)
	if err != nil {
		return it, err
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	client, began := clientCPU(), time.Now()
	waits, err := waits(ctx, s, callers)
	if err != nil {
		return it, err
	}
	client, wall := clientCPU()-client, time.Since(began)
	runtime.ReadMemStats(&after)
	since, err := b.serverCPU(ctx)
	if err != nil {
		return it, err
	}
	slices.Sort(waits)
	n := float64(len(waits))
	return spending{
		client: float64(client.Microseconds()) / n, server: float64((since - server).Microseconds()) / n,
		allocs: float64(after.Mallocs-before.Mallocs) / n, rate: n / wall.Seconds(),
		p50: waits[len(waits)/2].Seconds() * 1000, p99: waits[len(waits)*99/100].Seconds() * 1000,
	}, nil
}

// tell prints the medians of some rounds.
func tell(all []spending, name func(what string) string) {
	for _, f := range []struct {
		what, unit string
		of         func(spending) float64
	}{
		{"rate", "pairs/s", func(s spending) float64 { return s.rate }},
		{"client_cpu", "µs/pair", func(s spending) float64 { return s.client }},
		{"server_cpu", "µs/pair", func(s spending) float64 { return s.server }},
		{"allocs", "allocations/pair", func(s spending) float64 { return s.allocs }},
		{"p50", "ms", func(s spending) float64 { return s.p50 }},
		{"p99", "ms", func(s spending) float64 { return s.p99 }},
	} {
		var values []float64
		for _, s := range all {
			values = append(values, f.of(s))
		}
		rounds.Figure(name(f.what), rounds.Median(values), f.unit)
	}
}

// waits has so many callers make pairs for a while, and returns how long each pair took.
func waits(ctx context.Context, s store.Store, callers int) ([]time.Duration, error) {
	took, errs := make([][]time.Duration, callers), make([]error, callers)
	began := time.Now()
	var wg sync.WaitGroup
	for i := range callers {
		took[i] = make([]time.Duration, 0, 1<<12)
		wg.Go(func() {
			for last := time.Now(); last.Sub(began) < *each && errs[i] == nil; {
				errs[i] = pair(ctx, s)
				now := time.Now()
				took[i] = append(took[i], now.Sub(last))
				last = now
			}
		})
	}
	wg.Wait()
	return slices.Concat(took...), errors.Join(errs...)
}

// clientCPU is the processor time of this process.
func clientCPU() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u) // it knows no other error than a wrong first argument
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// serverCPU is the processor time of all servers.
func (b *bench) serverCPU(ctx context.Context) (sum time.Duration, err error) {
	for _, server := range b.servers {
		info, err := server.CLI(ctx, "INFO", "cpu")
		if err != nil {
			return 0, err
		}
		for line := range strings.Lines(info) {
			name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
			if name != "used_cpu_sys" && name != "used_cpu_user" {
				continue
			}
			seconds, err := strconv.ParseFloat(value, 64)
			if err != nil {
				return 0, fmt.Errorf("INFO says %q: %w", line, err)
			}
			sum += time.Duration(seconds * float64(time.Second))
		}
	}
	return sum, nil
}
