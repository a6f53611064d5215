package amqp_test

import (
	"context"
	"fmt"
	"testing"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/stetmsg/amqp"
)

func TestPublishedMessageIsInTheQueueWithItsID(t *testing.T) {
	f := newFixture(t, rig.RabbitMQ(t).URL())
	p, err := amqp.NewPublisher(amqp.PublisherOptions{URL: f.url})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	var messages []stet.Message
	const n = 1200 // more than are on their way at a time
	for i := range n {
		messages = append(messages, stet.Message{ID: fmt.Sprint("id-", i), To: f.queue,
			Header: map[string]string{"kind": "shipped", "content-type": "text/plain"}, Body: []byte("five books")})
	}
	if err := p.Publish(t.Context(), messages); err != nil {
		t.Fatal(err)
	}
	// A message without a queue is an error, and the next one is published.
	if err := p.Publish(t.Context(), []stet.Message{messages[0], {ID: "x", To: "no-such-queue"}}); err == nil {
		t.Error("a message that no queue gets was published")
	}
	if err := p.Publish(t.Context(), messages[:1]); err != nil {
		t.Errorf("after that: %v", err)
	}
	f.channel(func(ch *amqp091.Channel) {
		q, err := ch.QueueDeclarePassive(f.queue, true, false, false, false, nil)
		if err != nil || q.Messages != n+2 {
			t.Errorf("%d messages in the queue, %v; want %d", q.Messages, err, n+2)
		}
		m, ok, err := ch.Get(f.queue, true)
		if err != nil || !ok || m.MessageId != "id-0" || m.Headers["kind"] != "shipped" || m.ContentType != "text/plain" ||
			m.DeliveryMode != amqp091.Persistent || string(m.Body) != "five books" {
			t.Errorf("%+v, %v", m, err)
		}
	})
}

func TestPublisherReconnects(t *testing.T) {
	f := newFixture(t, rig.RabbitMQ(t).URL())
	var conns []*amqp091.Connection
	p, err := amqp.NewPublisher(amqp.PublisherOptions{Dial: dialler(f.url, &conns)})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	message := []stet.Message{{ID: "id", To: f.queue}}
	for range 3 {
		if err := p.Publish(t.Context(), message); err != nil {
			t.Fatal(err)
		}
		_ = conns[len(conns)-1].Close()
	}
	if len(conns) != 3 {
		t.Errorf("%d connections", len(conns))
	}
}

func TestPublisherRefusesWrongOptions(t *testing.T) {
	for _, o := range []amqp.PublisherOptions{{}, {URL: "http://nowhere"}} {
		if _, err := amqp.NewPublisher(o); stet.KindOf(err) != stet.KindInvalid {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

func dialler(url string, conns *[]*amqp091.Connection) func(context.Context) (*amqp091.Connection, error) {
	return func(context.Context) (*amqp091.Connection, error) {
		conn, err := amqp091.Dial(url)
		*conns = append(*conns, conn)
		return conn, err
	}
}
