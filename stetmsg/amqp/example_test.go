package amqp_test

import (
	"context"
	"log"
	"os"
	"os/signal"

	"github.com/jackc/pgx/v5"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stetmsg"
	"github.com/stet-go/stet/stetmsg/amqp"
	"github.com/stet-go/stet/store/postgres"
)

// Orders from RabbitMQ into PostgreSQL: the row and the outcome are one commit,
// after which the message is acknowledged.
func Example() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	store, err := postgres.Open(ctx, "postgres://localhost/shop", postgres.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	engine, err := stet.New(store, stet.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer engine.Close()
	te, err := stet.WithTx(engine, store)
	if err != nil {
		log.Fatal(err)
	}
	consumer, err := stetmsg.NewTx(te, stetmsg.Options[amqp091.Delivery]{
		Operation: stetmsg.By(amqp.Envelope, stetmsg.Header("orders", "message-id")),
	}, func(ctx context.Context, tx pgx.Tx, m amqp091.Delivery) ([]byte, error) {
		_, err := tx.Exec(ctx, "INSERT INTO orders (body) VALUES ($1)", m.Body)
		return nil, err
	})
	if err != nil {
		log.Fatal(err)
	}
	receiver, err := amqp.New(consumer, amqp.Options{URL: "amqp://localhost", Queue: "orders"})
	if err != nil {
		log.Fatal(err)
	}
	if err := receiver.Run(ctx); err != nil {
		log.Fatal(err)
	}
}
