package main

import (
	"context"
	"database/sql"
	"errors"
	"io"
	"log/slog"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/stetmsg/amqp"
	"github.com/stet-go/stet/stetwork"
	"github.com/stet-go/stet/stetwork/broker"
	stetriver "github.com/stet-go/stet/stetwork/river"
	"github.com/stet-go/stet/store/postgres"
	"github.com/stet-go/stet/store/sqlite"
)

// embedded has nothing but a file.
func embedded(ctx context.Context, o settings, out io.Writer) (err error) {
	store, err := sqlite.Open(ctx, o.file, sqlite.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	if _, err := store.DB().ExecContext(ctx, schema); err != nil {
		return err
	}
	s := &shop[*sql.Tx]{
		store: store,
		exec: func(ctx context.Context, tx *sql.Tx, query string, args ...any) error {
			_, err := tx.ExecContext(ctx, strings.ReplaceAll(query, "$", "?"), args...) // SQLite's way to number them
			return err
		},
		count: func(ctx context.Context, table string) (n int, err error) {
			err = store.DB().QueryRowContext(ctx, "SELECT count(*) FROM "+table).Scan(&n)
			return n, err
		},
	}
	return s.serve(ctx, o, out)
}

// onPostgres is what the other flavours have in common.
func onPostgres(ctx context.Context, url string) (*shop[pgx.Tx], *pgxpool.Pool, error) {
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return nil, nil, err
	}
	if err := postgres.Migrate(ctx, pool, postgres.Options{}); err != nil {
		pool.Close()
		return nil, nil, err
	}
	store, err := postgres.New(ctx, pool, postgres.Options{})
	if err == nil {
		_, err = pool.Exec(ctx, schema)
	}
	if err != nil {
		pool.Close()
		return nil, nil, err
	}
	return &shop[pgx.Tx]{
		store: store,
		exec: func(ctx context.Context, tx pgx.Tx, query string, args ...any) error {
			_, err := tx.Exec(ctx, query, args...)
			return err
		},
		count: func(ctx context.Context, table string) (n int, err error) {
			err = pool.QueryRow(ctx, "SELECT count(*) FROM "+table).Scan(&n)
			return n, err
		},
	}, pool, nil
}

// onRiver has River carry orders, in the same database.
func onRiver(ctx context.Context, o settings, out io.Writer) error {
	s, pool, err := onPostgres(ctx, o.database)
	if err != nil {
		return err
	}
	defer pool.Close()
	quiet := slog.New(slog.DiscardHandler)
	migrator, err := rivermigrate.New(riverpgxv5.New(pool), &rivermigrate.Config{Logger: quiet})
	if err != nil {
		return err
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return err
	}
	insert, err := river.NewClient(riverpgxv5.New(pool), &river.Config{Logger: quiet})
	if err != nil {
		return err
	}
	queue, err := stetriver.New(insert, stetriver.Options{})
	if err != nil {
		return err
	}
	s.queue = queue // for what its job has not brought to an end
	s.accept = func(te *stet.TxEngine[pgx.Tx]) func(context.Context, stet.Op, stet.Work) (stet.Status, error) {
		return func(ctx context.Context, op stet.Op, w stet.Work) (stet.Status, error) {
			return queue.AcceptTx(ctx, te, stethttp.Tx[pgx.Tx](ctx), op, w)
		}
	}
	s.carry = func(ctx context.Context, w *stetwork.Worker) error {
		jobs := river.NewWorkers()
		if err := stetriver.AddWorker(jobs, w); err != nil {
			return err
		}
		client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{Logger: quiet, Workers: jobs,
			// A process that was killed must not hold up its orders for an hour.
			RescueStuckJobsAfter: time.Minute,
			Queues:               map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: w.Concurrency()}}})
		if err != nil {
			return err
		}
		if err := client.Start(context.WithoutCancel(ctx)); err != nil {
			return err
		}
		<-ctx.Done()
		bound, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*closeWithin)
		defer cancel()
		return client.Stop(bound)
	}
	return s.serve(ctx, o, out)
}

const work = "work"

// onRabbitMQ has RabbitMQ carry orders. The outcomes are in PostgreSQL.
func onRabbitMQ(ctx context.Context, o settings, out io.Writer) error {
	s, pool, err := onPostgres(ctx, o.database)
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := declare(o.broker); err != nil {
		return err
	}
	publisher, err := amqp.NewPublisher(amqp.PublisherOptions{URL: o.broker})
	if err != nil {
		return err
	}
	defer func() { _ = publisher.Close() }()
	if s.queue, err = broker.NewQueue(publisher.Publish, func(stet.Item) string { return work }); err != nil {
		return err
	}
	s.carry = func(ctx context.Context, w *stetwork.Worker) error {
		consumer, err := broker.NewConsumer(w, amqp.Envelope, broker.ConsumerOptions{})
		if err != nil {
			return err
		}
		receiver, err := amqp.New(consumer, amqp.Options{URL: o.broker, Queue: work})
		if err != nil {
			return err
		}
		return receiver.Run(ctx)
	}
	return s.serve(ctx, o, out)
}

func declare(url string) error {
	conn, err := amqp091.Dial(url)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	_, err = ch.QueueDeclare(work, true, false, false, false, nil)
	return err
}
