package amqp

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"strconv"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/stet-go/stet/internal/timer"
	"github.com/stet-go/stet/stetmsg"
)

// delivery is a message in flight.
type delivery struct {
	amqp.Delivery
	out *outbound
	run context.Context // the receiver's
}

// maxReturns is the number of returns after which a message is replaced by a copy: half of the
// default limit of RabbitMQ 4.
const maxReturns = 10

// Deliveries adds the deliveries in the headers of a copy and the count of a quorum queue.
// A classic queue only reports whether the message was delivered before.
func (d *delivery) Deliveries() int {
	n := number(d.Headers[deliveriesHeader]) + 1
	if count, ok := d.Headers[returnsHeader]; ok {
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
	if after <= 0 && number(d.Headers[returnsHeader]) < maxReturns {
		return d.back()
	}
	return d.replace(ctx, after, d.Deliveries())
}

// untried releases a message that was received and not handled.
func (d *delivery) untried(ctx context.Context) error {
	if number(d.Headers[returnsHeader]) < maxReturns {
		return d.back()
	}
	return d.replace(ctx, 0, d.Deliveries()-1)
}

// worn reports whether the message was returned so often that its queue may drop it, or came
// from a queue that does not count.
func (d *delivery) worn() bool {
	returns, counted := d.Headers[returnsHeader]
	return number(returns) >= maxReturns || d.Redelivered && !counted
}

// replace publishes a waiting copy with this number of deliveries, and then acknowledges the
// message.
func (d *delivery) replace(ctx context.Context, after time.Duration, deliveries int) error {
	m := d.publishing()
	m.Headers[deliveriesHeader] = int64(deliveries)
	m.Headers[exchangeHeader], m.Headers[routingKeyHeader] = d.Exchange, d.RoutingKey
	if d.frame() > 0 && headerSize(m)+deathRoom > d.frame() {
		// With the header that the server adds for the wait, no consumer could receive
		// it.
		return d.hold(ctx, after)
	}
	return d.instead(ctx, func(ctx context.Context) error { return d.out.later(ctx, after, m) })
}

// hold is replace for a message without room for the headers of a copy.
func (d *delivery) hold(ctx context.Context, after time.Duration) error {
	if d.worn() {
		return d.DeadLetter(ctx, stetmsg.Decision{Reason: stetmsg.Exhausted, Err: errNoRoom})
	}
	timer.Sleep(d.run, min(after, maxPause))
	return d.back()
}

var errNoRoom = errors.New("its headers leave no room for the headers of a waiting message, so it cannot be tried again")

// DeadLetter implements stetmsg.Delivery. The deliveries of a redriven dead letter are counted
// from 1.
func (d *delivery) DeadLetter(ctx context.Context, why stetmsg.Decision) error {
	m := d.publishing()
	delete(m.Headers, deliveriesHeader)
	m.Headers[ReasonHeader], m.Headers[ErrorHeader] = string(why.Reason), why.Text()
	m = fit(m, d.frame(), ErrorHeader, ReasonHeader)
	return d.instead(ctx, func(ctx context.Context) error { return d.out.dead(ctx, d.RoutingKey, m) })
}

// frame is the largest that the server takes; 0: any.
func (d *delivery) frame() int { return d.out.link.conn.Config.FrameSize }

// instead publishes a copy and then acknowledges the original, which stays unacknowledged
// until the broker has confirmed it, the connection is lost, or the receiver ends.
func (d *delivery) instead(ctx context.Context, publish func(context.Context) error) error {
	ctx = context.WithoutCancel(ctx)
	for pause := time.Second; ; pause = min(2*pause, maxPause) {
		within, cancel := context.WithTimeout(ctx, 2*d.out.link.patience)
		err := publish(within)
		cancel()
		switch {
		case err == nil:
			return d.ack()
		case d.out.link.conn.IsClosed(): // the server has returned it to its queue
			return err
		}
		d.out.log.ErrorContext(ctx, "stetmsg/amqp: the copy of a message cannot be published; the message stays unacknowledged",
			slog.String("queue", d.out.o.Queue), slog.Any("error", err), slog.Duration("again_in", pause))
		timer.Sleep(d.run, pause)
		if d.run.Err() != nil {
			return errors.Join(err, d.back())
		}
	}
}

// deathRoom is the space for x-death and similar headers, with names of up to 255 bytes.
const deathRoom = 3 << 10

// maxPause is the longest time until a refused copy is published again.
const maxPause = 30 * time.Second

// acted are headers that the broker or its plugins apply when a message is published, or set.
// A copy with them would also be sent to other queues (CC, BCC), delayed again, or dropped as a
// duplicate.
var acted = []string{"CC", "BCC", returnsHeader, "x-acquired-count", "x-delay", "x-deduplication-header", "x-death", "x-opt-deaths",
	"x-first-death-exchange", "x-first-death-queue", "x-first-death-reason", "x-last-death-exchange", "x-last-death-queue", "x-last-death-reason"}

// returnsHeader has the number of times that a message was returned to a quorum queue.
const returnsHeader = "x-delivery-count"

// publishing is a copy of the message. It does not expire: it was received in
// time. Its user would be refused, unless it were ours.
func (d *delivery) publishing() amqp.Publishing {
	m := amqp.Publishing{
		Headers: amqp.Table{}, ContentType: d.ContentType, ContentEncoding: d.ContentEncoding, DeliveryMode: amqp.Persistent,
		Priority: d.Priority, CorrelationId: d.CorrelationId, ReplyTo: d.ReplyTo, MessageId: d.MessageId,
		Timestamp: d.Timestamp, Type: d.Type, AppId: d.AppId, Body: d.Body,
	}
	maps.Copy(m.Headers, d.Headers)
	for _, name := range acted {
		delete(m.Headers, name)
	}
	return m
}

// restore sets the exchange and routing key from before the wait.
func restore(m amqp.Delivery) amqp.Delivery {
	exchange, ok := m.Headers[exchangeHeader].(string)
	key, ok2 := m.Headers[routingKeyHeader].(string)
	if ok && ok2 {
		m.Exchange, m.RoutingKey = exchange, key
	}
	return m
}

// outbound publishes waiting messages and dead letters, one at a time.
type outbound struct {
	channel
	o Options

	mu       sync.Mutex
	declared map[string]bool
	log      *slog.Logger
}

// newOutbound waits for the server, as open, declare and queue do.
func newOutbound(l *link, o Options) (*outbound, error) {
	p := &outbound{channel: channel{link: l}, o: o, declared: make(map[string]bool)}
	if err := p.open(); err != nil {
		return nil, err
	}
	if o.DeadLetterExchange != "" {
		return p, p.declare(func(ch *amqp.Channel) error {
			return ch.ExchangeDeclarePassive(o.DeadLetterExchange, "", true, false, false, false, nil)
		})
	}
	return p, p.queue(o.DeadLetterQueue, p.deadArgs())
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
	return p.toQueue(ctx, name, args, m)
}

func (p *outbound) dead(ctx context.Context, routingKey string, m amqp.Publishing) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.o.DeadLetterExchange != "" {
		return p.publish(ctx, p.o.DeadLetterExchange, routingKey, m)
	}
	return p.toQueue(ctx, p.o.DeadLetterQueue, p.deadArgs(), m)
}

// toQueue publishes m to a queue of this package. A deleted queue is declared again at the
// next message.
func (p *outbound) toQueue(ctx context.Context, name string, args amqp.Table, m amqp.Publishing) error {
	if err := p.link.bounded(func() error { return p.queue(name, args) }); err != nil {
		return err
	}
	err := p.publish(ctx, "", name, m)
	if errors.Is(err, errReturned) {
		p.declared[name] = false
	}
	return err
}

func (p *outbound) deadArgs() amqp.Table { return amqp.Table{"x-queue-type": p.o.QueueType} }

// publish returns nil when the broker has the message in a queue.
func (p *outbound) publish(ctx context.Context, exchange, key string, m amqp.Publishing) error {
	err := p.channel.publish(ctx, exchange, routed{key, m})
	if err != nil && !errors.Is(err, errReturned) {
		_ = p.link.bounded(p.ch.Close)
	}
	return err
}
