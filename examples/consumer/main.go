// Command consumer takes orders from RabbitMQ into PostgreSQL. By itself it
// starts private servers of both, sends an order five times and another one
// once, kills the consumer after its first commit, and shows what became of
// them:
//
//	go run ./consumer
//
// With AMQP_URL and DATABASE_URL it is the consumer alone, of the queue "orders".
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/rig"
	"github.com/stet-go/stet/stetmsg"
	"github.com/stet-go/stet/stetmsg/amqp"
	"github.com/stet-go/stet/store/postgres"
)

const queue = "orders"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := start(ctx, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "consumer:", err)
		os.Exit(1)
	}
}

func start(ctx context.Context, out io.Writer) error {
	if url := os.Getenv("AMQP_URL"); url != "" {
		return consume(ctx, url, os.Getenv("DATABASE_URL"))
	}
	return demo(ctx, out)
}

// consume is the whole consumer: the row and the outcome are one commit, after
// which the message is acknowledged.
func consume(ctx context.Context, broker, database string) (err error) {
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
	consumer, err := stetmsg.NewTx(engine, store, stetmsg.Options[amqp091.Delivery]{
		Operation:   stetmsg.By(amqp.Envelope, stetmsg.Header("orders", "message-id")),
		Concurrency: 1,
		Observe:     observe,
	}, func(ctx context.Context, tx pgx.Tx, m amqp091.Delivery) ([]byte, error) {
		fmt.Println("  handler: a row for order", m.MessageId)
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

// observe shows a decision, and kills this process at the worst moment if it is
// told to: the outcome is durable, and the broker does not know.
func observe(_ context.Context, d stetmsg.Decision) {
	if os.Getenv("DIE") != "" {
		fmt.Println("  committed; killed before it could acknowledge")
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {} // the signal is on its way
	}
	fmt.Printf("%s%v: %v\n", decided, d.Action, d.Reason)
}

const decided = "  message: "

// demo shows what happens.
func demo(ctx context.Context, out io.Writer) (err error) {
	fmt.Fprintln(out, "starting RabbitMQ and PostgreSQL …")
	r, err := rig.New()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	server, err := r.StartPostgres(ctx, rig.PostgresOptions{})
	if err != nil {
		return err
	}
	broker, err := r.StartRabbitMQ(ctx, rig.RabbitMQOptions{})
	if err != nil {
		return err
	}
	pool, err := pgxpool.New(ctx, server.URL("postgres"))
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := postgres.Migrate(ctx, pool, postgres.Options{}); err != nil {
		return err
	}
	if _, err := pool.Exec(ctx, "CREATE TABLE orders (id text, body text)"); err != nil { // no unique constraint
		return err
	}
	fmt.Fprintln(out, "order 1001 is published five times, order 1002 once")
	if err := publish(ctx, broker.URL(), "1001", "1001", "1001", "1002", "1001", "1001"); err != nil {
		return err
	}
	env := []string{"AMQP_URL=" + broker.URL(), "DATABASE_URL=" + server.URL("postgres")}
	fmt.Fprintln(out, "a consumer starts")
	if err := child(ctx, out, append(env, "DIE=yes"), 0); err != nil {
		return err
	}
	fmt.Fprintln(out, "another consumer starts; all six messages are still there")
	if err := child(ctx, out, env, 6); err != nil {
		return err
	}
	var rows, orders int
	if err := pool.QueryRow(ctx, "SELECT count(*), count(DISTINCT id) FROM orders").Scan(&rows, &orders); err != nil {
		return err
	}
	fmt.Fprintf(out, "%d rows for %d orders\n", rows, orders)
	return nil
}

// publish publishes orders and returns when RabbitMQ has confirmed all of them.
func publish(ctx context.Context, url string, ids ...string) error {
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

// child runs this program as a consumer, until it has decided about so many
// messages, or until it dies if that is 0.
func child(ctx context.Context, out io.Writer, env []string, messages int) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, self)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stderr = os.Stderr
	said, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	n := 0
	for lines := bufio.NewScanner(said); lines.Scan(); {
		fmt.Fprintln(out, lines.Text())
		if strings.HasPrefix(lines.Text(), decided) {
			if n++; n == messages {
				_ = cmd.Process.Signal(syscall.SIGTERM) // it ends what it has begun
			}
		}
	}
	if err := cmd.Wait(); messages > 0 {
		return err
	}
	return nil
}
