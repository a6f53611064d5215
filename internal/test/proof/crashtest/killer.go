package crashtest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stet-go/stet/internal/child"
	"github.com/stet-go/stet/internal/crash"
	"github.com/stet-go/stet/internal/fault"
)

const (
	reachTimeout = 3 * time.Second  // for a process to come by its point
	startTimeout = 90 * time.Second // for one whose server is away
	startPause   = 75 * time.Millisecond
	stopGrace    = 30 * time.Second
)

// Plan gives out visits: each once in a shuffled order, and then again, until
// there were enough kills.
type Plan struct {
	mu    sync.Mutex
	rng   *rand.Rand
	all   []Visit
	draw  func(*rand.Rand, *Visit)
	next  int
	left  int // kills
	waste int // processes that may end without having been killed before the crash test is given up
}

// NewPlan plans kills. draw, unless it is nil, may change a visit that is about to
// be given out.
func NewPlan(rng *rand.Rand, kills int, all []Visit, draw func(*rand.Rand, *Visit)) *Plan {
	return &Plan{rng: rng, all: all, draw: draw, left: kills, waste: 4*kills + len(all)}
}

// take returns the next visit, or none when there were enough kills.
func (p *Plan) take() (v Visit, doomed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.left <= 0 {
		return v, false
	}
	p.left--
	if p.next == 0 {
		p.rng.Shuffle(len(p.all), func(i, j int) { p.all[i], p.all[j] = p.all[j], p.all[i] })
	}
	v = p.all[p.next]
	p.next = (p.next + 1) % len(p.all)
	if p.draw != nil {
		p.draw(p.rng, &v)
	}
	return v, true
}

// giveBack says that a visit came to no kill.
func (p *Plan) giveBack(v Visit) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.left++
	if p.waste--; p.waste < 0 {
		return fmt.Errorf("too many processes ended without being killed, the last one at %s, visit %d", v.Point, v.N)
	}
	return nil
}

// Lane is a place for one process after the other.
type Lane struct {
	crash.Lane
	Role string
	Addr string // always the same; "" if its processes do not listen
	Plan *Plan  // may be shared
}

// Killer kills the processes in its lanes, one after the other.
type Killer struct {
	Lanes []*Lane
	// Command is the process number n, from 1, for a lane; without a point in v it is
	// to live.
	Command func(l *Lane, v Visit, n int) (child.Command, error)
	// Reach is how long a process has to come by its point. Default 3 s.
	Reach func(Visit) time.Duration
	// AtPoints: only those count as killed who died at their points.
	AtPoints bool
	// Flaky: a server may be away when a process starts.
	Flaky bool
	// Restart restarts a server, Restarts times, between the kills.
	Restart  func(context.Context) error
	Restarts int
	// Killed is called after each kill with the number of kills. May be nil.
	Killed func(n int) error
	// Progress gets a line about every 20th kill, which begins with Name. May be nil.
	Progress func(string)
	Name     string

	processes, outages atomic.Int64

	mu    sync.Mutex
	tally Tally
	turn  sync.Mutex // of Killed
	spent chan struct{}
	kills int // wanted
}

// Count changes the tally.
func (s *Killer) Count(f func(*Tally)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(&s.tally)
}

// While kills one process after the other in each lane while do runs, and then starts a process
// that stays alive until do returns. Then it ends all of them.
func (s *Killer) While(ctx context.Context, do func(context.Context) error) error {
	s.begin()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	calm := make(chan struct{})
	var lanes sync.WaitGroup
	for _, l := range s.Lanes {
		lanes.Go(func() {
			if err := s.hold(ctx, l, calm); err != nil {
				cancel(err)
			}
		})
	}
	if err := do(ctx); err != nil {
		cancel(err)
	}
	close(calm)
	lanes.Wait()
	return context.Cause(ctx)
}

func (s *Killer) begin() {
	s.spent, s.tally = make(chan struct{}), newTally()
	plans := make(map[*Plan]bool)
	for _, l := range s.Lanes {
		if !plans[l.Plan] {
			s.kills += l.Plan.left
		}
		plans[l.Plan] = true
	}
	if s.kills == 0 {
		close(s.spent)
	}
}

// Befall causes the faults concurrently. It returns when they have happened and enough
// processes were killed, or cancels ctx when one has failed.
func (s *Killer) Befall(ctx context.Context, faults ...func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var all sync.WaitGroup
	for _, f := range faults {
		all.Go(func() {
			if err := f(ctx); err != nil {
				cancel(err)
			}
		})
	}
	all.Wait()
	select {
	case <-s.spent:
	case <-ctx.Done():
	}
	return context.Cause(ctx)
}

// errEnded is the error for a process that ended without a kill.
var errEnded = errors.New("a process ended by itself")

// hold keeps one lane.
func (s *Killer) hold(ctx context.Context, l *Lane, calm <-chan struct{}) error {
	for ctx.Err() == nil {
		outages := s.outages.Load()
		v, doomed := l.Plan.take()
		at, err := s.one(ctx, l, v, calm)
		select {
		case <-calm:
			return err
		default:
		}
		switch {
		case ctx.Err() != nil:
			return nil // While tells why
		case errors.Is(err, errEnded) && (outages%2 == 1 || s.outages.Load() != outages): // it found a server that was not ready for it
			err = nil
		case err == nil && (at != Anywhere || !s.AtPoints):
			if err = s.died(ctx, at); err != nil {
				return err
			}
			continue
		case err == nil:
			s.Count(func(t *Tally) { t.Missed++ })
		}
		if err == nil && doomed {
			err = l.Plan.giveBack(v)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// one starts a process and returns where it died.
func (s *Killer) one(ctx context.Context, l *Lane, v Visit, calm <-chan struct{}) (fault.Point, error) {
	if err := s.start(ctx, l, v); err != nil {
		return "", err
	}
	p := l.Process()
	var late <-chan time.Time
	if v.Point != "" {
		t := time.NewTimer(s.reach(v))
		defer t.Stop()
		late = t.C
	}
	select {
	case <-p.Exited():
		if v.Point == "" || !p.Killed() {
			return "", fmt.Errorf("%w: %s", errEnded, p.End())
		}
		return v.died(), nil
	case <-late:
		p.Kill()
		return Anywhere, nil
	case <-calm:
		p.Stop(stopGrace)
	case <-ctx.Done():
		p.Kill()
	}
	return "", nil
}

// reach is how long a process has for v: up to four times as long where more have
// missed their points than have died, as they do on a slow machine.
func (s *Killer) reach(v Visit) time.Duration {
	d := reachTimeout
	if s.Reach != nil {
		d = s.Reach(v)
	}
	t := s.Tally()
	d *= time.Duration(1 + min(t.Missed/(t.Kills+1), 3))
	if v.Stop > 0 {
		d += v.Stop + 2*afterlife
	}
	return d
}

// start starts a process; if it found no server, which may happen, it starts
// another.
func (s *Killer) start(ctx context.Context, l *Lane, v Visit) error {
	for deadline := time.Now().Add(startTimeout); ; {
		c, err := s.Command(l, v, int(s.processes.Add(1)))
		if err == nil {
			err = l.Start(ctx, c)
		}
		if !s.Flaky || !errors.Is(err, child.ErrExited) || time.Now().After(deadline) {
			return err
		}
		s.Count(func(t *Tally) { t.Failed++ })
		if crash.Pause(ctx, startPause) != nil {
			return err
		}
	}
}

// died counts a kill.
func (s *Killer) died(ctx context.Context, at fault.Point) (err error) {
	s.turn.Lock()
	defer s.turn.Unlock()
	n := 0
	s.Count(func(t *Tally) {
		t.Kills++
		t.At[at]++
		n = t.Kills
	})
	if s.Progress != nil && n%20 == 0 {
		s.Progress(fmt.Sprintf("%s: %d of %d kills, %d restarts", s.Name, n, s.kills, s.Tally().Restarts))
	}
	if s.Killed != nil {
		err = s.Killed(n)
	}
	if done := s.Tally().Restarts; err == nil && done < s.Restarts && n >= s.kills*(done+1)/(s.Restarts+1) {
		err = s.restart(ctx)
	}
	if n == s.kills {
		close(s.spent)
	}
	return err
}

// restart has the server go and come back. Processes may end by themselves
// in the meantime.
func (s *Killer) restart(ctx context.Context) error {
	s.outages.Add(1)
	defer s.outages.Add(1)
	if err := s.Restart(ctx); err != nil {
		return fmt.Errorf("the server was not restarted: %w", err)
	}
	s.Count(func(t *Tally) { t.Restarts++ })
	return nil
}

// Moved grows with all that happens to the processes of a crash test, and to the servers they
// need.
func (s *Killer) Moved() int {
	t := s.Tally()
	return t.Kills + t.Missed + t.Failed + t.Restarts + t.Stops + t.Fills + t.Flushes + t.NetworkFaults()
}

// Tally counts the faults of the processes of a crash test, and of their servers.
type Tally struct {
	Kills    int                 // of processes, that were to be killed
	At       map[fault.Point]int // the same, by point
	Missed   int                 // processes that did not come by their point in time, and do not count
	Failed   int                 // processes that could not start, as a server was away
	Restarts int                 // of servers
	Stops    int                 // processes stopped from outside past their lease, and resumed
	Fills    int                 // times that the disk was full
	Flushes  int                 // of Redis
	Network  map[string]int      // faults of the network, by kind
}

func newTally() Tally { return Tally{At: make(map[fault.Point]int), Network: make(map[string]int)} }

// Tally returns the counts so far.
func (s *Killer) Tally() Tally {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := newTally()
	t.add(s.tally)
	return t
}

func (t *Tally) add(o Tally) {
	for p, n := range o.At {
		t.At[p] += n
	}
	for f, n := range o.Network {
		t.Network[f] += n
	}
	t.Kills += o.Kills
	t.Missed += o.Missed
	t.Failed += o.Failed
	t.Restarts += o.Restarts
	t.Stops += o.Stops
	t.Fills += o.Fills
	t.Flushes += o.Flushes
}

// AtPoints is how many died at a fault point.
func (t Tally) AtPoints() (n int) {
	for at, k := range t.At {
		if at != Anywhere && at != Frozen {
			n += k
		}
	}
	return n
}
