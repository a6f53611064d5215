package main

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	js "github.com/nats-io/nats.go/jetstream"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/stetmsg"
	"github.com/stet-go/stet/stetmsg/jetstream"
	"github.com/stet-go/stet/store/postgres"
)

type jetStream struct {
	js       js.JetStream
	consumer js.Consumer
}

func newJetStream(ctx context.Context, r *rig.Rig) (broker, error) {
	server, err := r.StartNATS(ctx)
	if err != nil {
		return nil, err
	}
	nc, err := nats.Connect(server.URL()) // it ends with the program
	if err != nil {
		return nil, err
	}
	b := &jetStream{}
	if b.js, err = js.New(nc, js.WithPublishAsyncMaxPending(1000)); err != nil {
		return nil, err
	}
	stream, err := b.js.CreateStream(ctx, js.StreamConfig{Name: "ORDERS", Subjects: []string{"orders"}, Retention: js.WorkQueuePolicy})
	if err != nil {
		return nil, err
	}
	b.consumer, err = stream.CreateConsumer(ctx, js.ConsumerConfig{Durable: "workers", AckPolicy: js.AckExplicitPolicy, MaxAckPending: 10 * *workers})
	return b, err
}

func (b *jetStream) fill(ctx context.Context, ids []string) error {
	for _, id := range ids {
		m := nats.NewMsg("orders")
		m.Header.Set("message-id", id)
		m.Data = []byte(body)
		if _, err := b.js.PublishMsgAsync(m, js.WithStallWait(time.Minute)); err != nil {
			return err
		}
	}
	select {
	case <-b.js.PublishAsyncComplete():
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (b *jetStream) bare(ctx context.Context, handle func(context.Context, string) error) error {
	ms := make(chan js.Msg)
	cc, err := b.consumer.Consume(func(m js.Msg) {
		select {
		case ms <- m:
		case <-ctx.Done():
		}
	}, js.PullMaxMessages(8**workers)) // as many as the wrapped one holds
	if err != nil {
		return err
	}
	errs := make([]error, *workers)
	var wg sync.WaitGroup
	for i := range *workers {
		wg.Go(func() {
			for {
				select {
				case m := <-ms:
					if errs[i] = errors.Join(handle(ctx, m.Headers().Get("message-id")), m.Ack()); errs[i] != nil {
						return
					}
				case <-ctx.Done():
					return
				}
			}
		})
	}
	wg.Wait()
	cc.Stop()
	<-cc.Closed()
	return errors.Join(errs...)
}

func (b *jetStream) wrapped(ctx context.Context, engine *stet.Engine, handle func(context.Context, string) error) error {
	c, err := stetmsg.New(engine, options(jetstream.Envelope), func(ctx context.Context, m js.Msg) ([]byte, error) {
		return nil, handle(ctx, m.Headers().Get("message-id"))
	})
	return b.receive(ctx, c, err)
}

func (b *jetStream) transactional(ctx context.Context, engine *stet.Engine, store *postgres.Store, group int, handle func(context.Context, pgx.Tx, string) error) error {
	te, err := stet.WithTx(engine, store)
	if err != nil {
		return err
	}
	c, err := stetmsg.NewTx(te, grouped(jetstream.Envelope, group), func(ctx context.Context, tx pgx.Tx, m js.Msg) ([]byte, error) {
		return nil, handle(ctx, tx, m.Headers().Get("message-id"))
	})
	return b.receive(ctx, c, err)
}

func (b *jetStream) receive(ctx context.Context, c *stetmsg.Consumer[js.Msg], err error) error {
	if err != nil {
		return err
	}
	r, err := jetstream.New(ctx, c, jetstream.Options{JetStream: b.js, Consumer: b.consumer, DeadLetterSubject: "dead"})
	if err != nil {
		return err
	}
	return r.Run(ctx)
}
