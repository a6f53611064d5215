// Package amqp receives messages from RabbitMQ 3.10 and later (AMQP 0-9-1) for a
// stetmsg.Consumer.
//
// Messages are acknowledged one by one, after their outcome is durable. A message that must
// wait is published to a waiting queue, from which RabbitMQ returns it after the delay. A dead
// letter is published to the dead-letter queue or exchange, with the reason in its headers.
// After the broker has confirmed the copy, the original is acknowledged, so a crash in between
// leaves two copies, never none. RabbitMQ does not keep the order of redelivered messages.
//
// A waiting message has headers whose names begin with "stet-": the number of its deliveries,
// and its first exchange and routing key. A producer can set the same headers, or copy them.
// Then its own message can be dead-lettered without a run, under another routing key. It
// cannot affect other messages.
//
// A copy has the headers of the message, except CC and others that RabbitMQ would apply again. If the copy cannot be published, the message stays unacknowledged, and the reason is
// logged. A quorum queue drops a message that is returned more often than its delivery limit,
// which is 20 by default from RabbitMQ 4 on. This package replaces a message that was returned
// ten times, because processes ended or crashed, by a copy, whose count begins at 0. The limit
// cannot be queried: set x-delivery-limit to -1, or to at least 20. A classic queue does not
// count: a message that was returned to it is always replaced by a copy that counts, so that a
// message that kills its processes is dead-lettered in the end.
//
// RabbitMQ takes back a message that is not acknowledged within the server's consumer_timeout
// (30 minutes). This cannot be extended: give handlers less time.
package amqp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/misuse"
	"github.com/stet-go/stet/stetmsg"
	"github.com/stet-go/stet/stetmsg/internal/receiver"
)

// Headers that this package sets.
const (
	// ReasonHeader and ErrorHeader have the reason of a dead letter, and the text of the error.
	ReasonHeader = "stet-reason"
	ErrorHeader  = "stet-error"
	// Headers of a waiting message.
	deliveriesHeader = "stet-deliveries"
	exchangeHeader   = "stet-exchange"
	routingKeyHeader = "stet-routing-key"
)

// MaxDelay is the longest time that a message waits to be delivered again.
const MaxDelay = 1 << 15 * time.Second

// answerTimeout bounds each request to the server. A server that is short of memory or disk
// stops reading from connections that publish.
const answerTimeout = 30 * time.Second

// steady is how long a connection must last for the next reconnection to be immediate.
const steady = 10 * time.Second

// Options configure a Receiver. Queue, and URL or Dial, are required.
type Options struct {
	// URL is the address of the server (amqp:// or amqps://). Percent-encode special
	// characters of the user name and password.
	URL string
	// Dial, if set, connects in its place. It should end with ctx.
	Dial func(ctx context.Context) (*amqp.Connection, error)
	// Queue is received from. It must exist, and should be durable.
	Queue string
	// Prefetch is how many messages are in flight at most. Default: twice the
	// consumer's Concurrency.
	Prefetch int

	// DeadLetterExchange, if set, is published dead letters, with the routing
	// key that they came with. It must exist and route them to a queue.
	// Default: they go to DeadLetterQueue, which is declared.
	DeadLetterExchange string
	// DeadLetterQueue is, by default, the name of Queue with ".dead" after it.
	DeadLetterQueue string
	// QueueType is that of the queues that are declared: the dead-letter queue,
	// and those in which messages wait, whose names are that of Queue with
	// ".retry.1s", ".retry.2s", ".retry.4s" and so on. Default "quorum". With
	// "classic", which needs fewer resources, RabbitMQ does not promise that a
	// message which has waited survives a crash of the server while it is
	// moved back.
	QueueType string
}

// Receiver passes the messages of a queue to a consumer.
type Receiver struct {
	consumer *stetmsg.Consumer[amqp.Delivery]
	o        Options
	patience time.Duration // answerTimeout, but for tests
	refusals time.Duration // bootTime, but for tests
}

// New returns a receiver. Wrong options are errors of kind stet.KindInvalid.
func New(consumer *stetmsg.Consumer[amqp.Delivery], o Options) (*Receiver, error) {
	switch {
	case consumer == nil:
		return nil, misuse.Errorf("stetmsg/amqp: New needs a consumer; stetmsg.New makes one")
	case o.Queue == "" || o.URL == "" && o.Dial == nil:
		return nil, misuse.Errorf("stetmsg/amqp: Options need a Queue, and a URL or Dial")
	case o.Prefetch < 0 || o.Prefetch > 1<<16-1:
		return nil, misuse.Errorf("stetmsg/amqp: Options.Prefetch is %d; it must be 1 to 65535, or 0 for twice the consumer's Concurrency", o.Prefetch)
	case o.DeadLetterExchange != "" && o.DeadLetterQueue != "":
		return nil, misuse.Errorf("stetmsg/amqp: Options have a DeadLetterExchange and a DeadLetterQueue; dead letters go to one of them")
	case o.DeadLetterQueue == o.Queue:
		return nil, misuse.Errorf("stetmsg/amqp: Options.DeadLetterQueue is the Queue: dead letters would be received again")
	case o.QueueType != "" && o.QueueType != "quorum" && o.QueueType != "classic":
		return nil, misuse.Errorf("stetmsg/amqp: Options.QueueType is %q; it must be quorum or classic", o.QueueType)
	}
	o.Prefetch = cmp.Or(o.Prefetch, min(2*consumer.Concurrency(), 1<<16-1))
	if o.DeadLetterExchange == "" && o.DeadLetterQueue == "" {
		o.DeadLetterQueue = o.Queue + ".dead"
	}
	o.QueueType = cmp.Or(o.QueueType, "quorum")
	dial, err := dialer(o.URL, o.Dial)
	if err != nil {
		return nil, err
	}
	o.Dial = dial
	return &Receiver{consumer: consumer, o: o, patience: answerTimeout, refusals: bootTime}, nil
}

// Run receives until ctx ends. Then it stops receiving, releases messages that have not begun,
// waits for running ones, and returns nil. It reconnects if the connection is lost, or the
// server has not answered for 30 s. If the server refuses the first attempts for 10 s (no such
// queue, no permission), Run returns the error.
func (r *Receiver) Run(ctx context.Context) error {
	pool := receiver.NewPool(r.o.Prefetch, r.consumer.Concurrency()) // over all connections
	defer pool.Wait()
	var pause receiver.Pause
	start := time.Now()
	for first := true; ctx.Err() == nil; {
		began := time.Now()
		ready, err := r.session(ctx, pool)
		if first && refused(err) && time.Since(start) > r.refusals {
			return fmt.Errorf("stetmsg/amqp: %w", err)
		}
		if ctx.Err() != nil {
			break
		}
		first = first && !ready
		if ready && time.Since(began) > steady {
			pause.Reset()
		}
		pause.Wait(ctx, r.consumer.Log(), err)
	}
	return nil
}

// bootTime is how long a starting server may refuse requests while its users and queues are
// loaded.
const bootTime = 10 * time.Second

// refused reports whether the server has refused the request, and will do so after it has
// started.
func refused(err error) bool {
	e, ok := errors.AsType[*amqp.Error](err)
	return ok && (e.Code == amqp.AccessRefused || e.Code == amqp.NotFound || e.Code == amqp.PreconditionFailed)
}

// session receives over one connection. ready reports that it could receive.
func (r *Receiver) session(ctx context.Context, pool *receiver.Pool) (ready bool, err error) {
	conn, err := r.o.Dial(ctx)
	if err != nil {
		return false, err
	}
	defer func() { _ = conn.CloseDeadline(time.Now().Add(5 * time.Second)) }() // nothing more is sent
	l := &link{conn: conn, patience: r.patience}
	var in *inbound
	var out *outbound
	err = l.bounded(func() (err error) {
		if out, err = newOutbound(l, r.o); err == nil {
			out.log = r.consumer.Log()
			in, err = newInbound(conn, r.o)
		}
		return err
	})
	if err != nil {
		return false, err
	}
	for {
		select {
		case m, ok := <-in.deliveries:
			if !ok {
				return true, in.lost()
			}
			d := &delivery{Delivery: restore(m), out: out, run: ctx}
			if !pool.Reserve(ctx, 1) {
				_ = d.untried(ctx)
				continue
			}
			pool.Run(func() { r.handle(ctx, d) })
		case <-ctx.Done():
			err := in.release(ctx, out)
			pool.Wait() // before the connection is closed
			return true, err
		}
	}
}

// handle passes a message to the consumer. A message that was returned too often, because its
// processes crashed, is first replaced by a copy, before its queue drops it. A message of a
// queue that does not count is replaced too, because it may kill the next process.
func (r *Receiver) handle(ctx context.Context, d *delivery) {
	if d.worn() {
		if err := d.replace(ctx, 0, d.Deliveries()-1); err != nil { // this delivery is not a try
			r.consumer.Log().ErrorContext(ctx, "stetmsg/amqp: a message with many deliveries was not replaced by a copy; it will be delivered again", slog.Any("error", err))
		}
		return
	}
	_, _ = r.consumer.Handle(ctx, d.Delivery, d) // which has logged the error
}

// inbound is a consumer of the queue.
type inbound struct {
	ch         *amqp.Channel
	tag        string
	deliveries <-chan amqp.Delivery
	closed     chan *amqp.Error
}

func newInbound(conn *amqp.Connection, o Options) (*inbound, error) {
	ch, err := conn.Channel()
	if err != nil {
		return nil, err
	}
	if err := ch.Qos(o.Prefetch, 0, false); err != nil {
		return nil, err
	}
	in := &inbound{ch: ch, tag: "stet-" + stet.NewKey()}
	if in.deliveries, err = ch.Consume(o.Queue, in.tag, false, false, false, false, nil); err != nil {
		return nil, err
	}
	in.closed = ch.NotifyClose(make(chan *amqp.Error, 1))
	return in, nil
}

// lost returns why there are no more deliveries.
func (in *inbound) lost() error {
	if in.ch.IsClosed() { // else the server has cancelled the consumer only
		if err := <-in.closed; err != nil {
			return err
		}
		return amqp.ErrClosed
	}
	return errors.New("the server cancelled the consumer: was the queue deleted?")
}

// release ends the consumer and returns messages that have not begun to the queue.
func (in *inbound) release(ctx context.Context, out *outbound) error {
	if err := out.link.bounded(func() error { return in.ch.Cancel(in.tag, false) }); err != nil {
		return err // with the channel, all goes back
	}
	for m := range in.deliveries {
		if err := (&delivery{Delivery: restore(m), out: out, run: ctx}).untried(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Envelope returns the headers of a message, and the properties message-id, correlation-id and
// type under these names.
func Envelope(m amqp.Delivery) stetmsg.Envelope {
	names := func() []string {
		return slices.AppendSeq([]string{"message-id", "correlation-id", "type"}, maps.Keys(m.Headers))
	}
	return stetmsg.Envelope{ContentType: m.ContentType, Body: m.Body, Names: names, Header: func(name string) (string, bool) {
		switch name {
		case "message-id":
			return m.MessageId, m.MessageId != ""
		case "correlation-id":
			return m.CorrelationId, m.CorrelationId != ""
		case "type":
			return m.Type, m.Type != ""
		}
		switch v := m.Headers[name].(type) {
		case nil:
			return "", false
		case string:
			return v, true
		case []byte:
			return string(v), true
		default:
			return fmt.Sprint(v), true
		}
	}}
}

// Part returns m with another body, for cloudevents.Split.
func Part(m amqp.Delivery, contentType string, body []byte) amqp.Delivery {
	m.ContentType, m.Body = contentType, body
	return m
}
