package amqp_test

import (
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/rig"
	"github.com/stet-go/stet/stetmsg"
	"github.com/stet-go/stet/stetmsg/amqp"
	"github.com/stet-go/stet/store/sqlite"
)

func TestReceiverSurvivesACancellationByTheServer(t *testing.T) {
	f := newFixture(t, rig.RabbitMQ(t).URL())
	stop := f.run(f.receiver(func(context.Context, amqp091.Delivery) ([]byte, error) { return nil, nil }, amqp.Options{QueueType: "classic"}))
	defer stop()
	f.publish(amqp091.Publishing{MessageId: "before"})
	f.until(func() bool { return len(f.reasons("before")) == 1 })
	f.channel(func(ch *amqp091.Channel) {
		_, err := ch.QueueDelete(f.queue, false, false, false)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ch.QueueDeclare(f.queue, true, false, false, false, nil); err != nil {
			t.Fatal(err)
		}
	})
	f.publish(amqp091.Publishing{MessageId: "after"})
	f.until(func() bool { return len(f.reasons("after")) == 1 })
}

// TestServerThatHasOnlyJustBootedMayRefuse: its queues are loaded after it has
// begun to listen.
func TestServerThatHasOnlyJustBootedMayRefuse(t *testing.T) {
	f := newFixture(t, rig.RabbitMQ(t).URL())
	f.channel(func(ch *amqp091.Channel) {
		if _, err := ch.QueueDelete(f.queue, false, false, false); err != nil {
			t.Fatal(err)
		}
	})
	asked := make(chan struct{}, 100)
	r := f.receiver(func(context.Context, amqp091.Delivery) ([]byte, error) { return nil, nil }, amqp.Options{
		QueueType: "classic",
		Dial: func(context.Context) (*amqp091.Connection, error) {
			asked <- struct{}{}
			return amqp091.Dial(f.url)
		},
	})
	r.SetRefusals(time.Minute)
	stop := f.run(r)
	defer stop()
	for range 2 { // so it was refused once
		select {
		case <-asked:
		case <-time.After(patience):
			t.Fatal("the server was not asked again")
		}
	}
	f.channel(func(ch *amqp091.Channel) {
		if _, err := ch.QueueDeclare(f.queue, true, false, false, false, nil); err != nil {
			t.Fatal(err)
		}
	})
	f.publish(amqp091.Publishing{MessageId: "1"})
	f.until(func() bool { return len(f.reasons("1")) == 1 })
}

func TestReceiverStopsWhileTheServerBlocksPublishers(t *testing.T) {
	server := rig.NewRabbitMQ(t, rig.RabbitMQOptions{Settings: map[string]string{"vm_memory_high_watermark.absolute": "1MB"}})
	f := newFixture(t, server.URL())
	conn, err := amqp091.Dial(f.url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.CloseDeadline(time.Now()) }()
	blocked := conn.NotifyBlocked(make(chan amqp091.Blocking, 1))
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	// What a connection publishes first gets through.
	if err := ch.PublishWithContext(t.Context(), "", f.queue, true, false, amqp091.Publishing{MessageId: "1"}); err != nil {
		t.Fatal(err)
	}
	select {
	case <-blocked:
	case <-time.After(patience):
		t.Fatal("the server does not block publishers")
	}
	r := f.receiver(func(context.Context, amqp091.Delivery) ([]byte, error) { return nil, errors.New("no") }, amqp.Options{QueueType: "classic"})
	r.SetPatience(3 * time.Second)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	f.until(func() bool { return len(f.reasons("1")) > 0 }) // its dead letter blocks the connection
	cancel()
	select {
	case err := <-done:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(patience):
		t.Fatal("Run does not end")
	}
}

func TestMalformedURLIsRefusedAndNotRepeated(t *testing.T) {
	byID := stetmsg.By(amqp.Envelope, stetmsg.Header("orders", "message-id"))
	engine := newEngine(t)
	c, err := stetmsg.New(engine, stetmsg.Options[amqp091.Delivery]{Operation: byID},
		func(context.Context, amqp091.Delivery) ([]byte, error) { return nil, nil })
	if err != nil {
		t.Fatal(err)
	}
	for _, url := range []string{"amqp://user:hunter2%@127.0.0.1/", "amqp://user:hunter2@127.0.0.1:port/", "http://user:hunter2@127.0.0.1/", "user:hunter2 @127.0.0.1"} {
		_, err := amqp.New(c, amqp.Options{URL: url, Queue: "q"})
		if !errors.Is(err, stet.ErrInvalid) {
			t.Errorf("%s: %v", url, err)
		} else if strings.Contains(err.Error(), "hunter2") {
			t.Errorf("the error has the password: %v", err)
		}
	}
}

// newEngine returns an engine on a store with transactions.
func newEngine(t *testing.T) *stet.Engine {
	t.Helper()
	store, err := sqlite.Open(t.Context(), t.TempDir()+"/stet.db", sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	engine, err := stet.New(store, stet.Options{SweepEvery: -1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = engine.Close() })
	return engine
}

func TestForgedCountOfDeliveriesSettlesNothingAndADeadLetterCanBePutBack(t *testing.T) {
	f := newFixture(t, rig.RabbitMQ(t).URL())
	f.engine = newEngine(t)
	c, err := stetmsg.NewTx(f.engine, f.engine.Store().(*sqlite.Store), stetmsg.Options[amqp091.Delivery]{
		Operation: stetmsg.By(amqp.Envelope, stetmsg.Header("orders", "message-id")), ErrorLog: slog.New(slog.DiscardHandler),
		Observe: func(_ context.Context, d stetmsg.Decision) { f.observe(d) },
	}, func(context.Context, *sql.Tx, amqp091.Delivery) ([]byte, error) { return nil, nil })
	if err != nil {
		t.Fatal(err)
	}
	r, err := amqp.New(c, amqp.Options{URL: f.url, Queue: f.queue, ErrorLog: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	stop := f.run(r)
	defer stop()
	f.publish(amqp091.Publishing{MessageId: "1", Headers: amqp091.Table{"stet-deliveries": int64(1 << 62)}})
	dead := f.get(f.queue + ".dead")
	if why := dead.Headers[amqp.ReasonHeader]; why != string(stetmsg.Exhausted) {
		t.Fatalf("dead-lettered as %v", why)
	}
	f.publish(amqp091.Publishing{MessageId: dead.MessageId, Headers: dead.Headers, Body: dead.Body})
	f.until(func() bool {
		rs := f.reasons("1")
		return len(rs) == 2 && rs[1] == stetmsg.Handled
	})
}
