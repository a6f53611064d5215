// Command messages measures what stetmsg costs on real brokers: the rate of a
// consumer behind it beside that of a bare one on the same broker, with the
// memory store and a handler that does nothing, and with PostgreSQL and a
// handler that inserts a row; there also beside what one writes by hand so that a
// message has its effect once: a table of the ids that were seen.
//
// Both sides have the same workers, twice as many messages held or requested
// (on JetStream eight times), and acknowledge one by one; rounds alternate. On
// JetStream the bare consumer holds more messages, up to one for each worker,
// because messages held by workers no longer count as requested. Grouped
// transactions hold half as many more on either broker, see stetmsg.Options.Group.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/bench/internal/rounds"
	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/store/memory"
	"github.com/stet-go/stet/store/postgres"
)

var (
	count   = flag.Int("messages", 20_000, "messages of about 1 KB in one measurement")
	workers = flag.Int("workers", 64, "messages handled at a time")
	n       = flag.Int("rounds", 5, "rounds")
	group   = flag.Int("group", 32, "messages in one transaction, where they are grouped")
	only    = flag.String("brokers", "rabbitmq,jetstream", "brokers, separated by commas")
)

func main() {
	flag.Parse()
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "messages:", err)
		os.Exit(1)
	}
}

// broker is the broker under test.
type broker interface {
	// fill publishes messages with new ids.
	fill(ctx context.Context, ids []string) error
	// bare receives with the broker's own client and so many workers, and
	// acknowledges each message after handle.
	bare(ctx context.Context, handle func(ctx context.Context, id string) error) error
	// wrapped receives through stetmsg, with the memory store, or in
	// transactions.
	wrapped(ctx context.Context, engine *stet.Engine, handle func(ctx context.Context, id string) error) error
	transactional(ctx context.Context, engine *stet.Engine, store *postgres.Store, group int, handle func(ctx context.Context, tx pgx.Tx, id string) error) error
}

type bench struct {
	broker  broker
	pool    *pgxpool.Pool
	store   *postgres.Store
	durable *stet.Engine
}

func run(ctx context.Context) (err error) {
	r, err := rig.New()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	server, err := r.StartPostgres(ctx, rig.PostgresOptions{})
	if err != nil {
		return err
	}
	config, err := pgxpool.ParseConfig(server.URL("postgres"))
	if err != nil {
		return err
	}
	config.MaxConns = int32(*workers)
	b := &bench{}
	if b.pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return err
	}
	defer b.pool.Close()
	if err := postgres.Migrate(ctx, b.pool, postgres.Options{}); err != nil {
		return err
	}
	if _, err := b.pool.Exec(ctx, `CREATE TABLE orders (id text, body text); CREATE TABLE seen (id text PRIMARY KEY)`); err != nil {
		return err
	}
	if b.store, err = postgres.New(ctx, b.pool, postgres.Options{}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.store.Close()) }()
	if b.durable, err = stet.New(b.store, stet.Options{SweepEvery: -1}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.durable.Close()) }()
	for _, name := range strings.Split(*only, ",") {
		switch name {
		case "rabbitmq":
			b.broker, err = newRabbitMQ(ctx, r)
		case "jetstream":
			b.broker, err = newJetStream(ctx, r)
		default:
			err = fmt.Errorf("-brokers: %q is neither rabbitmq nor jetstream", name)
		}
		if err != nil {
			return err
		}
		if err := b.compare(ctx, name); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

const (
	insert = `INSERT INTO orders VALUES ($1, $2)`
	see    = `INSERT INTO seen VALUES ($1) ON CONFLICT DO NOTHING`
)

func (b *bench) compare(ctx context.Context, name string) error {
	rates, err := rounds.Compare(*n,
		rounds.Contender{Name: "bare", Measure: b.measure(ctx, func(ctx context.Context, done func()) error {
			return b.broker.bare(ctx, func(context.Context, string) error { done(); return nil })
		})},
		rounds.Contender{Name: "memory", Measure: func() (float64, error) {
			engine, err := stet.New(memory.New(memory.Options{}), stet.Options{SweepEvery: -1})
			if err != nil {
				return 0, err
			}
			defer func() { _ = engine.Close() }()
			return b.measure(ctx, func(ctx context.Context, done func()) error {
				return b.broker.wrapped(ctx, engine, func(context.Context, string) error { done(); return nil })
			})()
		}},
		rounds.Contender{Name: "bare insert", Measure: b.measure(ctx, func(ctx context.Context, done func()) error {
			return b.broker.bare(ctx, func(ctx context.Context, id string) error {
				defer done()
				_, err := b.pool.Exec(context.WithoutCancel(ctx), insert, id, body)
				return err
			})
		})},
		rounds.Contender{Name: "by hand", Measure: b.measure(ctx, func(ctx context.Context, done func()) error {
			return b.broker.bare(ctx, func(ctx context.Context, id string) error {
				defer done()
				return b.once(context.WithoutCancel(ctx), id)
			})
		})},
		rounds.Contender{Name: "postgres", Measure: b.transactional(ctx, 1)},
		rounds.Contender{Name: "postgres grouped", Measure: b.transactional(ctx, *group)},
	)
	if err != nil {
		return err
	}
	for _, c := range []string{"bare", "memory", "bare insert", "by hand", "postgres", "postgres grouped"} {
		rounds.Figure("messages_"+name+"_"+strings.ReplaceAll(c, " ", "_"), rounds.Median(rates[c]), "messages/s")
	}
	rounds.Figure("messages_"+name+"_memory_ratio", rounds.Ratio(rates["memory"], rates["bare"]), "of bare")
	rounds.Figure("messages_"+name+"_postgres_ratio", rounds.Ratio(rates["postgres"], rates["bare insert"]), "of bare with the same insert")
	rounds.Figure("messages_"+name+"_postgres_by_hand_ratio", rounds.Ratio(rates["postgres"], rates["by hand"]), "of a bare consumer with a table of seen ids")
	rounds.Figure("messages_"+name+"_postgres_grouped_ratio", rounds.Ratio(rates["postgres grouped"], rates["bare insert"]), "of bare with the same insert")
	return nil
}

// once inserts an order unless its message was seen before.
func (b *bench) once(ctx context.Context, id string) error {
	return pgx.BeginFunc(ctx, b.pool, func(tx pgx.Tx) error {
		if tag, err := tx.Exec(ctx, see, id); err != nil || tag.RowsAffected() == 0 {
			return err
		}
		_, err := tx.Exec(ctx, insert, id, body)
		return err
	})
}

func (b *bench) transactional(ctx context.Context, group int) func() (float64, error) {
	return b.measure(ctx, func(ctx context.Context, done func()) error {
		return b.broker.transactional(ctx, b.durable, b.store, group, func(ctx context.Context, tx pgx.Tx, id string) error {
			defer done()
			_, err := tx.Exec(ctx, insert, id, body)
			return err
		})
	})
}

var body = strings.Repeat("b", 1000)

// measure fills the broker and has consume empty it.
func (b *bench) measure(ctx context.Context, consume func(ctx context.Context, done func()) error) func() (float64, error) {
	return func() (float64, error) {
		ids := make([]string, *count)
		for i := range ids {
			ids[i] = stet.NewKey()
		}
		if err := b.broker.fill(ctx, ids); err != nil {
			return 0, err
		}
		ctx, cancel := context.WithTimeoutCause(ctx, 5*time.Minute, errors.New("the messages were not consumed in time"))
		defer cancel()
		all := make(chan struct{})
		var handled atomic.Int64
		var began time.Time // from the first message on: wiring is not measured
		ended := make(chan error, 1)
		go func() {
			ended <- consume(ctx, func() {
				switch handled.Add(1) {
				case 1:
					began = time.Now()
				case int64(*count):
					close(all)
				}
			})
		}()
		select {
		case <-all:
		case err := <-ended:
			return 0, errors.Join(err, context.Cause(ctx))
		}
		took := time.Since(began)
		cancel()
		return float64(*count) / took.Seconds(), <-ended
	}
}
