package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/child"
	"github.com/stet-go/stet/internal/crash"
)

const (
	atOnce      = 8   // payments in progress at a time
	maxTries    = 500 // requests of one client for one payment
	patience    = 3 * time.Second
	maxBackoff  = 150 * time.Millisecond
	startWithin = 10 * time.Second
	maxResponse = 64 << 10 // bytes
)

// order is a payment that must be made once, with the responses of its clients.
type order struct {
	payment
	key, body string

	mu        sync.Mutex
	responses map[string]bool // the distinct bodies of 201
	refused   bool            // a client got a final response that was not 201
	unknown   bool            // the last response was 504
}

// load runs clients against a service that is killed.
type load struct {
	Config
	dir, name, url string
	flags          []string
	service        crash.Lane
	orders         []*order
	http           *http.Client
	limit          time.Duration
	counts
	killed Result // its kills only
}

// counts are of all clients together.
type counts struct {
	requests, replayed, conflicts, inFlight, finished atomic.Int64
}

func newLoad(c Config, dir, name string, flags ...string) *load {
	l := &load{Config: c, dir: dir, name: name, flags: append(flags, "-dir", dir), http: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256}},
		limit: 15*time.Second + time.Duration(c.Payments*c.Clients)*4*time.Millisecond + time.Duration(c.Kills)*startWithin}
	rng := rand.New(rand.NewPCG(c.Seed, 0))
	for i := range c.Payments {
		o := &order{payment: payment{fmt.Sprintf("order-%04d", i+1), 100 + rng.Int64N(20_000)}, key: stet.NewKey(), responses: map[string]bool{}}
		body, _ := json.Marshal(o.payment) // never fails: a string and a number
		o.body = string(body)
		l.orders = append(l.orders, o)
	}
	return l
}

// run runs the clients and the kills, and compares the result with the ledger.
func (l *load) run(ctx context.Context) (r Result, err error) {
	if err := os.Mkdir(l.dir, 0o700); err != nil {
		return r, err
	}
	defer l.service.Kill()
	defer l.http.CloseIdleConnections()
	if err := l.start(ctx, "127.0.0.1:0"); err != nil {
		return r, err
	}
	l.url = "http://" + l.service.Process().Addr + "/payments" // also after a restart
	bound, cancel := context.WithTimeout(ctx, l.limit)
	defer cancel()
	bound, failed := context.WithCancelCause(bound)
	var clients, killer sync.WaitGroup
	killer.Go(func() {
		if err := l.killAndRestart(bound); err != nil {
			failed(err) // without effect if bound has ended
		}
	})
	slots := make(chan struct{}, atOnce)
	for i, o := range l.orders {
		slots <- struct{}{} // clients end with bound
		clients.Go(func() {
			defer func() { <-slots }()
			var wg sync.WaitGroup
			for j := range l.Clients {
				wg.Go(func() { l.pay(bound, o, rand.New(rand.NewPCG(l.Seed, uint64(1+i*MaxClients+j)))) })
			}
			wg.Wait()
		})
	}
	clients.Wait()
	killer.Wait()
	failed(nil)
	if err := context.Cause(ctx); err != nil {
		return r, err
	}
	if err := context.Cause(bound); err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
		return r, err
	}
	l.service.Stop(crash.StopGrace)
	ledger, err := readLedger(ctx, l.dir)
	r = compare(l.orders, ledger)
	r.Requests, r.Replayed, r.Conflicts = int(l.requests.Load()), int(l.replayed.Load()), int(l.conflicts.Load())
	r.Kills, r.InFlightAtKills = l.killed.Kills, l.killed.InFlightAtKills
	return r, err
}

// start starts the service, again at its address after a kill.
func (l *load) start(ctx context.Context, addr string) error {
	ctx, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	command := child.Command{Path: l.Service[0], Args: slices.Concat(l.Service[1:], l.flags, []string{"-addr", addr})}
	if err := l.service.Start(ctx, command); err != nil {
		return fmt.Errorf("the payments service did not start: %w", err)
	}
	return nil
}

// killAndRestart kills the service at even parts of the load, each time with requests in flight.
func (l *load) killAndRestart(ctx context.Context) error {
	clients := l.Payments * l.Clients
	for k := range l.Kills {
		for l.inFlight.Load() == 0 || int(l.finished.Load()) < clients*(k+1)/(l.Kills+1) {
			if int(l.finished.Load()) == clients || crash.Pause(ctx, time.Millisecond) != nil {
				return nil
			}
		}
		n, addr := int(l.inFlight.Load()), l.service.Process().Addr
		l.service.Kill()
		l.killed.Kills++
		l.killed.InFlightAtKills += n
		l.say("kill %d of %d: SIGKILL of the payments service with %d requests in flight", k+1, l.Kills, n)
		if err := l.start(ctx, addr); err != nil {
			return err
		}
	}
	return nil
}

func (l *load) say(format string, args ...any) {
	if l.Progress != nil {
		_, _ = fmt.Fprintf(l.Progress, "%-13s %s\n", l.name+":", fmt.Sprintf(format, args...))
	}
}

// pay is one client: it sends the payment, always with the same key, until a final response.
func (l *load) pay(ctx context.Context, o *order, rng *rand.Rand) {
	defer l.finished.Add(1)
	timeouts := max(0, rng.IntN(6)-3) // the client's first tries time out early
	for try := range maxTries {
		wait := patience
		if try < timeouts {
			wait = 3*time.Millisecond + rand.N(maxLag)
		}
		if l.send(ctx, o, wait) || crash.Pause(ctx, rand.N(min(maxBackoff, 5*time.Millisecond<<min(try, 5)))) != nil {
			return
		}
	}
}

// send sends one request, and reports whether its response is final.
func (l *load) send(ctx context.Context, o *order, wait time.Duration) (final bool) {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	// A reader of another type keeps the transport from sending the body again by itself.
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, l.url, io.MultiReader(bytes.NewReader([]byte(o.body))))
	if err != nil {
		return false
	}
	req.Header.Set("Idempotency-Key", o.key)
	l.requests.Add(1)
	l.inFlight.Add(1)
	defer l.inFlight.Add(-1)
	res, err := l.http.Do(req)
	if err != nil {
		return false
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(res.Body, maxResponse))
	if err != nil {
		return false
	}
	if res.Header.Get("Idempotent-Replayed") == "true" {
		l.replayed.Add(1)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.unknown = res.StatusCode == http.StatusGatewayTimeout
	switch {
	case res.StatusCode == http.StatusCreated:
		o.responses[string(body)] = true
		return true
	case res.StatusCode == http.StatusConflict:
		l.conflicts.Add(1)
		return false
	case res.StatusCode >= http.StatusInternalServerError:
		return false
	}
	o.refused = true
	return true
}
