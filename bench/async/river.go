package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	riverqueue "github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/bench/internal/rounds"
	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/observe"
	"github.com/stet-go/stet/stetwork"
	stetriver "github.com/stet-go/stet/stetwork/river"
	"github.com/stet-go/stet/store/postgres"
)

const (
	cooldown = 2 * time.Millisecond // between River's fetches; by default 100 ms, which would be all that is measured

	tables = `
CREATE TABLE orders (id bigint PRIMARY KEY, body text);
CREATE TABLE shipments (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, "order" bigint, body text)`
	insertOrder    = `INSERT INTO orders VALUES ($1, $2)`
	insertShipment = `INSERT INTO shipments ("order", body) VALUES ($1, $2)`
)

var text = strings.Repeat("b", 500)

// plain are the arguments of a job without stet: the whole order.
type plain body

// Kind implements River's JobArgs.
func (plain) Kind() string { return "plain" }

// shop is the service under test.
type shop struct {
	pool   *pgxpool.Pool
	store  *postgres.Store
	insert *riverqueue.Client[pgx.Tx] // only inserts

	settled atomic.Pointer[func()] // is called with each outcome
}

// river compares stet on River with River alone.
func river(ctx context.Context) (err error) {
	r, err := rig.New()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	server, err := r.StartPostgres(ctx, rig.PostgresOptions{})
	if err != nil {
		return err
	}
	s, err := openShop(ctx, server.URL("postgres"))
	if err != nil {
		return err
	}
	defer s.pool.Close()
	defer func() { err = errors.Join(err, s.store.Close()) }()
	engine, err := stet.New(s.store, stet.Options{Observer: observe.Func(func(_ context.Context, ev observe.Event) {
		if done := s.settled.Load(); done != nil && ev.Kind == observe.Settled {
			(*done)()
		}
	})})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, engine.Close()) }()
	queue, err := stetriver.New(s.insert, stetriver.Options{})
	if err != nil {
		return err
	}
	ct := contest{p99: make(map[string][]float64)}
	ct.rates, err = rounds.Compare(*n,
		ct.round(ctx, contender{"river", s.acceptPlain, s.workPlain(s.shipPlain)}),
		ct.round(ctx, contender{"river tx", s.acceptPlain, s.workPlain(s.shipComplete)}),
		ct.round(ctx, contender{"stet", s.acceptIn(engine, queue), s.workIn(engine, queue)}),
		ct.round(ctx, contender{"stet dispatched", s.acceptIn(engine, nil), s.workIn(engine, queue)}),
	)
	if err != nil {
		return err
	}
	if err := s.check(ctx, 4*(*n+1)**count); err != nil {
		return err
	}
	for _, c := range []struct{ name, figure string }{
		{"river", "async_river"}, {"river tx", "async_river_tx"}, {"stet", "async_postgres_river"}, {"stet dispatched", "async_postgres_river_dispatched"},
	} {
		rounds.Figure(c.figure, rounds.Median(ct.rates[c.name]), "operations/s")
		rounds.Figure(c.figure+"_accept_p99", rounds.Median(ct.p99[c.name]), "ms")
	}
	for _, c := range []struct{ name, figure string }{{"stet", "async_river"}, {"stet dispatched", "async_river_dispatched"}} {
		rounds.Figure(c.figure+"_ratio", rounds.Ratio(ct.rates[c.name], ct.rates["river"]), "of River alone with the same inserts")
		rounds.Figure(c.figure+"_tx_ratio", rounds.Ratio(ct.rates[c.name], ct.rates["river tx"]), "of River alone that completes its job in the insert's transaction")
	}
	return nil
}

func openShop(ctx context.Context, url string) (*shop, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	config.MaxConns = int32(*conns)
	s := &shop{}
	if s.pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return nil, err
	}
	if err := s.open(ctx); err != nil {
		s.pool.Close()
		return nil, err
	}
	return s, nil
}

func (s *shop) open(ctx context.Context) error {
	migrator, err := rivermigrate.New(riverpgxv5.New(s.pool), &rivermigrate.Config{Logger: quiet})
	if err != nil {
		return err
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return err
	}
	if err := postgres.Migrate(ctx, s.pool, postgres.Options{}); err != nil {
		return err
	}
	if _, err := s.pool.Exec(ctx, tables); err != nil {
		return err
	}
	if s.insert, err = riverqueue.NewClient(riverpgxv5.New(s.pool), &riverqueue.Config{Logger: quiet}); err != nil {
		return err
	}
	s.store, err = postgres.New(ctx, s.pool, postgres.Options{})
	return err
}

var quiet = slog.New(slog.DiscardHandler)

// check compares the number of rows with want.
func (s *shop) check(ctx context.Context, want int) error {
	var rows, different int
	if err := s.pool.QueryRow(ctx, `SELECT count(*), count(DISTINCT "order") FROM shipments`).Scan(&rows, &different); err != nil {
		return err
	}
	if rows != want || different != want {
		return fmt.Errorf("%d shipments of %d orders; want %d of each", rows, different, want)
	}
	return nil
}

// acceptPlain is an order and its job in one transaction.
func (s *shop) acceptPlain(ctx context.Context, order int64) error {
	return pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, insertOrder, order, text); err != nil {
			return err
		}
		_, err := s.insert.InsertTx(ctx, tx, plain{order, text}, nil)
		return err
	})
}

// acceptIn is an order and its acceptance in one transaction, of InTx, as stethttp has
// it. With a queue the job is in it, too; otherwise the worker's dispatcher passes
// accepted operations to River, in batches.
func (s *shop) acceptIn(engine *stet.Engine, queue *stetriver.Queue[pgx.Tx]) func(context.Context, int64) error {
	return func(ctx context.Context, order int64) error {
		work, err := stetwork.NewWork("ship", body{order, text})
		if err != nil {
			return err
		}
		te, err := stet.WithTx(engine, s.store)
		if err != nil {
			return err
		}
		op := stet.Op{Scope: "bench", Key: strconv.FormatInt(order, 10)}
		err = te.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, insertOrder, order, text); err != nil {
				return err
			}
			if queue != nil {
				_, err := queue.AcceptTx(ctx, te, tx, op, work)
				return err
			}
			_, err := te.Accept(ctx, tx, op, work)
			return err
		})
		if queue == nil {
			engine.Wake()
		}
		return err
	}
}

// shipPlain may run twice: the insert and the job's completion are two commits.
func (s *shop) shipPlain(ctx context.Context, job *riverqueue.Job[plain]) error {
	_, err := s.pool.Exec(ctx, insertShipment, job.Args.Order, job.Args.Text)
	return err
}

// shipComplete makes them one.
func (s *shop) shipComplete(ctx context.Context, job *riverqueue.Job[plain]) error {
	return pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, insertShipment, job.Args.Order, job.Args.Text); err != nil {
			return err
		}
		_, err := riverqueue.JobCompleteTx[*riverpgxv5.Driver](ctx, tx, job)
		return err
	})
}

type working = func(ctx context.Context, done func()) (end func() error, err error)

func (s *shop) workPlain(ship func(context.Context, *riverqueue.Job[plain]) error) working {
	return func(ctx context.Context, done func()) (func() error, error) {
		jobs := riverqueue.NewWorkers()
		if err := riverqueue.AddWorkerSafely(jobs, riverqueue.WorkFunc(ship)); err != nil {
			return nil, err
		}
		return s.start(ctx, jobs, done)
	}
}

func (s *shop) workIn(engine *stet.Engine, queue *stetriver.Queue[pgx.Tx]) working {
	return func(ctx context.Context, done func()) (func() error, error) {
		worker, err := stetwork.New(engine, stetwork.Options{Queue: queue, Concurrency: *workers, ErrorLog: quiet})
		if err != nil {
			return nil, err
		}
		te, err := stet.WithTx(engine, s.store)
		if err != nil {
			return nil, err
		}
		err = stetwork.HandleTx(worker, te, "ship", func(ctx context.Context, tx pgx.Tx, b body) (int64, error) {
			_, err := tx.Exec(ctx, insertShipment, b.Order, b.Text)
			return b.Order, err
		})
		if err != nil {
			return nil, err
		}
		jobs := riverqueue.NewWorkers()
		if err := stetriver.AddWorker(jobs, worker); err != nil {
			return nil, err
		}
		ended := make(chan error, 1)
		running, cancel := context.WithCancel(ctx)
		go func() { ended <- worker.Run(running) }() // ends with cancel
		// Outcomes are counted, not jobs: an operation that is due may get a second one.
		s.settled.Store(&done)
		stop, err := s.start(ctx, jobs, func() {})
		if err != nil {
			cancel()
			return nil, errors.Join(err, <-ended)
		}
		return func() error {
			err := stop()
			cancel()
			return errors.Join(err, <-ended)
		}, nil
	}
}

// start starts a River client that works, and calls done when a job is completed.
func (s *shop) start(ctx context.Context, jobs *riverqueue.Workers, done func()) (func() error, error) {
	client, err := riverqueue.NewClient(riverpgxv5.New(s.pool), &riverqueue.Config{Logger: quiet, Workers: jobs, FetchCooldown: cooldown,
		Queues: map[string]riverqueue.QueueConfig{riverqueue.QueueDefault: {MaxWorkers: *workers}}})
	if err != nil {
		return nil, err
	}
	// Room for all: River drops events that are not received in time.
	events, unsubscribe := client.SubscribeConfig(&riverqueue.SubscribeConfig{ChanSize: 2 * *count, Kinds: []riverqueue.EventKind{riverqueue.EventKindJobCompleted}})
	if err := client.Start(ctx); err != nil {
		unsubscribe()
		return nil, err
	}
	go func() { // ends with unsubscribe
		for range events {
			done()
		}
	}()
	return func() error {
		defer unsubscribe()
		return client.Stop(context.WithoutCancel(ctx))
	}, nil
}
