package messages

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/stet-go/stet/internal/child"
	"github.com/stet-go/stet/internal/crash"
	"github.com/stet-go/stet/internal/test/proof/crashtest"
	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/stetmsg"
	"github.com/stet-go/stet/stetmsg/amqp"
)

const queue = "orders"

type rabbit struct{ server *rig.RabbitMQServer }

func startRabbitMQ(ctx context.Context, r *rig.Rig) (broker, error) {
	server, err := crashtest.StartRabbitMQ(ctx, r, queue, outgoing)
	return &rabbit{server}, err
}

func (b *rabbit) url() string { return b.server.URL() }

func (b *rabbit) close() {}

// restart stops the server properly, see crashtest.StartRabbitMQ.
func (b *rabbit) restart(ctx context.Context) error { return b.server.Restart(ctx) }

// channel calls f with a channel of its own.
func (b *rabbit) channel(f func(*amqp091.Channel) error) error {
	return b.connection(func(conn *amqp091.Connection) error {
		ch, err := conn.Channel()
		if err != nil {
			return err
		}
		return f(ch)
	})
}

// connection calls f with a connection of its own.
func (b *rabbit) connection(f func(*amqp091.Connection) error) error {
	conn, err := amqp091.Dial(b.server.URL())
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	return f(conn)
}

func (b *rabbit) publish(ctx context.Context, ids []string) error {
	for try := 0; len(ids) > 0; try++ {
		if try > 0 {
			_ = crash.Pause(ctx, 100*time.Millisecond)
		}
		if err := context.Cause(ctx); err != nil {
			return err
		}
		_ = b.channel(func(ch *amqp091.Channel) error { // again, after an error: the broker is restarted now and then
			if err := ch.Confirm(false); err != nil {
				return err
			}
			var sent []*amqp091.DeferredConfirmation
			for _, id := range ids {
				m := amqp091.Publishing{DeliveryMode: amqp091.Persistent, MessageId: id, Body: []byte(id)}
				c, err := ch.PublishWithDeferredConfirmWithContext(ctx, "", queue, true, false, m)
				if err != nil {
					break
				}
				sent = append(sent, c)
			}
			for _, c := range sent {
				if ok, err := c.WaitContext(ctx); err != nil || !ok {
					return errors.Join(err, errors.New("not confirmed"))
				}
				ids = ids[1:]
			}
			return nil
		})
	}
	return nil
}

func (b *rabbit) left(context.Context) (left, dead int, err error) {
	err = b.connection(func(conn *amqp091.Connection) error {
		names := []string{queue, queue + ".dead"}
		for s := 1; s <= 1<<9; s *= 2 {
			names = append(names, fmt.Sprintf("%s.retry.%ds", queue, s))
		}
		for _, name := range names {
			ch, err := conn.Channel() // for each, because a missing queue closes it
			if err != nil {
				return err
			}
			q, err := ch.QueueDeclarePassive(name, true, false, false, false, nil)
			switch refused, ok := errors.AsType[*amqp091.Error](err); {
			case ok && refused.Code == amqp091.NotFound: // it is empty
			case err != nil:
				return err
			case name == queue+".dead":
				dead = q.Messages
			default:
				left += q.Messages
			}
			_ = ch.Close()
		}
		return nil
	})
	return left, dead, err
}

func (b *rabbit) arrived(context.Context) (letters []crashtest.Letter, err error) {
	err = b.channel(func(ch *amqp091.Channel) error {
		for {
			m, ok, err := ch.Get(outgoing, true)
			if err != nil || !ok {
				return err
			}
			l, err := readLetter(m.MessageId, m.Body)
			if err != nil {
				return err
			}
			letters = append(letters, l)
		}
	})
	return letters, err
}

func consumeRabbitMQ(ctx context.Context, s *shop) error {
	consumer, err := newConsumer(s, amqp.Envelope)
	if err != nil {
		return err
	}
	receiver, err := amqp.New(consumer, amqp.Options{URL: s.URL, Queue: queue})
	if err != nil {
		return err
	}
	child.Ready(os.Stdout, "")
	return receiver.Run(ctx)
}

func publisherRabbitMQ(_ context.Context, o order) (stetmsg.Publish, func(), error) {
	p, err := amqp.NewPublisher(amqp.PublisherOptions{URL: o.URL})
	if err != nil {
		return nil, nil, err
	}
	return p.Publish, func() { _ = p.Close() }, nil
}
