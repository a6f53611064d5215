// Package crash kills a payments service at every fault point, again and again,
// and checks what its clients were told against the ledger.
package crash

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/child"
	"github.com/stet-go/stet/internal/fault"
)

// Config says what to run.
type Config struct {
	Mode     Mode
	Cycles   int           // children killed
	Seed     uint64        // of the schedule of kills
	Progress func(string)  // told now and then; may be nil
	Timeout  time.Duration // for the whole; default 10 min

	// Postgres is the URL of an empty PostgreSQL database; "" for SQLite.
	Postgres string
	// KillServer, if set, kills and restarts the database server, and is
	// called ServerKills times while children are killed.
	KillServer  func(context.Context) error
	ServerKills int
}

// Report is what came of it.
type Report struct {
	Verdict
	Kills       int
	ServerKills int
	Missed      int                 // children that did not come by their point in time
	Failed      int                 // children that ended because the server was gone
	At          map[fault.Point]int // kills by point
}

const (
	pairs        = 4 // payments under way at a time
	clientsEach  = 2 // clients sending the same payment
	pointTimeout = 3 * time.Second
	maxVisit     = 4
)

// points are the fault points that a service passes.
func points(cfg Config) []fault.Point {
	m := cfg.Mode
	ps := []fault.Point{fault.ClaimBefore, fault.HandlerBefore, fault.HandlerAfter,
		fault.ResponseBefore, fault.ResponseAfter, fault.SweepBefore, fault.SweepAfter}
	if m == Tx || cfg.Postgres == "" { // in PostgreSQL's lease mode statements commit by themselves
		ps = append(ps, fault.CommitBefore, fault.CommitAfter)
	}
	if m == Tx {
		return ps
	}
	ps = append(ps, fault.ClaimAfter, fault.SettleBefore, fault.SettleAfter, fault.ReleaseBefore, fault.ReleaseAfter,
		fault.HeartbeatBefore, fault.HeartbeatAfter)
	if m == Verify {
		ps = append(ps, fault.TakeoverBefore, fault.TakeoverAfter)
	}
	return ps
}

// storm is one run.
type storm struct {
	cfg    Config
	dir    string
	addr   string
	client *http.Client

	mu      sync.Mutex
	answers map[string][]Answer
}

// Run kills cfg.Cycles children and returns the judge's report.
func Run(ctx context.Context, cfg Config) (rep Report, err error) {
	if cfg.Timeout == 0 {
		cfg.Timeout = 10 * time.Minute
	}
	if cfg.Progress == nil {
		cfg.Progress = func(string) {}
	}
	ctx, cancel := context.WithTimeout(ctx, cfg.Timeout)
	defer cancel()
	dir, err := os.MkdirTemp("", "stet-crash-")
	if err != nil {
		return rep, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	addr, err := freeAddr(ctx)
	if err != nil {
		return rep, err
	}
	transport := &http.Transport{MaxIdleConnsPerHost: pairs * clientsEach}
	defer transport.CloseIdleConnections()
	s := &storm{cfg: cfg, dir: dir, addr: addr, answers: make(map[string][]Answer),
		client: &http.Client{Timeout: 2 * time.Second, Transport: transport}}

	if cfg.Postgres != "" {
		if err := preparePostgres(ctx, cfg.Postgres); err != nil {
			return rep, err
		}
	}
	enough := make(chan struct{})
	var clients sync.WaitGroup
	for i := range pairs {
		rng := rand.New(rand.NewPCG(cfg.Seed, uint64(i)+1))
		clients.Go(func() { s.payUntil(ctx, enough, rng) })
	}
	err = s.kill(ctx, &rep)
	close(enough)
	last, startErr := s.start(ctx, "", 0)
	if startErr != nil {
		cancel()
		clients.Wait()
		return rep, errors.Join(err, startErr)
	}
	clients.Wait()
	s.askAgain(ctx)
	last.Stop(5 * time.Second)
	if err = errors.Join(err, context.Cause(ctx)); err != nil {
		return rep, err
	}
	ledger, err := s.ledger(ctx)
	rep.Verdict = Judge(s.answers, ledger, cfg.Mode == Park)
	return rep, err
}

// freeAddr returns a loopback address that was free a moment ago. Children of
// one run share it, so that clients reconnect.
func freeAddr(ctx context.Context) (string, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

func (s *storm) start(ctx context.Context, p fault.Point, visit int) (*child.Process, error) {
	text, err := json.Marshal(order{Dir: s.dir, URL: s.cfg.Postgres, Addr: s.addr, Mode: s.cfg.Mode, Point: p, Visit: visit})
	if err != nil {
		return nil, err
	}
	return child.Start(ctx, child.Command{Env: []string{childEnv + "=" + string(text)}})
}

// serverPause is the time between two kills of the server: long enough for it to
// recover and for payments to go through.
const serverPause = 300 * time.Millisecond

// kill kills children, and beside that the server.
func (s *storm) kill(ctx context.Context, rep *Report) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var server sync.WaitGroup
	server.Go(func() {
		for range s.cfg.ServerKills {
			pause(ctx, serverPause)
			if ctx.Err() != nil {
				return
			}
			if err := s.cfg.KillServer(ctx); err != nil {
				cancel(fmt.Errorf("the server was not restarted: %w", err))
				return
			}
			rep.ServerKills++
		}
	})
	err := s.cycles(ctx, rep)
	server.Wait()
	if err == nil {
		err = context.Cause(ctx)
	}
	return err
}

// cycles starts a child after the other, each with orders to die at a point.
func (s *storm) cycles(ctx context.Context, rep *Report) error {
	rng := rand.New(rand.NewPCG(s.cfg.Seed, 0))
	rep.At = make(map[fault.Point]int)
	ps := points(s.cfg)
	var err error
	for i := 0; rep.Kills < s.cfg.Cycles; i++ {
		if rep.Missed > s.cfg.Cycles/4+len(ps) || rep.Failed > s.cfg.Cycles+len(ps) {
			return fmt.Errorf("%d children missed their points, %d could not start: %w", rep.Missed, rep.Failed, err)
		}
		p := ps[i%len(ps)] // every point in turn, at a random visit
		var c *child.Process
		c, err = s.start(ctx, p, 1+rng.IntN(maxVisit))
		if err != nil && !errors.Is(err, child.ErrExited) {
			return err
		}
		timeout := time.NewTimer(pointTimeout)
		select {
		case <-c.Exited():
			switch {
			case c.Killed():
				rep.Kills++
				rep.At[p]++
			case s.cfg.KillServer != nil && err != nil: // it could not start without the server
				rep.Failed++
				pause(ctx, serverPause/4)
			default:
				return fmt.Errorf("a child ended by itself at %s: %w", p, err)
			}
		case <-timeout.C:
			c.Kill()
			rep.Missed++
		case <-ctx.Done():
			c.Kill()
			return context.Cause(ctx)
		}
		timeout.Stop()
		if i%20 == 19 {
			s.mu.Lock()
			n := len(s.answers)
			s.mu.Unlock()
			s.cfg.Progress(fmt.Sprintf("%s: %d of %d kills, %d payments", s.cfg.Mode, rep.Kills, s.cfg.Cycles, n))
		}
	}
	return nil
}

// payUntil makes one payment after the other until enough is closed.
func (s *storm) payUntil(ctx context.Context, enough <-chan struct{}, rng *rand.Rand) {
	for ctx.Err() == nil {
		select {
		case <-enough:
			return
		default:
		}
		key, amount := stet.NewKey(), 1+rng.IntN(1000)
		s.mu.Lock()
		s.answers[key] = nil
		s.mu.Unlock()
		var both sync.WaitGroup
		for range clientsEach {
			both.Go(func() { s.pay(ctx, key, amount) })
		}
		both.Wait()
	}
}

// askAgain asks for every payment once more, when nothing dies any longer.
func (s *storm) askAgain(ctx context.Context) {
	s.mu.Lock()
	known := make([]Answer, 0, len(s.answers))
	for key, got := range s.answers {
		if len(got) > 0 {
			known = append(known, Answer{Key: key, Amount: got[0].Amount})
		}
	}
	s.mu.Unlock()
	for _, a := range known {
		s.pay(ctx, a.Key, a.Amount)
	}
}

// pay sends a payment until there is a definite answer, and records it.
func (s *storm) pay(ctx context.Context, key string, amount int) {
	for try := 0; ctx.Err() == nil; try++ {
		status, body, err := s.send(ctx, key, amount, try)
		switch {
		case err == nil && (status == statusCharged || status == statusUnknown && s.cfg.Mode == Park || status/100 == 4 && status != http.StatusConflict):
			s.mu.Lock()
			s.answers[key] = append(s.answers[key], Answer{Key: key, Amount: amount, Status: status, Body: body})
			s.mu.Unlock()
			return
		default: // reset, refused, 409, 500, 503: the same again
			pause(ctx, time.Duration(2+rand.IntN(20))*time.Millisecond)
		}
	}
}

func (s *storm) send(ctx context.Context, key string, amount, try int) (int, string, error) {
	form := url.Values{"amount": {strconv.Itoa(amount)}}.Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+s.addr+"/payments", strings.NewReader(form))
	if err != nil {
		return 0, "", err
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("Idempotency-Key", strconv.Quote(key))
	req.Header.Set("Retry-Count", strconv.Itoa(try))
	res, err := s.client.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
	return res.StatusCode, string(body), err
}
