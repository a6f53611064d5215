package stetwatermill_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/contrib/stetwatermill"
	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/stetmsg"
	"github.com/stet-go/stet/store/sqlite"
)

// TestOrdersOverRabbitMQAreBilledOnce has two routers, with engines of their own over one
// store, that compete for orders which were each published twice. Handlers and publishers
// fail now and then.
func TestOrdersOverRabbitMQAreBilledOnce(t *testing.T) {
	const n = 40
	config := amqp.NewDurableQueueConfig(rig.RabbitMQ(t).URL())
	config.Publish.ConfirmDelivery = true
	queue := rig.Named(t, "-")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	publisher, err := amqp.NewPublisher(config, watermill.NopLogger{})
	must(err)
	t.Cleanup(func() { _ = publisher.Close() })
	subscriber, err := amqp.NewSubscriber(config, watermill.NopLogger{})
	must(err)
	t.Cleanup(func() { _ = subscriber.Close() })
	// Before anything is published: RabbitMQ drops a message without a queue.
	invoices, err := subscriber.Subscribe(t.Context(), queue+"-invoices")
	must(err)
	file := filepath.Join(t.TempDir(), "stet.db")

	var mu sync.Mutex
	tried, billed := map[string]int{}, map[string]int{}
	bill := func(m *message.Message) ([]*message.Message, error) {
		mu.Lock()
		defer mu.Unlock()
		if tried[m.UUID]++; tried[m.UUID] == 1 && m.UUID[len(m.UUID)-1] == '0' {
			return nil, stet.Retryable(errors.New("busy"))
		}
		billed[m.UUID]++
		invoice := message.NewMessage(watermill.NewUUID(), []byte(m.UUID))
		invoice.Metadata.Set("of", m.UUID)
		return []*message.Message{invoice}, nil
	}
	for range 2 {
		billing(t, config, queue, file, stetwatermill.PoisonQueue(publisher, queue+"-dead"), bill)
	}
	for range 2 {
		for i := range n {
			must(publisher.Publish(queue, message.NewMessage(fmt.Sprintf("order-%d", i), []byte("one book"))))
		}
	}

	got, of := 0, map[string]string{} // the UUID of each order's invoice
	for end := time.After(60 * time.Second); got < 2*n; got++ {
		select {
		case m := <-invoices:
			m.Ack()
			order := m.Metadata.Get("of")
			if of[order] != "" && of[order] != m.UUID {
				t.Errorf("order %s has two invoices", order)
			}
			of[order] = m.UUID
		case <-end:
			t.Fatalf("%d invoices have come, want %d", got, 2*n)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	for id, times := range billed {
		if times != 1 {
			t.Errorf("%s was billed %d times", id, times)
		}
	}
	if len(billed) != n || len(of) != n {
		t.Errorf("%d orders were billed, and have %d invoices", len(billed), len(of))
	}
}

// billing is a process that bills orders, of which every tenth fails at first, and whose
// publisher fails at first.
func billing(t *testing.T, config amqp.Config, queue, file string, dead func(context.Context, *message.Message, stetmsg.Decision) error, bill message.HandlerFunc) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	st, err := sqlite.Open(t.Context(), file, sqlite.Options{})
	must(err)
	t.Cleanup(func() { _ = st.Close() })
	guard, err := stetwatermill.Middleware(stettest.Engine(t, st, stet.Options{SweepEvery: -1}), stetwatermill.Options{
		Options:    stetmsg.Options[*message.Message]{Operation: stetwatermill.UUID, Backoff: func(int) time.Duration { return 10 * time.Millisecond }, ErrorLog: quiet},
		DeadLetter: dead,
	})
	must(err)
	subscriber, err := amqp.NewSubscriber(config, watermill.NopLogger{})
	must(err)
	out, err := amqp.NewPublisher(config, watermill.NopLogger{})
	must(err)
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: 20 * time.Second}, watermill.NopLogger{})
	must(err)
	router.AddHandler("billing", queue, subscriber, queue+"-invoices", &outage{Publisher: out, fails: 5}, bill).AddMiddleware(guard)
	ended := make(chan error, 1)
	go func() { ended <- router.Run(context.Background()) }()
	<-router.Running()
	t.Cleanup(func() {
		if err := errors.Join(router.Close(), <-ended); err != nil {
			t.Error(err)
		}
	})
}
