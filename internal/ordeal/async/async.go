// Package async kills the processes that accept operations and those that run
// them, again and again, restarts what carries the operations from the ones to the
// others, and compares what clients were told, what is stored, and what has
// happened.
package async

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stet-go/stet/internal/child"
	"github.com/stet-go/stet/internal/fault"
	"github.com/stet-go/stet/internal/rig"
)

// Config says what to run.
type Config struct {
	Flavour  string // one of Flavours
	Kills    int    // of processes
	Restarts int    // of the broker, or of PostgreSQL where River is the queue
	Seed     uint64
	Keep     string       // a directory to leave the ledger, SQLite's file and the logs in; "": they are removed
	Progress func(string) // told now and then; may be nil
}

// Report is what came of it.
type Report struct {
	Operations int
	Kills      int
	At         map[fault.Point]int // where processes killed themselves; the others were killed wherever they were
	Stops      int                 // of workers, for longer than their leases
	Restarts   int
	Completed  int // records
	Cancelled  int // records
	Unknown    int // records: a step in doubt, which must not be repeated
	Effects    int
	Attempts   int // runs that came to have an effect, and those after them
	Told       int // answers that nobody knows the outcome, which may have been resolved since
	Verified   int // dead runs that a verifier was asked about
	Violations []string
}

const (
	reachTimeout = 8 * time.Second // for a child to come by its point; then it is killed where it is
	drainTimeout = 5 * time.Minute
	maxVisit     = 5
	oneInStops   = 6  // processes that work
	startTries   = 60 // of a child, while a server is being restarted
)

// storm is one run.
type storm struct {
	cfg     Config
	f       flavour
	servers *servers
	clients *clients
	slots   []*slot
	ended   chan struct{} // a child was killed

	restarts atomic.Int64 // begun and ended, of what carries the work

	mu     sync.Mutex
	rng    *rand.Rand
	left   map[string]int           // kills of a role
	points map[string][]fault.Point // of a role, the next one first
	rep    Report
}

// slot is a place for one process after the other.
type slot struct {
	role string
	addr string
}

// Run runs it on servers of r.
func Run(ctx context.Context, r *rig.Rig, cfg Config) (rep Report, err error) {
	s, err := newStorm(ctx, r, cfg)
	if err != nil {
		return rep, err
	}
	defer func() { err = errors.Join(err, s.servers.close()) }()
	defer s.clients.close()
	return s.end(ctx, s.rage(ctx))
}

// end judges, also if something went wrong: it may say why.
func (s *storm) end(ctx context.Context, err error) (Report, error) {
	if err != nil {
		err = errors.Join(err, s.failures())
	}
	err = errors.Join(err, s.judge(ctx))
	return s.rep, err
}

func newStorm(ctx context.Context, r *rig.Rig, cfg Config) (*storm, error) {
	i := slices.IndexFunc(flavours, func(f flavour) bool { return f.name == cfg.Flavour })
	if i < 0 {
		return nil, fmt.Errorf("the flavour is %q; it must be one of %s", cfg.Flavour, strings.Join(Flavours(), ", "))
	}
	if cfg.Progress == nil {
		cfg.Progress = func(string) {}
	}
	s := &storm{cfg: cfg, f: flavours[i], left: make(map[string]int), rng: rand.New(rand.NewPCG(cfg.Seed, 0)), points: make(map[string][]fault.Point),
		rep: Report{At: make(map[fault.Point]int)}}
	var addrs []string
	for i, role := range s.f.roles {
		s.left[role] = cfg.Kills*(i+1)/len(s.f.roles) - cfg.Kills*i/len(s.f.roles)
		points := s.f.points(role)
		s.rng.Shuffle(len(points), func(i, j int) { points[i], points[j] = points[j], points[i] })
		s.points[role] = points
		for range processes {
			sl := &slot{role: role}
			if role != works {
				addr, err := rig.FreeAddr()
				if err != nil {
					return nil, err
				}
				sl.addr = addr
				addrs = append(addrs, addr)
			}
			s.slots = append(s.slots, sl)
		}
	}
	s.ended = make(chan struct{}, len(s.slots))
	s.clients = newClients(s.f, addrs)
	var err error
	s.servers, err = startServers(ctx, r, s.f, cfg.Keep)
	return s, err
}

// rage lets clients order while processes are killed, until they all have what
// they wanted.
func (s *storm) rage(ctx context.Context) error {
	return s.live(ctx, func(ctx context.Context, cancel context.CancelCauseFunc) {
		enough := make(chan struct{})
		var customers sync.WaitGroup
		customers.Go(func() { s.clients.orderUntil(ctx, enough) })
		s.watch(ctx, cancel)
		close(enough)
		late := time.AfterFunc(drainTimeout, func() { cancel(errors.New("the clients did not get what they wanted in time: " + s.waiting())) })
		defer late.Stop()
		customers.Wait()
	})
}

// live has processes while do runs, and until nothing more is under way.
func (s *storm) live(ctx context.Context, do func(context.Context, context.CancelCauseFunc)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	calm := make(chan struct{}) // closed when the last processes are to end
	var lanes sync.WaitGroup
	for _, sl := range s.slots {
		lanes.Go(func() {
			if err := s.lane(ctx, sl, calm); err != nil {
				cancel(err)
			}
		})
	}
	do(ctx, cancel)
	late := time.AfterFunc(drainTimeout, func() { cancel(errors.New("what was accepted did not come to an end in time")) })
	if ctx.Err() == nil {
		s.settle(ctx)
	}
	late.Stop()
	close(calm)
	lanes.Wait()
	return context.Cause(ctx)
}

// watch counts the kills, and restarts the broker in between, until there are
// enough of both.
func (s *storm) watch(ctx context.Context, cancel context.CancelCauseFunc) {
	for s.rep.Kills < s.cfg.Kills {
		select {
		case <-s.ended:
		case <-ctx.Done():
			return
		}
		s.rep.Kills++
		if s.rep.Kills%20 == 0 {
			s.cfg.Progress(fmt.Sprintf("%s: %d of %d kills, %d restarts, %d operations", s.f.name, s.rep.Kills, s.cfg.Kills, s.rep.Restarts, s.clients.count()))
		}
		if s.servers.restart == nil || s.rep.Restarts >= s.cfg.Restarts || s.rep.Kills < s.cfg.Kills*(s.rep.Restarts+1)/(s.cfg.Restarts+1) {
			continue
		}
		s.restarts.Add(1)
		err := s.servers.restart(ctx)
		s.restarts.Add(1)
		if err != nil {
			cancel(fmt.Errorf("the broker was not restarted: %w", err))
			return
		}
		s.rep.Restarts++
	}
}

// lane has one process after the other killed, and then one that lives until calm
// is closed.
func (s *storm) lane(ctx context.Context, sl *slot, calm <-chan struct{}) error {
	for ctx.Err() == nil {
		restarts := s.restarts.Load()
		o, doomed := s.order(sl)
		c, err := s.start(ctx, o)
		switch {
		case ctx.Err() != nil:
			if err == nil {
				c.Kill()
			}
			return nil
		case err != nil:
			return err
		case doomed:
			err = s.await(ctx, c)
		default:
			select {
			case <-c.Exited():
				err = fmt.Errorf("%w: %s", errEnded, c.End())
			case <-calm:
				c.Stop(30 * time.Second)
				return nil
			case <-ctx.Done():
				c.Kill()
			}
		}
		switch {
		case errors.Is(err, errEnded) && (restarts%2 == 1 || s.restarts.Load() != restarts):
			s.orderAgain(sl, doomed) // it found a server that was not ready for it
		case err != nil:
			return err
		case doomed:
			select {
			case s.ended <- struct{}{}:
			case <-ctx.Done():
			}
		}
	}
	return nil
}

// errEnded says that a child has ended that nobody has killed.
var errEnded = errors.New("a process ended by itself")

// orderAgain has another child killed in the place of one that was not.
func (s *storm) orderAgain(sl *slot, doomed bool) {
	if doomed {
		s.mu.Lock()
		s.left[sl.role]++
		s.mu.Unlock()
	}
}

// order is the next child's: every point of its role in turn, at a random visit.
func (s *storm) order(sl *slot) (o order, doomed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o = order{Flavour: s.f.name, Role: sl.role, Addr: sl.addr, Place: s.servers.place}
	if s.left[sl.role] == 0 {
		return o, false
	}
	s.left[sl.role]--
	o.Point = s.points[sl.role][0]
	s.points[sl.role] = append(s.points[sl.role][1:], o.Point)
	o.Visit = 1
	if !rare[o.Point] {
		o.Visit += s.rng.IntN(maxVisit)
	}
	if o.Stop = sl.role != serves && s.rng.IntN(oneInStops) == 0; o.Stop {
		o.Point = stale[s.rng.IntN(len(stale))]
	}
	return o, true
}

// await returns when a child was killed.
func (s *storm) await(ctx context.Context, c *child.Process) error {
	timeout := time.NewTimer(reachTimeout)
	defer timeout.Stop()
	select {
	case <-c.Exited():
		if !c.Killed() {
			return fmt.Errorf("%w: %s", errEnded, c.End())
		}
	case <-timeout.C:
		c.Kill()
	case <-ctx.Done():
		c.Kill()
	}
	return nil
}

// start starts a child; one that found no server is started again.
func (s *storm) start(ctx context.Context, o order) (*child.Process, error) {
	command, err := child.Order(childEnv, o)
	if err != nil {
		return nil, err
	}
	for try := 1; ; try++ {
		c, err := child.Start(ctx, command)
		if err == nil || !errors.Is(err, child.ErrExited) || try == startTries {
			return c, err
		}
		if c.Killed() { // at its point, before it said that it was ready
			return c, nil
		}
		pause(ctx, 500*time.Millisecond)
	}
}

// failures is what children said who ended by themselves.
func (s *storm) failures() (err error) {
	files, _ := filepath.Glob(filepath.Join(s.servers.place.Dir, "failed-*"))
	for _, file := range files {
		text, _ := os.ReadFile(file)
		err = errors.Join(err, fmt.Errorf("a process said: %s", text))
	}
	return err
}

// waiting says what the clients wait for.
func (s *storm) waiting() string {
	states := make(map[string]int)
	for _, op := range s.clients.all() {
		op.mu.Lock()
		switch {
		case op.outcome != nil:
			states["done"]++
		case op.unknowns > 0:
			states["told unknown"]++
		case op.accepted != nil:
			states["accepted"]++
		default:
			states["not accepted"]++
		}
		op.mu.Unlock()
	}
	return fmt.Sprint(slices.Sorted(maps.Keys(states)), states)
}
