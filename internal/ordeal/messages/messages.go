// Package messages kills consumers of RabbitMQ, of NATS JetStream and of a
// stand-in for Kafka again and again while messages come up to five times each,
// and the relays of what their handlers emit; restarts the broker in between; and
// compares effects, outcomes and emitted messages with what was published.
//
// On PostgreSQL the effect is in one transaction with its outcome. On Redis it is
// outside of the store, in a ledger that keeps nobody from having it twice but by
// the fence, and in which a verifier looks for what became of dead runs.
package messages

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/stet-go/stet/internal/fault"
	"github.com/stet-go/stet/internal/rig"
	"github.com/stet-go/stet/store/postgres"
)

// Config says what to run.
type Config struct {
	Broker     string // one of Brokers
	Store      string // one of Stores
	Messages   int    // distinct ones
	Kills      int    // of consumers
	RelayKills int
	Restarts   int // of the broker
	Seed       uint64
	Progress   func(string) // told now and then; may be nil
}

// Brokers and Stores are what there is to choose from. Kafka is kfake, which
// stands in for it.
var (
	Brokers = []string{"rabbitmq", "jetstream", "kafka"}
	Stores  = []string{inPostgres, inRedis}
)

// Report is what came of it.
type Report struct {
	Messages   int
	Copies     int // published and confirmed, at least
	Kills      int
	RelayKills int
	Restarts   int

	Effects   int // rows
	Distinct  int // messages that have one
	Completed int // records
	Unknown   int // records, in the end
	Happened  int // verdicts on dead runs: the effect was there
	Voided    int // and it was not, nor would it be
	Refused   int // effects of stale fences that the ledger refused
	Dead      int // dead letters
	Left      int // messages that the broker still has

	Emitted    int // operations whose run has settled with a message
	Arrived    int // messages, repetitions included
	Repeated   int // operations whose message came more than once
	At         map[fault.Point]int
	RelayAt    map[fault.Point]int
	Violations []string
}

const (
	maxCopies = 5
	atOnce    = 2 // consumers, and relays

	startTimeout = 90 * time.Second // for a child whose broker is being restarted
	reachTimeout = 5 * time.Second  // for a child to come by its point; then it is killed where it is
	drainTimeout = 10 * time.Minute
)

// Points of this package: the product has none there.
const (
	effectBefore fault.Point = "effect.before"
	effectAfter  fault.Point = "effect.after" // in a transaction: not yet committed
	told         fault.Point = "told"         // decided, and the broker has not been told
	half         fault.Point = "relay.half"   // some of the messages have been sent
	anywhere     fault.Point = "anywhere"     // where it happened to be
	frozen       fault.Point = "frozen"       // for longer than its lease
)

var (
	consumerPoints = map[string][]fault.Point{
		inPostgres: {fault.ClaimBefore, effectBefore, effectAfter, fault.CommitBefore, fault.CommitAfter, told, anywhere},
		inRedis:    {fault.ClaimAfter, frozen, effectBefore, effectAfter, fault.SettleBefore, fault.SettleAfter, told, anywhere, fault.ClaimBefore},
	}
	relayPoints = []fault.Point{fault.RelayBefore, half, fault.RelaySent, fault.RelayAfter, anywhere}
)

// storm is one run.
type storm struct {
	cfg    Config
	place  place
	trade  trade
	broker broker
	pool   *pgxpool.Pool
	rep    Report
}

// Run runs it on servers of r.
func Run(ctx context.Context, r *rig.Rig, cfg Config) (rep Report, err error) {
	if cfg.Progress == nil {
		cfg.Progress = func(string) {}
	}
	s := &storm{cfg: cfg, place: place{Store: cfg.Store}, rep: Report{Messages: cfg.Messages}}
	t, ok := trades[cfg.Broker]
	if s.trade = t; !ok || consumerPoints[cfg.Store] == nil {
		return rep, fmt.Errorf("there is no broker %q, or no store %q; there are %v and %v", cfg.Broker, cfg.Store, Brokers, Stores)
	}
	server, err := r.StartPostgres(ctx, rig.PostgresOptions{})
	if err != nil {
		return rep, err
	}
	s.place.Postgres = server.URL("postgres")
	if cfg.Store == inRedis {
		server, err := r.StartRedis(ctx, rig.RedisOptions{Settings: map[string]string{"appendonly": "yes"}})
		if err != nil {
			return rep, err
		}
		s.place.Redis = server.Addr()
	}
	if s.pool, err = pgxpool.New(ctx, s.place.Postgres); err != nil {
		return rep, err
	}
	defer s.pool.Close()
	if err := postgres.Migrate(ctx, s.pool, postgres.Options{}); err != nil {
		return rep, err
	}
	if _, err := s.pool.Exec(ctx, createLedger); err != nil {
		return rep, err
	}
	if s.broker, err = s.trade.start(ctx, r); err != nil {
		return rep, err
	}
	defer s.broker.close()
	if err := s.rage(ctx); err != nil {
		return s.rep, err
	}
	return s.rep, s.judge(ctx)
}

// slices returns all copies of all messages, shuffled, in n parts.
func (s *storm) slices(rng *rand.Rand, n int) [][]string {
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

// rage publishes, kills and restarts, and lets what is left be consumed and sent.
func (s *storm) rage(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	rng := rand.New(rand.NewPCG(s.cfg.Seed, 0))
	parts := s.slices(rng, s.cfg.Kills+1) // one for each kill, so that there is always something to do
	feed := make(chan []string, len(parts))
	var publisher, relays sync.WaitGroup
	publisher.Go(func() { // ends with feed, or with ctx
		for ids := range feed {
			if err := s.broker.publish(ctx, ids); err != nil {
				cancel(fmt.Errorf("publish: %w", err))
				return
			}
		}
	})
	relays.Go(func() {
		rng := rand.New(rand.NewPCG(s.cfg.Seed, 1))
		var err error
		s.rep.RelayKills, s.rep.RelayAt, err = s.siege(ctx, "relay", s.cfg.RelayKills, func(i int) (order, error) { return s.relay(rng, i), nil })
		if err != nil {
			cancel(fmt.Errorf("relays: %w", err))
		}
	})
	feed <- parts[0]
	var err error
	s.rep.Kills, s.rep.At, err = s.siege(ctx, "consumer", s.cfg.Kills, func(i int) (order, error) {
		feed <- parts[i+1]
		return s.consumer(rng, i), s.restart(ctx, i)
	})
	close(feed)
	if err != nil {
		cancel(err)
	}
	publisher.Wait()
	if ctx.Err() == nil {
		if err := s.drain(ctx); err != nil {
			cancel(err)
		}
	}
	relays.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return s.drainRelays(ctx)
}

// restart restarts the broker if it is time, before the i-th kill.
func (s *storm) restart(ctx context.Context, i int) error {
	if s.cfg.Restarts == s.rep.Restarts || i < s.cfg.Kills*(s.rep.Restarts+1)/(s.cfg.Restarts+1) {
		return nil
	}
	if err := s.broker.restart(ctx); err != nil {
		return fmt.Errorf("the broker was not restarted: %w", err)
	}
	s.rep.Restarts++
	return nil
}

// consumer is the i-th that is to be killed: at every point in turn, at a random
// visit that one part of the messages will bring about.
func (s *storm) consumer(rng *rand.Rand, i int) order {
	points := consumerPoints[s.cfg.Store]
	o := order{Broker: s.cfg.Broker, URL: s.broker.url(), Place: s.place, Point: points[i%len(points)], Patience: s.trade.reach}
	o.Visit = 1 + rng.IntN(max(1, s.cfg.Messages/(2*s.cfg.Kills)))
	if o.Point == anywhere {
		o.Patience = time.Duration(rng.Int64N(int64(2 * time.Second)))
	}
	o.custom(i)
	return o
}

// drain has consumers that nobody kills until nothing is left.
func (s *storm) drain(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, drainTimeout, errors.New("the consumers did not come to an end"))
	defer cancel()
	for {
		stop, err := s.unharmed(ctx, func(i int) order {
			o := order{Broker: s.cfg.Broker, URL: s.broker.url(), Place: s.place}
			o.custom(i + 1) // one that emits, one that does not; both in groups
			return o
		})
		if err != nil {
			return err
		}
		for s.rep.Left = 1; s.rep.Left > 0 && err == nil; {
			pause(ctx, 200*time.Millisecond)
			s.rep.Left, s.rep.Dead, err = s.broker.left(ctx)
		}
		stop()
		if err = errors.Join(err, context.Cause(ctx)); err != nil {
			return fmt.Errorf("%d messages left: %w", s.rep.Left, err)
		}
		// What they had in hand, and gave back, shows now.
		if s.rep.Left, s.rep.Dead, err = s.broker.left(ctx); err != nil || s.rep.Left == 0 {
			return err
		}
	}
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
