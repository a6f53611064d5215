package demo

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"github.com/stet-go/stet/internal/crash"
)

// atOnce is how many payments are under way at a time.
const atOnce = 8

// storm is one run of the clients against a service that is killed.
type storm struct {
	c        Config
	dir      string
	server   *server
	proxy    *server // nil unless the service is protected by one
	intents  []*intent
	crowd    *crowd
	poke     chan struct{} // something may have changed; capacity 1
	progress *progress

	kills, inFlight, cutOff int // the killer's, until it has ended
}

// runStorm runs a storm and accounts for it, from the ledger's own file once no
// process has it open.
func runStorm(ctx context.Context, c Config, dir string, protected bool) (r Result, err error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return r, err
	}
	began := time.Now()
	s := newStorm(c, dir, protected)
	stopProgress := s.progress.start(func() string { return s.status() })
	defer stopProgress()
	defer s.end((*server).Kill)
	if err := s.start(ctx); err != nil { // the limit begins when they have started, however slow the machine
		return r, err
	}
	bound, cancel := context.WithTimeout(ctx, c.limit())
	defer cancel()
	if err := s.blow(bound); err != nil {
		return r, err
	}
	cutShort := bound.Err() != nil
	if !cutShort {
		s.end(func(s *server) { s.Stop(crash.StopGrace) })
	}
	s.end((*server).Kill)
	if ctx.Err() != nil {
		return r, context.Cause(ctx) // interrupted: there is nothing to account for
	}
	r, err = s.account(ctx)
	r.CutShort, r.Seconds = cutShort, seconds(time.Since(began))
	return r, err
}

func newStorm(c Config, dir string, protected bool) *storm {
	s := &storm{c: c, dir: dir, poke: make(chan struct{}, 1)}
	name := "without stet"
	flags := []string{"-dir", dir, "-life", min(maxLife, startWithin+2*c.limit()).String()}
	switch {
	case protected && len(c.Proxy) > 0:
		name = "behind stet"
		s.proxy = &server{name: "proxy", command: c.Proxy, addrArg: "--listen"}
	case protected:
		name = "with stet"
		flags = append(flags, "-protected")
	}
	if c.Async {
		flags = append(flags, "-async")
	}
	s.progress = &progress{w: c.Progress, terminal: c.Terminal, name: name}
	s.server = &server{name: "payments service", command: c.Service, flags: flags, addrArg: "-addr"}
	s.crowd = &crowd{http: newHTTPClient(), changed: func() {
		select {
		case s.poke <- struct{}{}:
		default:
		}
	}}
	rng := rand.New(rand.NewPCG(c.Seed, 0))
	for i := range c.Payments {
		s.intents = append(s.intents, newIntent(payment{Payment: fmt.Sprintf("order-%04d", i+1), Amount: 100 + rng.Int64N(20_000)}))
	}
	return s
}

// start starts the service, and the proxy before it.
func (s *storm) start(ctx context.Context) error {
	if err := s.server.start(ctx); err != nil {
		return err
	}
	front := s.server
	if s.proxy != nil {
		var err error
		if s.proxy.flags, err = proxyFlags(s.dir, s.c.Store, s.server.addr); err != nil {
			return err
		}
		if err := s.proxy.start(ctx); err != nil {
			return err
		}
		front = s.proxy
	}
	s.crowd.url = "http://" + front.addr + "/payments"
	return nil
}

// end has the proxy end, and then the service.
func (s *storm) end(how func(*server)) {
	if s.proxy != nil {
		how(s.proxy)
	}
	how(s.server)
}

// victim is who is killed next: the service, or in turn with it the proxy.
func (s *storm) victim() *server {
	if s.proxy != nil && s.kills%2 == 1 {
		return s.proxy
	}
	return s.server
}

// blow lets the clients loose, and kills the service while they are at it.
func (s *storm) blow(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer s.crowd.http.CloseIdleConnections()
	var killer, clients sync.WaitGroup
	var killErr error
	killer.Go(func() {
		if killErr = s.killAndRestart(ctx); killErr != nil {
			cancel(killErr) // without a service there is nothing to wait for
		}
	})
	slots := make(chan struct{}, atOnce)
	for i, in := range s.intents {
		slots <- struct{}{} // clients end with ctx, so that this does too
		clients.Go(func() {
			defer func() { <-slots }()
			s.sendAll(ctx, i, in)
		})
	}
	clients.Wait()
	s.crowd.changed()
	killer.Wait()
	return killErr
}

// sendAll runs all clients of one payment.
func (s *storm) sendAll(ctx context.Context, i int, in *intent) {
	var wg sync.WaitGroup
	for j := range s.c.Attempts {
		wg.Go(func() {
			s.crowd.pay(ctx, in, rand.New(rand.NewPCG(s.c.Seed, uint64(1+i*MaxAttempts+j))))
		})
	}
	wg.Wait()
}

// killAndRestart kills the service, or its proxy, at even parts of the storm, each time with
// requests in flight, and starts it again. It ends with ctx, with the clients or
// with its kills.
func (s *storm) killAndRestart(ctx context.Context) error {
	clients := s.c.Payments * s.c.Attempts
	for k := range s.c.Kills {
		inFlight := 0
		due := func() bool {
			inFlight = int(s.crowd.inFlight.Load())
			return inFlight > 0 && int(s.crowd.finished.Load()) >= clients*(k+1)/(s.c.Kills+1)
		}
		for !due() {
			if int(s.crowd.finished.Load()) >= clients {
				return nil
			}
			select {
			case <-s.poke:
			case <-ctx.Done():
				return nil
			}
		}
		victim := s.victim()
		victim.Kill()
		s.kills++
		s.inFlight += inFlight
		if err := s.lookAround(ctx); err != nil && ctx.Err() == nil {
			return err
		}
		s.progress.say(fmt.Sprintf("kill %d of %d: SIGKILL of the %s with %d requests in flight", k+1, s.c.Kills, victim.name, inFlight))
		if err := victim.start(ctx); err != nil {
			if ctx.Err() != nil {
				return nil //nolint:nilerr // the storm is over, which is told elsewhere
			}
			return err
		}
	}
	return nil
}

// lookAround counts, while the service or its proxy is dead, the payments that were made and
// that no client knows of.
func (s *storm) lookAround(ctx context.Context) error {
	ledger, err := readLedger(ctx, ledgerPath(s.dir))
	if err != nil {
		return err
	}
	booked := make(map[string]bool, len(ledger))
	for _, c := range ledger {
		booked[c.Payment] = true
	}
	for _, in := range s.intents {
		if booked[in.told.Payment] && !in.acknowledged() {
			s.cutOff++
		}
	}
	return nil
}

// account closes the books.
func (s *storm) account(ctx context.Context) (Result, error) {
	ledger, err := readLedger(ctx, ledgerPath(s.dir))
	if err != nil {
		return Result{}, err
	}
	told := make([]observed, len(s.intents))
	for i, in := range s.intents {
		told[i] = in.told // no client is left
	}
	r := account(told, ledger)
	r.Attempts, r.Replayed, r.Conflicts = int(s.crowd.attempts.Load()), int(s.crowd.replayed.Load()), int(s.crowd.conflicts.Load())
	r.HungUp, r.Broken, r.ServerError = int(s.crowd.hungUp.Load()), int(s.crowd.broken.Load()), int(s.crowd.serverError.Load())
	r.Accepted = int(s.crowd.accepted.Load())
	r.Kills, r.InFlightAtKills, r.CutOff = s.kills, s.inFlight, s.cutOff
	return r, nil
}

func (s *storm) status() string {
	return fmt.Sprintf("%d of %d clients done, %d requests in flight, %d sent",
		s.crowd.finished.Load(), s.c.Payments*s.c.Attempts, s.crowd.inFlight.Load(), s.crowd.attempts.Load())
}
