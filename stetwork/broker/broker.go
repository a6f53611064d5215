// Package broker carries accepted operations through a message broker: RabbitMQ,
// JetStream, Kafka or SQS, by the publishers and receivers of package stetmsg's
// subpackages.
//
//	publisher, err := amqp.NewPublisher(amqp.PublisherOptions{URL: url})
//	queue, err := broker.NewQueue(publisher.Publish, func(stet.Item) string { return "work" })
//	worker, err := stetwork.New(engine, stetwork.Options{Queue: queue})
//	consumer, err := broker.NewConsumer(worker, amqp.Envelope, broker.ConsumerOptions{})
//	receiver, err := amqp.New(consumer, amqp.Options{URL: url, Queue: "work"})
//	// worker.Run(ctx) publishes due operations, receiver.Run(ctx) runs them
//
// A message contains the ID of an operation, not its payload. It is acknowledged after the
// attempt, whatever its end: attempts, backoff and outcomes are the worker's, and an operation
// that must run again is published again. An operation whose message was lost is published
// again after stetwork.DispatcherOptions.Again, and a message that arrives twice runs once.
// Only a message without an operation is dead-lettered.
//
// A process without a handler for an operation, or without its class, also acknowledges the
// message, and logs that: the operation stays accepted, and is published again after
// DispatcherOptions.Again. Therefore all consumers of a queue need the same handlers; use
// NewQueue's function for other queues. Deploy a new handler before the code that accepts
// operations for it.
//
// On Kafka the operations of a partition run one after the other.
package broker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/misuse"
	"github.com/stet-go/stet/internal/timer"
	"github.com/stet-go/stet/stetmsg"
	"github.com/stet-go/stet/stetwork"
	"github.com/stet-go/stet/store"
)

// body is the body of a message.
type body struct {
	ID    string `json:"id"` // in hexadecimal
	Class string `json:"class,omitempty"`
	Name  string `json:"name"`
}

// NewQueue returns a queue that publishes each operation as a message to the destination that to
// returns: a topic, a subject, a routing key. Wrong wiring is an error of kind
// stet.KindInvalid.
func NewQueue(publish stetmsg.Publish, to func(stet.Item) string) (stetwork.Queue, error) {
	if publish == nil || to == nil {
		return nil, misuse.Errorf("stetwork/broker: NewQueue needs a function that publishes, and a function that returns the destination")
	}
	return stetwork.QueueFunc(func(ctx context.Context, items []stet.Item) error {
		messages := make([]stet.Message, len(items))
		for i, it := range items {
			b, err := json.Marshal(body{it.ID.String(), it.Class, it.Name})
			if err != nil {
				return err
			}
			messages[i] = stet.Message{
				// Not the operation's: a broker that drops duplicates would drop the
				// next attempt.
				ID: stet.NewKey(),
				To: to(it), Key: it.ID.String(), Header: map[string]string{"content-type": "application/json"}, Body: b}
		}
		return publish(ctx, messages)
	}), nil
}

// ConsumerOptions configure a consumer. The zero value is usable.
type ConsumerOptions struct {
	// Observe is that of stetmsg.Options.
	Observe func(context.Context, stetmsg.Decision)
}

// NewConsumer returns a consumer for the messages of a Queue. A worker runs their operations, up
// to its Concurrency at a time. The packages of the brokers have the receiver and the envelope
// function. Wrong wiring is an error of kind
// stet.KindInvalid.
func NewConsumer[M any](w *stetwork.Worker, envelope func(M) stetmsg.Envelope, o ConsumerOptions) (*stetmsg.Consumer[M], error) {
	if w == nil || envelope == nil {
		return nil, misuse.Errorf("stetwork/broker: NewConsumer needs a worker, and the Envelope of a broker's package")
	}
	return stetmsg.NewDirect(stetmsg.Options[M]{Concurrency: w.Concurrency(), Observe: o.Observe, ErrorLog: w.Log()},
		func(ctx context.Context, m M, deliveries int) stetmsg.Decision {
			it, err := item(envelope(m).Body)
			if err != nil {
				return stetmsg.Decision{Action: stetmsg.DeadLetter, Reason: stetmsg.Invalid, Err: err}
			}
			return decide(ctx, it, deliveries, w.Do(ctx, it), w.Log())
		})
}

// decide converts the result of an attempt to a decision about its message.
func decide(ctx context.Context, it stet.Item, deliveries int, err error, log *slog.Logger) stetmsg.Decision {
	d := stetmsg.Decision{Action: stetmsg.Retry, ID: it.ID, Err: err, After: timer.Backoff(deliveries, stetmsg.MinBackoff, stetmsg.MaxBackoff)}
	switch {
	case err == nil:
		return stetmsg.Decision{Action: stetmsg.Ack, Reason: stetmsg.Handled, ID: it.ID}
	case stet.KindOf(err) == stet.KindInvalid: // no handler: a message that came back permanently would hold up others
		log.ErrorContext(ctx, "stetwork/broker: an operation cannot be run here; it stays accepted", slog.String("name", it.Name), slog.String("class", it.Class),
			slog.String("id", it.ID.String()), slog.Any("error", err))
		return stetmsg.Decision{Action: stetmsg.Ack, Reason: stetmsg.NoHandler, ID: it.ID, Err: err}
	case stet.KindOf(err) == stet.KindClosed: // another process may continue
		d.Reason = stetmsg.Stopped
	default:
		d.Reason = stetmsg.Unavailable
	}
	return d
}

func item(b []byte) (stet.Item, error) {
	var m body
	if err := json.Unmarshal(b, &m); err != nil {
		return stet.Item{}, fmt.Errorf("stetwork/broker: the message is not one of a Queue: %w", err)
	}
	id, err := store.ParseID(m.ID)
	if err != nil || m.Name == "" || len(m.Name) > store.MaxName {
		return stet.Item{}, errors.New("stetwork/broker: the message has no operation")
	}
	return stet.Item{ID: id, Class: m.Class, Name: m.Name}, nil
}
