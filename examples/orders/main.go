// Command orders accepts orders at once and ships them later: POST /v1/orders is
// answered with 202, a worker does the rest, and a page shows how far it is.
//
//	go run ./orders                    # the store is the queue: one SQLite file
//	go run ./orders -queue river       # PostgreSQL, and River on it
//	go run ./orders -queue rabbitmq    # PostgreSQL, and RabbitMQ
//
// Without DATABASE_URL and AMQP_URL it starts private servers. See README.md.
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

	"github.com/stet-go/stet/internal/rig"
)

// settings are what the command line and the environment say.
type settings struct {
	queue    string
	addr     string
	file     string        // of the embedded flavour
	pack     time.Duration // how long it takes to pack a copy
	database string        // PostgreSQL's URL; "" for a private server
	broker   string        // RabbitMQ's, likewise
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
func run(ctx context.Context, s settings, out io.Writer) (err error) {
	var flavour func(context.Context, settings, io.Writer) error
	switch s.queue {
	case "embedded":
		return embedded(ctx, s, out)
	case "river":
		flavour = onRiver
	case "rabbitmq":
		flavour = onRabbitMQ
	default:
		return fmt.Errorf("-queue: %q is none of embedded, river and rabbitmq", s.queue)
	}
	if s.database == "" || s.queue == "rabbitmq" && s.broker == "" {
		stop, err := s.servers(ctx, out)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, stop()) }()
	}
	return flavour(ctx, s, out)
}

// servers starts what is missing.
func (s *settings) servers(ctx context.Context, out io.Writer) (stop func() error, err error) {
	r, err := rig.New()
	if err != nil {
		return nil, err
	}
	if s.database == "" {
		fmt.Fprintln(out, "starting PostgreSQL …")
		var server *rig.PostgresServer
		if server, err = r.StartPostgres(ctx, rig.PostgresOptions{}); err != nil {
			return nil, errors.Join(err, r.Close())
		}
		s.database = server.URL("postgres")
	}
	if s.queue == "rabbitmq" && s.broker == "" {
		fmt.Fprintln(out, "starting RabbitMQ …")
		var server *rig.RabbitMQServer
		if server, err = r.StartRabbitMQ(ctx, rig.RabbitMQOptions{}); err != nil {
			return nil, errors.Join(err, r.Close())
		}
		s.broker = server.URL()
	}
	return r.Close, nil
}
