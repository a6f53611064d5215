package main

import (
	"context"
	"errors"
	"sync"

	"github.com/jackc/pgx/v5"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/stetmsg"
	"github.com/stet-go/stet/stetmsg/amqp"
	"github.com/stet-go/stet/store/postgres"
)

const queue = "orders"

type rabbit struct{ url string }

func newRabbitMQ(ctx context.Context, r *rig.Rig) (broker, error) {
	server, err := r.StartRabbitMQ(ctx, rig.RabbitMQOptions{})
	if err != nil {
		return nil, err
	}
	b := &rabbit{server.URL()}
	return b, b.channel(func(ch *amqp091.Channel) error {
		_, err := ch.QueueDeclare(queue, true, false, false, false, nil)
		return err
	})
}

func (b *rabbit) channel(f func(*amqp091.Channel) error) error {
	conn, err := amqp091.Dial(b.url)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	return f(ch)
}

func (b *rabbit) fill(ctx context.Context, ids []string) error {
	return b.channel(func(ch *amqp091.Channel) error {
		if err := ch.Confirm(false); err != nil {
			return err
		}
		var last *amqp091.DeferredConfirmation
		for _, id := range ids {
			var err error
			m := amqp091.Publishing{DeliveryMode: amqp091.Persistent, MessageId: id, Body: []byte(body)}
			if last, err = ch.PublishWithDeferredConfirmWithContext(ctx, "", queue, true, false, m); err != nil {
				return err
			}
		}
		if ok, err := last.WaitContext(ctx); err != nil || !ok {
			return errors.Join(err, errors.New("not confirmed"))
		}
		return nil
	})
}

func (b *rabbit) bare(ctx context.Context, handle func(context.Context, string) error) error {
	return b.channel(func(ch *amqp091.Channel) error {
		if err := ch.Qos(2**workers, 0, false); err != nil {
			return err
		}
		ms, err := ch.Consume(queue, "", false, false, false, false, nil)
		if err != nil {
			return err
		}
		errs := make([]error, *workers)
		var wg sync.WaitGroup
		for i := range *workers {
			wg.Go(func() {
				for {
					select {
					case m, ok := <-ms:
						if !ok {
							return
						}
						if errs[i] = errors.Join(handle(ctx, m.MessageId), m.Ack(false)); errs[i] != nil {
							return
						}
					case <-ctx.Done():
						return
					}
				}
			})
		}
		wg.Wait()
		return errors.Join(errs...)
	})
}

func options[M any](envelope func(M) stetmsg.Envelope) stetmsg.Options[M] {
	return stetmsg.Options[M]{Operation: stetmsg.By(envelope, stetmsg.Header("orders", "message-id")), Concurrency: *workers}
}

func grouped[M any](envelope func(M) stetmsg.Envelope, group int) stetmsg.Options[M] {
	o := options(envelope)
	o.Group = group
	return o
}

func (b *rabbit) wrapped(ctx context.Context, engine *stet.Engine, handle func(context.Context, string) error) error {
	c, err := stetmsg.New(engine, options(amqp.Envelope), func(ctx context.Context, m amqp091.Delivery) ([]byte, error) {
		return nil, handle(ctx, m.MessageId)
	})
	return b.receive(ctx, c, err)
}

func (b *rabbit) transactional(ctx context.Context, engine *stet.Engine, store *postgres.Store, group int, handle func(context.Context, pgx.Tx, string) error) error {
	te, err := stet.WithTx(engine, store)
	if err != nil {
		return err
	}
	c, err := stetmsg.NewTx(te, grouped(amqp.Envelope, group), func(ctx context.Context, tx pgx.Tx, m amqp091.Delivery) ([]byte, error) {
		return nil, handle(ctx, tx, m.MessageId)
	})
	return b.receive(ctx, c, err)
}

func (b *rabbit) receive(ctx context.Context, c *stetmsg.Consumer[amqp091.Delivery], err error) error {
	if err != nil {
		return err
	}
	r, err := amqp.New(c, amqp.Options{URL: b.url, Queue: queue})
	if err != nil {
		return err
	}
	return r.Run(ctx)
}
