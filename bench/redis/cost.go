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

// cost prints what a pair takes besides time: processor time of the client and of the
// server, allocations, and how long its callers wait.
func (b *bench) cost(ctx context.Context, s store.Store, callers int, name func(what string) string) error {
	server, err := b.serverCPU(ctx)
	if err != nil {
		return err
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	client := clientCPU()
	waits, err := waits(ctx, s, callers)
	if err != nil {
		return err
	}
	client = clientCPU() - client
	runtime.ReadMemStats(&after)
	since, err := b.serverCPU(ctx)
	if err != nil {
		return err
	}
	n := float64(len(waits))
	rounds.Figure(name("client_cpu"), float64(client.Microseconds())/n, "µs/pair")
	rounds.Figure(name("server_cpu"), float64((since-server).Microseconds())/n, "µs/pair")
	rounds.Figure(name("allocs"), float64(after.Mallocs-before.Mallocs)/n, "allocations/pair")
	slices.Sort(waits)
	rounds.Figure(name("p50"), waits[len(waits)/2].Seconds()*1000, "ms")
	rounds.Figure(name("p99"), waits[len(waits)*99/100].Seconds()*1000, "ms")
	return nil
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

// serverCPU is the processor time of the server.
func (b *bench) serverCPU(ctx context.Context) (sum time.Duration, err error) {
	info, err := b.server.CLI(ctx, "INFO", "cpu")
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
	return sum, nil
}
