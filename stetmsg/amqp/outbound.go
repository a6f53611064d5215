package amqp

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/stet-go/stet/stetmsg"
	"github.com/stet-go/stet/stetmsg/internal/receiver"
)

// delivery is a message in hand.
type delivery struct {
	amqp.Delivery
	out *outbound
}

// Deliveries counts what the message remembers of its waits, and what a quorum
// queue counts; a classic queue only says whether it was delivered before.
func (d *delivery) Deliveries() int {
	n := number(d.Headers[deliveriesHeader]) + 1
	if count, ok := d.Headers["x-delivery-count"]; ok {
		return n + number(count)
	}
	if d.Redelivered {
		n++
	}
	return n
}

func number(v any) int {
	switch v := v.(type) {
	case int64:
		return int(max(0, min(v, 1<<30)))
	case int32:
		return int(max(0, v))
	default:
		return 0
	}
}

// Ack implements stetmsg.Delivery.
func (d *delivery) Ack(context.Context) error { return d.ack() }

func (d *delivery) ack() error {
	return d.out.link.bounded(func() error { return d.Delivery.Ack(false) })
}

// back puts the message back into its queue, to be delivered at once.
func (d *delivery) back() error {
	return d.out.link.bounded(func() error { return d.Nack(false, true) })
}

// Retry implements stetmsg.Delivery.
func (d *delivery) Retry(ctx context.Context, after time.Duration) error {
	if after <= 0 {
		return d.back()
	}
	m := d.publishing()
	m.Headers[deliveriesHeader] = int64(d.Deliveries())
	m.Headers[exchangeHeader], m.Headers[routingKeyHeader] = d.Exchange, d.RoutingKey
	return d.instead(ctx, func() error { return d.out.later(ctx, after, m) })
}

// DeadLetter implements stetmsg.Delivery. A dead letter that an operator puts
// back is counted from 1 again.
func (d *delivery) DeadLetter(ctx context.Context, why stetmsg.Decision) error {
	m := d.publishing()
	delete(m.Headers, deliveriesHeader)
	m.Headers[ReasonHeader], m.Headers[ErrorHeader] = string(why.Reason), why.Text()
	return d.instead(ctx, func() error { return d.out.dead(ctx, d.RoutingKey, m) })
}

// instead publishes a copy and then acknowledges the original. If that fails the
// original goes back to its queue, not at once, as it is likely to fail again.
func (d *delivery) instead(ctx context.Context, publish func() error) error {
	if err := publish(); err != nil {
		receiver.Sleep(ctx, time.Second)
		return errors.Join(err, d.back())
	}
	return d.ack()
}

// publishing is a copy of the message. It does not expire: it was received in
// time. Its user would be refused, unless it were ours.
func (d *delivery) publishing() amqp.Publishing {
	m := amqp.Publishing{
		Headers: amqp.Table{}, ContentType: d.ContentType, ContentEncoding: d.ContentEncoding, DeliveryMode: amqp.Persistent,
		Priority: d.Priority, CorrelationId: d.CorrelationId, ReplyTo: d.ReplyTo, MessageId: d.MessageId,
		Timestamp: d.Timestamp, Type: d.Type, AppId: d.AppId, Body: d.Body,
	}
	maps.Copy(m.Headers, d.Headers)
	delete(m.Headers, "x-delivery-count")
	delete(m.Headers, "x-death")
	return m
}

// restore undoes what waiting has changed.
func restore(m amqp.Delivery) amqp.Delivery {
	exchange, ok := m.Headers[exchangeHeader].(string)
	key, ok2 := m.Headers[routingKeyHeader].(string)
	if ok && ok2 {
		m.Exchange, m.RoutingKey = exchange, key
	}
	return m
}

// link is a connection that is cut when the server leaves us waiting.
type link struct {
	conn     *amqp.Connection
	patience time.Duration
}

// bounded calls f, which waits for the server; if it does so for too long the
// connection is cut, and f returns an error.
func (l *link) bounded(f func() error) error {
	cut := make(chan struct{})
	t := time.AfterFunc(l.patience, func() {
		defer close(cut)
		_ = l.conn.CloseDeadline(time.Now())
	})
	err := f()
	if t.Stop() {
		return err
	}
	<-cut
	if err != nil {
		return fmt.Errorf("the server has not answered for %v: %w", l.patience, err)
	}
	return nil
}

// outbound publishes what waits and what is dead, one message at a time.
type outbound struct {
	o    Options
	link *link

	mu       sync.Mutex
	ch       *amqp.Channel
	returned chan amqp.Return
	declared map[string]bool
}

// newOutbound waits for the server, as open, declare and queue do.
func newOutbound(l *link, o Options) (*outbound, error) {
	p := &outbound{o: o, link: l, declared: make(map[string]bool)}
	if err := p.open(); err != nil {
		return nil, err
	}
	if o.DeadLetterExchange != "" {
		return p, p.declare(func(ch *amqp.Channel) error {
			return ch.ExchangeDeclarePassive(o.DeadLetterExchange, "", true, false, false, false, nil)
		})
	}
	return p, p.queue(o.DeadLetterQueue, amqp.Table{"x-queue-type": o.QueueType})
}

// open opens the channel that is published on.
func (p *outbound) open() (err error) {
	if p.ch, err = p.link.conn.Channel(); err != nil {
		return err
	}
	p.returned = p.ch.NotifyReturn(make(chan amqp.Return, 1))
	return p.ch.Confirm(false)
}

// declare calls f with a channel of its own, because a refusal closes it.
func (p *outbound) declare(f func(*amqp.Channel) error) error {
	ch, err := p.link.conn.Channel()
	if err != nil {
		return err
	}
	defer func() { _ = ch.Close() }()
	return f(ch)
}

func (p *outbound) queue(name string, args amqp.Table) error {
	if p.declared[name] {
		return nil
	}
	err := p.declare(func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclare(name, true, false, false, false, args)
		return err
	})
	p.declared[name] = err == nil
	return err
}

// later publishes m to the queue of the least delay that is at least after: a
// queue for each, because only the first message of a queue expires.
func (p *outbound) later(ctx context.Context, after time.Duration, m amqp.Publishing) error {
	delay := time.Second
	for delay < min(after, MaxDelay) {
		delay *= 2
	}
	name := p.o.Queue + ".retry." + strconv.Itoa(int(delay/time.Second)) + "s"
	args := amqp.Table{
		"x-queue-type": p.o.QueueType, "x-message-ttl": delay.Milliseconds(),
		"x-dead-letter-exchange": "", "x-dead-letter-routing-key": p.o.Queue,
	}
	if p.o.QueueType == "quorum" {
		args["x-dead-letter-strategy"], args["x-overflow"] = "at-least-once", "reject-publish"
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.link.bounded(func() error { return p.queue(name, args) }); err != nil {
		return err
	}
	return p.publish(ctx, "", name, m)
}

func (p *outbound) dead(ctx context.Context, routingKey string, m amqp.Publishing) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.o.DeadLetterExchange != "" {
		return p.publish(ctx, p.o.DeadLetterExchange, routingKey, m)
	}
	return p.publish(ctx, "", p.o.DeadLetterQueue, m)
}

// publish returns nil when the broker has the message, in a queue.
func (p *outbound) publish(ctx context.Context, exchange, key string, m amqp.Publishing) error {
	var sent *amqp.DeferredConfirmation
	err := p.link.bounded(func() (err error) {
		if p.ch.IsClosed() {
			if err := p.open(); err != nil {
				return err
			}
		}
		sent, err = p.ch.PublishWithDeferredConfirmWithContext(ctx, exchange, key, true, false, m)
		return err
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, p.link.patience)
	defer cancel()
	ok, err := sent.WaitContext(ctx)
	if err != nil {
		_ = p.link.bounded(p.ch.Close) // a late answer must not be taken for the next one's
		return fmt.Errorf("the broker has not confirmed in time: %w", err)
	}
	select {
	case back := <-p.returned: // it comes before the confirmation
		return fmt.Errorf("the broker has no queue for exchange %q: %d %s", exchange, back.ReplyCode, back.ReplyText)
	default:
	}
	if !ok {
		return errors.New("the broker refused the message")
	}
	return nil
}
