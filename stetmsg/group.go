package stetmsg

import (
	"context"
	"sync"

	"github.com/stet-go/stet"
)

// minLanes is how many groups are on their way at a time at least: one is at the
// handlers while the other commits.
const minLanes = 2

// groups collects messages that wait while others are handled. A message does not wait for
// others to join.
type groups[M any] struct {
	size  int
	lanes int // groups on their way at a time
	run   func(ctx context.Context, ops []stet.Op, ms []M) []*stet.Lease

	mu      sync.Mutex
	waiting []*member[M]
	busy    int // lanes
}

// member is a message that must be handled in a group.
type member[M any] struct {
	op   stet.Op
	m    M
	turn chan []*member[M] // the group that it is to lead; closed when its own has ended
	run  *stet.Lease       // then
}

// join handles m together with others, and returns its run; nil if it must be
// handled alone, after which done must be called.
func (g *groups[M]) join(ctx context.Context, op stet.Op, m M) (run *stet.Lease, done func()) {
	me := &member[M]{op: op, m: m, turn: make(chan []*member[M], 1)}
	all := []*member[M]{me}
	g.mu.Lock()
	if g.busy < g.lanes {
		g.busy++
		g.mu.Unlock()
	} else {
		g.waiting = append(g.waiting, me)
		g.mu.Unlock()
		var leads bool
		if all, leads = <-me.turn; !leads { // a member that is busy leads later: each run is bounded
			return me.run, func() {}
		}
	}
	if len(all) == 1 {
		return nil, g.pass
	}
	g.lead(ctx, all)
	return me.run, func() {}
}

// lead handles a group.
func (g *groups[M]) lead(ctx context.Context, all []*member[M]) {
	defer g.pass()
	defer func() { // also when a handler calls runtime.Goexit
		for _, m := range all {
			close(m.turn)
		}
	}()
	ops, ms := make([]stet.Op, len(all)), make([]M, len(all))
	for i, m := range all {
		ops[i], ms[i] = m.op, m.m
	}
	for i, run := range g.run(ctx, ops, ms) {
		all[i].run = run
	}
}

// pass gives the lane to the waiting messages, led by one of them.
func (g *groups[M]) pass() {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := min(len(g.waiting), g.size)
	if n == 0 {
		g.busy--
		return
	}
	next := g.waiting[:n:n]
	g.waiting = append([]*member[M](nil), g.waiting[n:]...)
	next[0].turn <- next
}
