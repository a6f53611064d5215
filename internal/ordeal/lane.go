package ordeal

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/stet-go/stet/internal/child"
	"github.com/stet-go/stet/internal/fault"
)

const (
	maxVisit     = 3
	pointTimeout = 3 * time.Second // for a process to come by its point
	stopGrace    = 5 * time.Second
	tightPool    = 2 // connections of every third process
)

// visit is where a process is to die.
type visit struct {
	point fault.Point
	n     int
}

// plan hands out visits: each once in a shuffled order, and then again.
type plan struct {
	mu   sync.Mutex
	rng  *rand.Rand
	all  []visit
	next int
	left int // kills
	// waste are processes that may end without having been killed before the
	// storm is given up.
	waste int
}

func newPlan(cfg Config) *plan {
	p := &plan{rng: rand.New(rand.NewPCG(cfg.Seed, 0)), left: cfg.Kills}
	for _, point := range Points(cfg.Place.Kind, cfg.Mode) {
		for n := range maxVisit {
			p.all = append(p.all, visit{point, n + 1})
		}
	}
	p.waste = 4*cfg.Kills + len(p.all)
	return p
}

// take returns the next visit; false when there were enough kills.
func (p *plan) take() (visit, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.left <= 0 {
		return visit{}, false
	}
	p.left--
	if p.next == 0 {
		p.rng.Shuffle(len(p.all), func(i, j int) { p.all[i], p.all[j] = p.all[j], p.all[i] })
	}
	v := p.all[p.next]
	p.next = (p.next + 1) % len(p.all)
	return v, true
}

// giveBack says that a visit came to no kill.
func (p *plan) giveBack(why error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.left++
	if p.waste--; p.waste < 0 {
		return fmt.Errorf("too many processes ended without being killed: %w", why)
	}
	return nil
}

// lane is a place for one process at a time, always at the same address.
type lane struct {
	*storm
	addr string

	mu   sync.Mutex
	proc *child.Process // nil while there is none
}

func (s *storm) order(v visit) order {
	o := order{Dir: s.dir, Process: int(s.processes.Add(1)), Place: s.place, Mode: s.cfg.Mode, Point: v.point, Visit: v.n}
	if s.cfg.Mode != Verify { // whose claims must not be left to their successors
		o.Hasty = o.Process%3 == 1 && v.point != ""
		if o.Process%3 == 0 {
			o.Place.Pool = tightPool
		}
	}
	return o
}

// start starts a process. An error that wraps child.ErrExited says that it ended
// while it was starting.
func (l *lane) start(ctx context.Context, o order) error {
	o.Addr = l.addr
	p, err := o.start(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.proc = p
	return err
}

func (l *lane) process() *child.Process {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.proc
}

// end kills the process, if there is one.
func (l *lane) end() {
	if p := l.process(); p != nil {
		p.Kill()
	}
}

// stop has the process end by itself, if there is one.
func (l *lane) stop() {
	if p := l.process(); p != nil {
		p.Stop(stopGrace)
	}
}

// cycles starts one process after the other, each with orders to die.
func (l *lane) cycles(ctx context.Context, plan *plan) error {
	for {
		v, ok := plan.take()
		if !ok {
			return nil
		}
		err := l.start(ctx, l.order(v))
		p := l.process()
		if err != nil && !errors.Is(err, child.ErrExited) {
			return err
		}
		killed, err := l.await(ctx, p, err)
		if err != nil {
			return err
		}
		if killed {
			l.count(func(r *Report) { r.Kills++; r.At[v.point]++ })
			continue
		}
		if err := plan.giveBack(fmt.Errorf("%s, visit %d", v.point, v.n)); err != nil {
			return err
		}
	}
}

// linger keeps a process without orders to die, until the storm is over: there
// must be somebody for the faults to befall.
func (l *lane) linger(ctx context.Context, over <-chan struct{}) error {
	for ctx.Err() == nil {
		select {
		case <-over:
			return nil
		default:
		}
		err := l.start(ctx, l.order(visit{}))
		if errors.Is(err, child.ErrExited) && l.mayFailToStart() {
			l.count(func(r *Report) { r.Failed++ })
			pause(ctx, serverPause/4)
			continue
		}
		if err != nil {
			return err
		}
		select {
		case <-over:
			return nil
		case <-ctx.Done():
			l.end()
		case <-l.process().Exited():
			return fmt.Errorf("a service without orders to die ended by itself: %s", l.process().End())
		}
	}
	return nil
}

// await waits for a process to die at its point.
func (l *lane) await(ctx context.Context, p *child.Process, startErr error) (killed bool, err error) {
	timeout := time.NewTimer(pointTimeout)
	defer timeout.Stop()
	select {
	case <-p.Exited():
		switch {
		case p.Killed():
			return true, nil
		case l.mayFailToStart() && startErr != nil:
			l.count(func(r *Report) { r.Failed++ })
			pause(ctx, serverPause/4)
			return false, nil
		default:
			return false, fmt.Errorf("a service ended by itself: %s", p.End())
		}
	case <-timeout.C:
		p.Kill()
		l.count(func(r *Report) { r.Missed++ })
		return false, nil
	case <-ctx.Done():
		p.Kill()
		return false, nil
	}
}

// mayFailToStart reports whether the store may be away when a process starts.
func (s *storm) mayFailToStart() bool {
	return s.cfg.ServerKills+s.cfg.NetworkFaults+s.cfg.Fills > 0
}

// count changes the report.
func (s *storm) count(f func(*Report)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(s.rep)
	if f := s.cfg.Progress; s.rep.Kills%20 == 0 {
		f(fmt.Sprintf("%s: %d of %d kills, %d payments", s.cfg.Name(), s.rep.Kills, s.cfg.Kills, s.clients.count()))
	}
}
