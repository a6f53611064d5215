package crashtest

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"

	redisclient "github.com/redis/go-redis/v9"

	"github.com/stet-go/stet/internal/crash"
	"github.com/stet-go/stet/store"
)

const answersBefore = 100 // each flush

// FlushRedis removes all records of a Redis that many times, each after many answers to clients. It is in the history.
func (s *Killer) FlushRedis(ctx context.Context, addr string, h *History, answered func() int64, times int) error {
	client := redisclient.NewClient(&redisclient.Options{Addr: addr})
	defer func() { _ = client.Close() }()
	for done := 0; done < times; done++ {
		for enough := answered() + answersBefore; answered() < enough; {
			if crash.Pause(ctx, faultPause/20) != nil {
				return nil
			}
		}
		h.Add(Event{Kind: Flushing})
		if err := client.FlushAll(ctx).Err(); err != nil {
			return fmt.Errorf("flush of Redis: %w", cmp.Or(context.Cause(ctx), err))
		}
		h.Add(Event{Kind: Flushed})
		s.Count(func(t *Tally) { t.Flushes++ })
	}
	return nil
}

// flush is when Redis was flushed.
type flush struct{ from, to int64 }

// inFlight are the promises that a tier does not keep for a claim in flight that Redis has lost.
var inFlight = []string{OneEffect, Acknowledged, Fencing, Leasing, Linear}

// flushed finds out what Redis had of an operation when it was flushed. The operation is at risk if a
// claim of it was sent, and no reply has said before that it is settled. An expired claim is at risk, too.
func (j *judge) flushed(s *subject) {
	begun, settled := int64(math.MaxInt64), int64(math.MaxInt64)
	for _, c := range s.calls {
		if c.in.Verb == verbClaim {
			begun = min(begun, c.from)
		}
		if c.out.Kind == OK && (c.in.Verb == verbSettle || isSettled(c.out.State)) {
			settled = min(settled, c.to)
		}
	}
	s.atRisk = slices.ContainsFunc(j.flushes, func(f flush) bool { return begun <= f.to && f.from < settled })
	switch {
	case s.atRisk:
		j.v.AtRisk++
	case slices.ContainsFunc(j.flushes, func(f flush) bool { return settled <= f.from }):
		j.v.Outlived++
	}
	if len(j.flushes) > 0 {
		s.ofOneClaim()
	}
}

func isSettled(state string) bool {
	return state == store.Completed.String() || state == store.Failed.String()
}

// ofOneClaim gives settled records the fence and the attempt of the claim that settled them. A record that
// Redis has lost is returned with those of its SQL row.
func (s *subject) ofOneClaim() {
	first := make(map[string]Event) // by owner
	for _, c := range s.calls {
		if c.in.Verb == verbClaim && c.out.Kind == OK && c.out.Owner == c.in.Owner && c.out.State == running {
			first[c.in.Owner] = c.out
		}
	}
	same := func(ev *Event) {
		if !isSettled(ev.State) || ev.Owner == "" {
			return
		}
		if _, ok := first[ev.Owner]; !ok {
			first[ev.Owner] = *ev
		}
		ev.Fence, ev.Attempt = first[ev.Owner].Fence, first[ev.Owner].Attempt
	}
	for i := range s.calls {
		same(&s.calls[i].out)
	}
	if s.looked != nil {
		same(s.looked)
	}
}
