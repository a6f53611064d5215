package crashtest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"syscall"
	"time"

	"github.com/stet-go/stet/internal/crash"
)

const (
	serverPause  = 300 * time.Millisecond // at least, between kills of the server: for it to recover, and for payments to go through
	faultPause   = 200 * time.Millisecond // about, between faults of the same kind
	longestFault = 300 * time.Millisecond
)

// Server is a database server that can be killed.
type Server interface {
	Addr() string // host:port
	Kill() error
	Start(context.Context) error
	Close() error
}

// around is a random time around d.
func around(rng *rand.Rand, d time.Duration) time.Duration {
	return d/2 + time.Duration(rng.Int64N(int64(d)))
}

// KillServer kills a server that many times, and starts it.
func (s *Killer) KillServer(ctx context.Context, rng *rand.Rand, server Server, times int) error {
	for done := 0; done < times && ctx.Err() == nil; done++ {
		_ = crash.Pause(ctx, around(rng, 2*serverPause))
		if err := errors.Join(server.Kill(), server.Start(ctx)); err != nil {
			return fmt.Errorf("the server was not restarted: %w", err)
		}
		s.Count(func(t *Tally) { t.Restarts++ })
	}
	return nil
}

// StopSome stops processes that many times for longer than their lease.
func (s *Killer) StopSome(ctx context.Context, rng *rand.Rand, lease time.Duration, times int) error {
	for done := 0; done < times && ctx.Err() == nil; {
		_ = crash.Pause(ctx, around(rng, faultPause))
		p := s.Lanes[rng.IntN(len(s.Lanes))].Process()
		if p == nil || p.Signal(syscall.SIGSTOP) != nil {
			continue // it has ended, or has not begun
		}
		_ = crash.Pause(ctx, lease+time.Duration(rng.Int64N(int64(2*lease))))
		if p.Signal(syscall.SIGCONT) == nil {
			s.Count(func(t *Tally) { t.Stops++ })
			done++
		}
	}
	return nil
}

// FailNetwork has a network fail in all the ways that it knows, that many times.
func (s *Killer) FailNetwork(ctx context.Context, rng *rand.Rand, n *Network, times int) error {
	for i := 0; i < times && ctx.Err() == nil; i++ {
		_ = crash.Pause(ctx, around(rng, faultPause))
		f := networkFaults[i%len(networkFaults)]
		if err := n.begin(f, rng); err != nil {
			return err
		}
		_ = crash.Pause(ctx, around(rng, longestFault))
		if err := n.end(f); err != nil {
			return err
		}
		s.Count(func(t *Tally) { t.Network[f.name]++ })
	}
	return nil
}

// FillDisk fills a disk that many times and makes room again.
func (s *Killer) FillDisk(ctx context.Context, rng *rand.Rand, d *Disk, times int) error {
	for done := 0; done < times && ctx.Err() == nil; done++ {
		_ = crash.Pause(ctx, around(rng, faultPause))
		if err := d.fill(); err != nil {
			return err
		}
		_ = crash.Pause(ctx, around(rng, longestFault))
		if err := d.free(); err != nil {
			return err
		}
		s.Count(func(t *Tally) { t.Fills++ })
	}
	return nil
}
