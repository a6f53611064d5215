// Package messages kills consumers of RabbitMQ and of NATS JetStream again and
// again while messages come up to five times each, restarts the broker in
// between, and compares the effects with the messages.
package messages

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/child"
	"github.com/stet-go/stet/internal/fault"
	"github.com/stet-go/stet/internal/rig"
	"github.com/stet-go/stet/store/postgres"
)

// Config says what to run.
type Config struct {
	Broker   string // "rabbitmq" or "jetstream"
	Messages int    // distinct ones
	Kills    int    // of consumers
	Restarts int    // of the broker
	Seed     uint64
	Progress func(string) // told now and then; may be nil
}

// Report is what came of it.
type Report struct {
	Messages   int
	Copies     int // published and confirmed, at least
	Kills      int
	Restarts   int
	Effects    int // rows
	Distinct   int // messages that have one
	Completed  int // records
	Unknown    int // records
	Dead       int // dead letters
	Left       int // messages that the broker still has
	At         map[fault.Point]int
	Violations []string
}

const (
	maxCopies = 5
	consumers = 2 // at a time

	// told is a point of its own: after the commit, before the broker is told.
	told fault.Point = "told"

	reachTimeout = 5 * time.Second // for a child to come by its point; then it is killed where it is
	drainTimeout = 5 * time.Minute
)

var points = []fault.Point{fault.ClaimBefore, fault.HandlerBefore, fault.HandlerAfter, fault.CommitBefore, fault.CommitAfter, told}

// broker is the parent's side of one.
type broker interface {
	url() string
	restart(ctx context.Context) error
	// publish returns when the broker has confirmed all of ids.
	publish(ctx context.Context, ids []string) error
	// left is how many messages there are that no consumer has in hand, or of
	// which it is known that they are not acknowledged, and how many are dead.
	left(ctx context.Context) (left, dead int, err error)
	close()
}

// storm is one run.
type storm struct {
	cfg    Config
	broker broker
	pool   *pgxpool.Pool
	url    string
	rng    *rand.Rand
	rep    Report
}

// Run runs it on servers of r.
func Run(ctx context.Context, r *rig.Rig, cfg Config) (rep Report, err error) {
	if cfg.Progress == nil {
		cfg.Progress = func(string) {}
	}
	server, err := r.StartPostgres(ctx, rig.PostgresOptions{})
	if err != nil {
		return rep, err
	}
	s := &storm{cfg: cfg, url: server.URL("postgres"), rng: rand.New(rand.NewPCG(cfg.Seed, 0)),
		rep: Report{Messages: cfg.Messages, At: make(map[fault.Point]int)}}
	if s.pool, err = pgxpool.New(ctx, s.url); err != nil {
		return rep, err
	}
	defer s.pool.Close()
	if err := postgres.Migrate(ctx, s.pool, postgres.Options{}); err != nil {
		return rep, err
	}
	if _, err := s.pool.Exec(ctx, `CREATE TABLE effects (id text)`); err != nil { // no unique constraint: a second one would show
		return rep, err
	}
	switch cfg.Broker {
	case "rabbitmq":
		s.broker, err = startRabbitMQ(ctx, r)
	case "jetstream":
		s.broker, err = startNATS(ctx, r)
	default:
		err = fmt.Errorf("the broker is %q; it must be rabbitmq or jetstream", cfg.Broker)
	}
	if err != nil {
		return rep, err
	}
	defer s.broker.close()
	if err := s.rage(ctx); err != nil {
		return s.rep, err
	}
	return s.rep, s.judge(ctx)
}

// slices returns all copies of all messages, shuffled, in n parts.
func (s *storm) slices(n int) [][]string {
	var ids []string
	for i := range s.cfg.Messages {
		for range 1 + s.rng.IntN(maxCopies) {
			ids = append(ids, "order-"+strconv.Itoa(i))
		}
	}
	s.rep.Copies = len(ids)
	s.rng.Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
	parts := make([][]string, n)
	for i := range parts {
		parts[i] = ids[len(ids)*i/n : len(ids)*(i+1)/n]
	}
	return parts
}

// rage publishes, kills and restarts, and lets what is left be consumed.
func (s *storm) rage(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	parts := s.slices(s.cfg.Kills + 1) // one for each kill, so that there is always something to do
	feed := make(chan []string, len(parts))
	published := make(chan struct{})
	go func() { // ends with feed, or with ctx
		defer close(published)
		for ids := range feed {
			if err := s.broker.publish(ctx, ids); err != nil {
				cancel(fmt.Errorf("publish: %w", err))
				return
			}
		}
	}()
	feed <- parts[0]
	ended := make(chan error, consumers)
	for range consumers {
		go func() { ended <- nil }() // as if one had ended: start one
	}
	var err error
	for i := 0; i < s.cfg.Kills+consumers && err == nil; i++ {
		if err = s.next(ctx, <-ended, i); err != nil {
			break
		}
		if i < s.cfg.Kills {
			feed <- parts[i+1]
			order := s.orders(i)
			go func() { ended <- s.killOne(ctx, order) }()
		}
	}
	close(feed)
	if err != nil {
		cancel(err)
	}
	<-published
	if err := context.Cause(ctx); err != nil {
		return err
	}
	return s.drain(ctx)
}

// next deals with the end of a child, the i-th to be followed by another.
func (s *storm) next(ctx context.Context, err error, i int) error {
	if err != nil {
		return err
	}
	if i >= consumers {
		s.rep.Kills++
	}
	if s.cfg.Restarts > s.rep.Restarts && i >= s.cfg.Kills*(s.rep.Restarts+1)/(s.cfg.Restarts+1) {
		if err := s.broker.restart(ctx); err != nil {
			return fmt.Errorf("the broker was not restarted: %w", err)
		}
		s.rep.Restarts++
	}
	if i%10 == 9 {
		s.cfg.Progress(fmt.Sprintf("%s: %d of %d kills, %d restarts", s.cfg.Broker, s.rep.Kills, s.cfg.Kills, s.rep.Restarts))
	}
	return nil
}

// orders are those of the i-th child: every point in turn, at a random visit
// that one part of the messages will bring about.
func (s *storm) orders(i int) order {
	o := order{Broker: s.cfg.Broker, URL: s.broker.url(), Postgres: s.url}
	o.Point = points[i%len(points)]
	o.Visit = 1 + s.rng.IntN(max(1, s.cfg.Messages/(2*s.cfg.Kills)))
	s.rep.At[o.Point]++
	return o
}

// killOne starts a child and returns when it was killed.
func (s *storm) killOne(ctx context.Context, o order) error {
	c, err := s.start(ctx, o)
	if err != nil {
		return err
	}
	timeout := time.NewTimer(reachTimeout)
	defer timeout.Stop()
	select {
	case <-c.Exited():
		if !c.Killed() {
			return errors.New("a consumer ended by itself")
		}
	case <-timeout.C:
		c.Kill()
	case <-ctx.Done():
		c.Kill()
		return context.Cause(ctx)
	}
	return nil
}

// start starts a child; one that found no broker is started again.
func (s *storm) start(ctx context.Context, o order) (*child.Process, error) {
	text, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	for try := 1; ; try++ {
		c, err := child.Start(ctx, child.Command{Env: []string{childEnv + "=" + string(text)}})
		if err == nil || !errors.Is(err, child.ErrExited) || try == 20 {
			return c, err
		}
		if c.Killed() { // at its point, before it said that it was ready
			return c, nil
		}
		pause(ctx, 500*time.Millisecond)
	}
}

// drain has consumers that nobody kills until nothing is left.
func (s *storm) drain(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, drainTimeout, errors.New("the consumers did not come to an end"))
	defer cancel()
	for {
		var cs []*child.Process
		for range consumers {
			c, err := s.start(ctx, order{Broker: s.cfg.Broker, URL: s.broker.url(), Postgres: s.url})
			if err != nil {
				return err
			}
			cs = append(cs, c)
		}
		var err error
		for s.rep.Left = 1; s.rep.Left > 0 && err == nil; {
			pause(ctx, 200*time.Millisecond)
			s.rep.Left, s.rep.Dead, err = s.broker.left(ctx)
		}
		for _, c := range cs {
			c.Stop(30 * time.Second)
		}
		if err = errors.Join(err, context.Cause(ctx)); err != nil {
			return err
		}
		// What they had in hand, and gave back, shows now.
		if s.rep.Left, s.rep.Dead, err = s.broker.left(ctx); err != nil || s.rep.Left == 0 {
			return err
		}
	}
}

// judge compares.
func (s *storm) judge(ctx context.Context) error {
	r := &s.rep
	if err := s.pool.QueryRow(ctx, `SELECT count(*), count(DISTINCT id) FROM effects`).Scan(&r.Effects, &r.Distinct); err != nil {
		return err
	}
	err := s.pool.QueryRow(ctx, `SELECT count(*) FILTER (WHERE state = $1), count(*) FILTER (WHERE state = $2) FROM stet.records`,
		int16(stet.Completed), int16(stet.Unknown)).Scan(&r.Completed, &r.Unknown)
	if err != nil {
		return err
	}
	accuse := func(broken bool, format string, args ...any) {
		if broken {
			r.Violations = append(r.Violations, fmt.Sprintf(format, args...))
		}
	}
	accuse(r.Effects != r.Distinct, "%d effects of %d messages", r.Effects, r.Distinct)
	accuse(r.Distinct != r.Messages, "%d messages were lost", r.Messages-r.Distinct)
	accuse(r.Completed != r.Messages, "%d completed records of %d messages", r.Completed, r.Messages)
	accuse(r.Unknown != 0, "%d outcomes are unknown", r.Unknown)
	accuse(r.Dead != 0, "%d dead letters", r.Dead)
	return nil
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
