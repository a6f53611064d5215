// Command orders accepts orders at once and ships them later: POST /v1/orders is
// answered with 202, a worker does the rest, and a page shows how far it is.
//
//	go run ./orders                    # the store is the queue: one SQLite file
//	go run ./orders -queue river       # PostgreSQL, and River on it
//	go run ./orders -queue rabbitmq    # PostgreSQL, and RabbitMQ
//
// The servers are those of DATABASE_URL and AMQP_URL. See README.md.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// settings are what the command line and the environment say.
type settings struct {
	queue    string
	addr     string
	file     string        // of the embedded flavour
	pack     time.Duration // how long it takes to pack a copy
	database string        // PostgreSQL's URL
	broker   string        // RabbitMQ's
}

func main() {
	var s settings
	flag.StringVar(&s.queue, "queue", "embedded", "what carries orders to workers: embedded, river or rabbitmq")
	flag.StringVar(&s.addr, "addr", "127.0.0.1:8090", "where to listen")
	flag.StringVar(&s.file, "db", "orders.db", "with -queue embedded: the database file")
	flag.DurationVar(&s.pack, "pack", time.Second, "how long it takes to pack a copy")
	flag.Parse()
	s.database, s.broker = os.Getenv("DATABASE_URL"), os.Getenv("AMQP_URL")
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, s, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "orders:", err)
		os.Exit(1)
	}
}

// run serves until ctx ends.
func run(ctx context.Context, s settings, out io.Writer) error {
	switch {
	case s.queue == "embedded":
		return embedded(ctx, s, out)
	case s.queue != "river" && s.queue != "rabbitmq":
		return fmt.Errorf("-queue: %q is none of embedded, river and rabbitmq", s.queue)
	case s.database == "":
		return errors.New("set DATABASE_URL to a PostgreSQL database")
	case s.queue == "river":
		return onRiver(ctx, s, out)
	case s.broker == "":
		return errors.New("set AMQP_URL to a RabbitMQ server")
	}
	return onRabbitMQ(ctx, s, out)
}
