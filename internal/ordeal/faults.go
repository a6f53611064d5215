package ordeal

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"syscall"
	"time"
)

const (
	serverPause  = 300 * time.Millisecond // at least, between kills of the server: for it to recover, and for payments to go through
	faultPause   = 200 * time.Millisecond // about, between faults of the same kind
	longestStop  = 3 * serviceLease
	longestFault = 300 * time.Millisecond
	longestFill  = 300 * time.Millisecond
)

// around is a random time around d.
func around(rng *rand.Rand, d time.Duration) time.Duration {
	return d/2 + time.Duration(rng.Int64N(int64(d)))
}

// killServer kills the database server, again and again, and starts it.
func (s *storm) killServer(ctx context.Context, rng *rand.Rand) error {
	for done := 0; done < s.cfg.ServerKills && ctx.Err() == nil; done++ {
		pause(ctx, around(rng, 2*serverPause))
		if err := errors.Join(s.cfg.Server.Kill(), s.cfg.Server.Start(ctx)); err != nil {
			return fmt.Errorf("the server was not restarted: %w", err)
		}
		s.count(func(r *Report) { r.ServerKills++ })
	}
	return nil
}

// stopServices stops processes for longer than their lease.
func (s *storm) stopServices(ctx context.Context, rng *rand.Rand) error {
	for done := 0; done < s.cfg.Stops && ctx.Err() == nil; {
		pause(ctx, around(rng, faultPause))
		p := s.lanes[rng.IntN(len(s.lanes))].process()
		if p == nil || p.Signal(syscall.SIGSTOP) != nil {
			continue // it has ended, or has not begun
		}
		pause(ctx, serviceLease+time.Duration(rng.Int64N(int64(longestStop-serviceLease))))
		if p.Signal(syscall.SIGCONT) == nil {
			s.count(func(r *Report) { r.Stops++ })
			done++
		}
	}
	return nil
}

// failNetwork has the network between services and server fail in all the ways
// that it knows.
func (s *storm) failNetwork(ctx context.Context, rng *rand.Rand) error {
	for i := 0; i < s.cfg.NetworkFaults && ctx.Err() == nil; i++ {
		pause(ctx, around(rng, faultPause))
		t := networkFaults[i%len(networkFaults)]
		if err := s.network.begin(t, rng); err != nil {
			return err
		}
		pause(ctx, around(rng, longestFault))
		if err := s.network.end(t); err != nil {
			return err
		}
		s.count(func(r *Report) { r.Network[t.name]++ })
	}
	return nil
}

// fillDisk fills the disk under the store and makes room again.
func (s *storm) fillDisk(ctx context.Context, rng *rand.Rand) error {
	for done := 0; done < s.cfg.Fills && ctx.Err() == nil; done++ {
		pause(ctx, around(rng, faultPause))
		if err := s.disk.fill(); err != nil {
			return err
		}
		pause(ctx, around(rng, longestFill))
		if err := s.disk.free(); err != nil {
			return err
		}
		s.count(func(r *Report) { r.Fills++ })
	}
	return nil
}
