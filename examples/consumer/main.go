// Command consumer takes orders from RabbitMQ into PostgreSQL. It needs both:
//
//	export AMQP_URL=amqp://guest:guest@localhost/ DATABASE_URL=postgres://postgres@localhost/postgres
//	go run ./consumer 1001 1001 1001 1002    # publishes orders, one of them three times
//	go run ./consumer                        # takes them: two rows, however often it is killed
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stetmsg"
	"github.com/stet-go/stet/stetmsg/amqp"
	"github.com/stet-go/stet/store/postgres"
)

const queue = "orders"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Getenv("AMQP_URL"), os.Getenv("DATABASE_URL"), os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "consumer:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, broker, database string, orders []string) error {
	if broker == "" || database == "" {
		return errors.New("set AMQP_URL and DATABASE_URL")
	}
	if len(orders) > 0 {
		return publish(ctx, broker, orders)
	}
	if err := prepare(ctx, broker, database); err != nil {
		return err
	}
	return consume(ctx, broker, database, func(_ context.Context, d stetmsg.Decision) {
		fmt.Printf("message: %v: %v\n", d.Action, d.Reason)
	})
}

// consume is the whole consumer: the row and the outcome are one commit, after
// which the message is acknowledged.
func consume(ctx context.Context, broker, database string, observe func(context.Context, stetmsg.Decision)) (err error) {
	store, err := postgres.Open(ctx, database, postgres.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	engine, err := stet.New(store, stet.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, engine.Close()) }()
	te, err := stet.WithTx(engine, store)
	if err != nil {
		return err
	}
	consumer, err := stetmsg.NewTx(te, stetmsg.Options[amqp091.Delivery]{
		Operation:   stetmsg.By(amqp.Envelope, stetmsg.Header("orders", "message-id")),
		Concurrency: 1,
		Observe:     observe,
	}, func(ctx context.Context, tx pgx.Tx, m amqp091.Delivery) ([]byte, error) {
		fmt.Println("handler: a row for order", m.MessageId)
		_, err := tx.Exec(ctx, "INSERT INTO orders VALUES ($1, $2)", m.MessageId, string(m.Body))
		return nil, err
	})
	if err != nil {
		return err
	}
	receiver, err := amqp.New(consumer, amqp.Options{URL: broker, Queue: queue, Prefetch: 1})
	if err != nil {
		return err
	}
	return receiver.Run(ctx)
}

// prepare makes the tables and the queue if they are missing. A service does this
// when it is deployed.
func prepare(ctx context.Context, broker, database string) error {
	pool, err := pgxpool.New(ctx, database)
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := postgres.Migrate(ctx, pool, postgres.Options{}); err != nil {
		return err
	}
	if _, err := pool.Exec(ctx, "CREATE TABLE IF NOT EXISTS orders (id text, body text)"); err != nil { // no unique constraint
		return err
	}
	return publish(ctx, broker, nil)
}

// publish publishes orders and returns when RabbitMQ has confirmed all of them.
func publish(ctx context.Context, url string, ids []string) error {
	conn, err := amqp091.Dial(url)
	if err != nil {
		return err
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	if _, err := ch.QueueDeclare(queue, true, false, false, false, nil); err != nil {
		return err
	}
	if err := ch.Confirm(false); err != nil {
		return err
	}
	for _, id := range ids {
		m := amqp091.Publishing{DeliveryMode: amqp091.Persistent, MessageId: id, Body: []byte("five books")}
		sent, err := ch.PublishWithDeferredConfirmWithContext(ctx, "", queue, true, false, m)
		if err != nil {
			return err
		}
		if ok, err := sent.WaitContext(ctx); err != nil || !ok {
			return errors.Join(err, errors.New("not confirmed"))
		}
	}
	return nil
}
