package broker_test

import (
	"context"
	"log"
	"os"
	"os/signal"

	"golang.org/x/sync/errgroup"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stetmsg/amqp"
	"github.com/stet-go/stet/stetwork"
	"github.com/stet-go/stet/stetwork/broker"
	"github.com/stet-go/stet/store/postgres"
)

// A worker process publishes due operations to RabbitMQ, and runs received ones.
func Example() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	store, err := postgres.Open(ctx, "postgres://localhost/shop", postgres.Options{})
	if err != nil {
		log.Fatal(err)
	}
	engine, err := stet.New(store, stet.Options{})
	if err != nil {
		log.Fatal(err)
	}
	publisher, err := amqp.NewPublisher(amqp.PublisherOptions{URL: "amqp://localhost"})
	if err != nil {
		log.Fatal(err)
	}
	queue, err := broker.NewQueue(publisher.Publish, func(stet.Item) string { return "work" })
	if err != nil {
		log.Fatal(err)
	}
	worker, err := stetwork.New(engine, stetwork.Options{Queue: queue})
	if err != nil {
		log.Fatal(err)
	}
	type order struct{ Book string }
	err = stetwork.Handle(worker, "ship", func(_ context.Context, o order) (string, error) { return "shipped " + o.Book, nil })
	if err != nil {
		log.Fatal(err)
	}
	consumer, err := broker.NewConsumer(worker, amqp.Envelope, broker.ConsumerOptions{})
	if err != nil {
		log.Fatal(err)
	}
	receiver, err := amqp.New(consumer, amqp.Options{URL: "amqp://localhost", Queue: "work"})
	if err != nil {
		log.Fatal(err)
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return worker.Run(ctx) })
	g.Go(func() error { return receiver.Run(ctx) })
	if err := g.Wait(); err != nil {
		log.Fatal(err)
	}
}
