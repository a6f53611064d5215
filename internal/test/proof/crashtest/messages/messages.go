// Package messages kills consumers of RabbitMQ, of NATS JetStream and of
// Kafka again and again while messages come up to five times each,
// and the relays of what their handlers emit; restarts the broker in between; and
// has effects, outcomes and emitted messages judged.
//
// On PostgreSQL the effect is in one transaction with its outcome. On Redis it is
// outside of the store, in a ledger in which a verifier looks for what became of
// expired runs.
package messages

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/child"
	"github.com/stet-go/stet/internal/crash"
	"github.com/stet-go/stet/internal/fault"
	"github.com/stet-go/stet/internal/test/proof/crashtest"
	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/store"
)

// Config says what to run.
type Config struct {
	Broker     string // one of Brokers or Clusters
	Store      string // one of Stores
	Messages   int    // distinct ones
	Kills      int    // of consumers
	RelayKills int
	Restarts   int // of the broker
	Seed       uint64
	Progress   func(string) // told now and then; may be nil
}

// Brokers, Clusters and Stores are what there is to choose from. A cluster has three servers.
var (
	Brokers  = []string{"rabbitmq", "jetstream", "kafka"}
	Clusters = []string{"kafka-3"}
	Stores   = []string{crashtest.Postgres, crashtest.Redis}
)

// Report is the result.
type Report struct {
	crashtest.Report                 // of consumers
	Relays           crashtest.Tally // killed
	Copies           int             // published and confirmed, at least
	Happened         int             // resolutions on expired runs: the effect was there
	Voided           int             // and it was not, nor would it be
	Refused          int             // effects that came after that
	Dead             int             // dead letters
	Left             int             // messages that the broker still has
}

const (
	maxCopies = 5
	atOnce    = 2 // consumers, and relays

	reachTimeout = 5 * time.Second // for a child to come by its point; then it is killed where it is
	drainTimeout = 10 * time.Minute
)

// Points of this package: the product has none there.
const (
	effectBefore fault.Point = "effect.before"
	effectAfter  fault.Point = "effect.after" // in a transaction: not yet committed
	told         fault.Point = "told"         // decided, and the broker has not been told
	half         fault.Point = "relay.half"   // some of the messages have been sent
)

func visits(points ...fault.Point) (all []crashtest.Visit) {
	for _, p := range points {
		all = append(all, crashtest.Visit{Point: p})
	}
	return all
}

var (
	consumerVisits = map[string][]crashtest.Visit{
		crashtest.Postgres: visits(fault.ClaimBefore, effectBefore, effectAfter, fault.CommitBefore, fault.CommitAfter, told, crashtest.Anywhere),
		crashtest.Redis: append(visits(fault.ClaimAfter, effectBefore, effectAfter, fault.SettleBefore, fault.SettleAfter, told, crashtest.Anywhere, fault.ClaimBefore),
			crashtest.Visit{Point: effectBefore, Stop: frozenFor}),
	}
	relayVisits = visits(fault.RelayBefore, half, fault.RelaySent, fault.RelayAfter, crashtest.Anywhere)
)

// loadTest is one run.
type loadTest struct {
	cfg    Config
	place  crashtest.Place
	trade  trade
	broker broker
	rep    Report
}

// Run runs it on servers of r.
func Run(ctx context.Context, r *rig.Rig, cfg Config) (rep Report, err error) {
	s := &loadTest{cfg: cfg}
	t, ok := trades[cfg.Broker]
	if s.trade = t; !ok || consumerVisits[cfg.Store] == nil {
		return rep, fmt.Errorf("there is no broker %q, or no store %q; there are %v, %v and %v", cfg.Broker, cfg.Store, Brokers, Clusters, Stores)
	}
	dir, err := os.MkdirTemp("", "stet-crashtest-")
	if err != nil {
		return rep, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if s.place, _, err = crashtest.StartServer(ctx, r, cfg.Store); err != nil {
		return rep, err
	}
	s.place.Dir, s.place.Pool = dir, 20
	if err := s.place.Prepare(ctx); err != nil {
		return rep, err
	}
	if s.broker, err = s.trade.start(ctx, r); err != nil {
		return rep, err
	}
	defer s.broker.close()
	site, err := s.place.Open(ctx, nil)
	if err != nil {
		return rep, err
	}
	defer func() { err = errors.Join(err, site.Close()) }()
	if err = s.rage(ctx, site); err == nil {
		err = s.judge(ctx, site)
	}
	return s.rep, err
}

// slices returns all copies of all messages, shuffled, in n parts.
func (s *loadTest) slices(rng *rand.Rand, n int) [][]string {
	var ids []string
	for i := range s.cfg.Messages {
		for range 1 + rng.IntN(maxCopies) {
			ids = append(ids, name(i))
		}
	}
	s.rep.Copies = len(ids)
	rng.Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
	parts := make([][]string, n)
	for i := range parts {
		parts[i] = ids[len(ids)*i/n : len(ids)*(i+1)/n]
	}
	return parts
}

// name is the key of the i-th message.
func name(i int) string { return "order-" + strconv.Itoa(i) }

// crash test has processes of a kind killed.
func (s *loadTest) killer(what string, seed uint64, kills int, all []crashtest.Visit, most int, reach time.Duration,
	command func(*crashtest.Lane, crashtest.Visit, int) (child.Command, error)) *crashtest.Killer {
	plan := crashtest.NewPlan(rand.New(rand.NewPCG(s.cfg.Seed, seed)), kills, append([]crashtest.Visit(nil), all...),
		func(rng *rand.Rand, v *crashtest.Visit) { v.N = 1 + rng.IntN(max(1, most)) })
	killer := &crashtest.Killer{Command: command, Flaky: true, Progress: s.cfg.Progress, Name: s.cfg.Broker + ", " + s.cfg.Store + ", " + what}
	killer.Reach = func(v crashtest.Visit) time.Duration {
		if v.Point == crashtest.Anywhere {
			return rand.N(reach / 3)
		}
		return reach
	}
	for range atOnce {
		killer.Lanes = append(killer.Lanes, &crashtest.Lane{Plan: plan})
	}
	return killer
}

// rage publishes, kills and restarts, and then lets the rest be consumed and sent.
func (s *loadTest) rage(ctx context.Context, site *crashtest.Site) error {
	relays := s.killer("relay", 1, s.cfg.RelayKills, relayVisits, maxBatches, reachTimeout, s.relay)
	err := relays.While(ctx, func(ctx context.Context) error {
		if err := s.consume(ctx); err != nil {
			return err
		}
		if err := relays.Befall(ctx); err != nil { // nothing but kills
			return err
		}
		ctx, cancel := context.WithTimeoutCause(ctx, drainTimeout, errors.New("the relays did not come to an end"))
		defer cancel()
		outbox, _ := store.As[store.OutboxStore](site.Store)
		return s.drainRelays(ctx, outbox)
	})
	s.rep.Relays = relays.Tally()
	return err
}

// consume has all messages published and consumed, by consumers that are killed,
// and by others that are not, until nothing is left.
func (s *loadTest) consume(ctx context.Context) error {
	most := s.cfg.Messages / (2 * s.cfg.Kills) // visits that one part of the messages will bring about
	consumers := s.killer("consumer", 0, s.cfg.Kills, consumerVisits[s.cfg.Store], most, s.trade.reach, s.consumer)
	parts := s.slices(rand.New(rand.NewPCG(s.cfg.Seed, 2)), s.cfg.Kills+1) // one for each kill, so that there is always something to do
	feed := make(chan []string, len(parts))
	feed <- parts[0]
	consumers.Killed = func(n int) error {
		feed <- parts[n]
		return nil
	}
	consumers.Restart, consumers.Restarts = s.broker.restart, s.cfg.Restarts
	err := consumers.While(ctx, func(ctx context.Context) error {
		var publisher sync.WaitGroup
		var published error
		publisher.Go(func() {
			for range parts {
				select {
				case ids := <-feed:
					if published = s.broker.publish(ctx, ids); published != nil {
						return
					}
				case <-ctx.Done():
					return
				}
			}
		})
		err := consumers.Befall(ctx)
		publisher.Wait()
		if err = errors.Join(err, published); err != nil {
			return err
		}
		return s.drain(ctx)
	})
	s.rep.Tally = consumers.Tally()
	for err == nil {
		// Messages that they were processing, and released, show now.
		if s.rep.Left, s.rep.Dead, err = s.broker.left(ctx); err != nil || s.rep.Left == 0 {
			break
		}
		err = s.killer("consumer", 0, 0, nil, 0, 0, s.consumer).While(ctx, s.drain)
	}
	return err
}

// consumer is the n-th.
func (s *loadTest) consumer(_ *crashtest.Lane, v crashtest.Visit, n int) (child.Command, error) {
	o := order{Broker: s.cfg.Broker, URL: s.broker.url(), Place: s.place, Visit: v}
	o.custom(n)
	return child.Order(childEnv, o)
}

// drain waits until the remaining consumers have left nothing.
func (s *loadTest) drain(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, drainTimeout, errors.New("the consumers did not come to an end"))
	defer cancel()
	for s.rep.Left = 1; s.rep.Left > 0 && err == nil; {
		if err = crash.Pause(ctx, 200*time.Millisecond); err == nil {
			s.rep.Left, s.rep.Dead, err = s.broker.left(ctx)
		}
	}
	return err
}

// judge collects the facts, and calls the judge.
func (s *loadTest) judge(ctx context.Context, site *crashtest.Site) (err error) {
	engine, err := stet.New(site.Store, stet.Options{SweepEvery: -1})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, engine.Close()) }()
	var trial crashtest.Trial
	for i := range s.cfg.Messages {
		id := engine.ID(scope, name(i))
		status, err := engine.Status(ctx, scope, id)
		if err != nil {
			return err
		}
		looked := crashtest.Seen(crashtest.Looked, status.Record)
		looked.ID = id.String()
		if by, effect, ok := strings.Cut(string(status.Outcome.Body), " "); ok {
			looked.By, looked.Of = by, []string{effect}
		}
		trial.Events = append(trial.Events, crashtest.Event{Kind: crashtest.Wanted, ID: looked.ID, Scope: scope, Key: name(i)}, looked)
	}
	if trial.Letters, err = s.broker.arrived(ctx); err != nil {
		return err
	}
	if s.cfg.Store == crashtest.Postgres {
		trial.Effects, err = site.Effects(ctx)
	} else {
		err = s.readLedger(&trial)
	}
	if err != nil {
		return err
	}
	s.rep.Resolution = crashtest.Judge(trial, Law)
	if s.rep.Dead > 0 {
		s.rep.Violations = append(s.rep.Violations, crashtest.Violation{Promise: crashtest.Lost, Detail: fmt.Sprintf("%d dead letters", s.rep.Dead)})
	}
	return nil
}

// Law is what messages are held to: all are done.
var Law = crashtest.Law{
	Ends:    func(_, looked crashtest.Event) bool { return looked.State == store.Completed.String() },
	Unknown: func(string) bool { return false },
}

func (s *loadTest) readLedger(trial *crashtest.Trial) (err error) {
	var lines []crashtest.Effect
	for kind, n := range map[string]*int{crashtest.Verified: &s.rep.Happened, crashtest.Voided: &s.rep.Voided, crashtest.Refused: &s.rep.Refused} {
		if lines, err = crashtest.ReadLedger(s.place.Dir, kind); err != nil {
			return err
		}
		*n = len(lines)
	}
	s.rep.Happened -= s.rep.Voided
	trial.Effects, err = crashtest.ReadLedger(s.place.Dir, crashtest.Happened)
	return err
}
