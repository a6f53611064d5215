package amqp_test

import (
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/stetmsg"
	"github.com/stet-go/stet/stetmsg/amqp"
	"github.com/stet-go/stet/store/sqlite"
)

func TestReceiverConsumesAgainAfterACancellation(t *testing.T) {
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

// TestStartingServerMayRefuse: its queues are loaded after it has
// begun to listen.
func TestStartingServerMayRefuse(t *testing.T) {
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
		if stet.KindOf(err) != stet.KindInvalid {
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
	engine := stettest.Engine(t, store, stet.Options{SweepEvery: -1})
	return engine
}

func TestForgedDeliveryCountSettlesNothing(t *testing.T) {
	f := newFixture(t, rig.RabbitMQ(t).URL())
	f.engine = newEngine(t)
	c, err := stetmsg.NewTx(stettest.TxEngine(f.engine, f.engine.Store().(*sqlite.Store)), stetmsg.Options[amqp091.Delivery]{
		Operation: stetmsg.By(amqp.Envelope, stetmsg.Header("orders", "message-id")), ErrorLog: slog.New(slog.DiscardHandler),
		Observe: func(_ context.Context, d stetmsg.Decision) { f.observe(d) },
	}, func(context.Context, *sql.Tx, amqp091.Delivery) ([]byte, error) { return nil, nil })
	if err != nil {
		t.Fatal(err)
	}
	r, err := amqp.New(c, amqp.Options{URL: f.url, Queue: f.queue})
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

// An operator may clear them away, and so does a policy with expires.
func TestDeletedQueuesAreDeclaredAgain(t *testing.T) {
	f := newFixture(t, rig.RabbitMQ(t).URL())
	stop := f.run(f.receiver(func(_ context.Context, m amqp091.Delivery) ([]byte, error) {
		if string(m.Body) == "closed" {
			return nil, stet.Retryable(errors.New("busy"))
		}
		return nil, errors.New("no such book")
	}, amqp.Options{QueueType: "classic"}))
	defer stop()
	f.publish(amqp091.Publishing{MessageId: "1", Body: []byte("closed")})
	f.until(func() bool { return len(f.reasons("1")) == 3 }) // it has waited, and is dead
	f.get(f.queue + ".dead")
	f.channel(func(ch *amqp091.Channel) {
		for _, name := range []string{".retry.1s", ".dead"} {
			if _, err := ch.QueueDelete(f.queue+name, false, false, false); err != nil {
				t.Fatal(err)
			}
		}
	})
	f.publish(amqp091.Publishing{MessageId: "2", Body: []byte("closed")}, amqp091.Publishing{MessageId: "3"})
	f.until(func() bool { return len(f.reasons("2")) == 3 && len(f.reasons("3")) == 1 })
	stop()
	if f.get(f.queue + ".dead"); f.left() != 0 {
		t.Errorf("%d left", f.left())
	}
	f.get(f.queue + ".dead")
}

// A classic queue says only that a message has come back; in a transaction, a run that
// dies leaves nothing in the store.
func TestCrashesAreCountedWithAClassicQueue(t *testing.T) {
	f := newFixture(t, rig.RabbitMQ(t).URL())
	var mu sync.Mutex
	var conn *amqp091.Connection
	var counted []int
	c, err := stetmsg.NewDirect(stetmsg.Options[amqp091.Delivery]{ErrorLog: slog.New(slog.DiscardHandler)}, func(_ context.Context, _ amqp091.Delivery, deliveries int) stetmsg.Decision {
		mu.Lock()
		defer mu.Unlock()
		if counted = append(counted, deliveries); len(counted) > 3 {
			return stetmsg.Decision{Action: stetmsg.DeadLetter, Reason: stetmsg.Exhausted}
		}
		_ = conn.CloseDeadline(time.Now()) // which is what a death is to the server
		return stetmsg.Decision{}
	})
	if err != nil {
		t.Fatal(err)
	}
	r, err := amqp.New(c, amqp.Options{Queue: f.queue, Dial: func(context.Context) (*amqp091.Connection, error) {
		mu.Lock()
		defer mu.Unlock()
		var err error
		conn, err = amqp091.Dial(f.url)
		return conn, err
	}})
	if err != nil {
		t.Fatal(err)
	}
	stop := f.run(r)
	defer stop()
	f.publish(amqp091.Publishing{MessageId: "1", Body: []byte("five books")})
	f.get(f.queue + ".dead")
	stop()
	if want := []int{1, 2, 3, 4}; !slices.Equal(counted, want) || f.left() != 0 {
		t.Errorf("counted %v, want %v; %d left", counted, want, f.left())
	}
}
