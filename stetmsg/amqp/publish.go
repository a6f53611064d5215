package amqp

import (
	"context"
	"fmt"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/misuse"
	"github.com/stet-go/stet/stetmsg"
)

// PublisherOptions configure a Publisher. URL or Dial is required.
type PublisherOptions struct {
	// URL and Dial are as in Options.
	URL  string
	Dial func(ctx context.Context) (*amqp.Connection, error)
	// Exchange is published to, with Message.To as the routing key. It must
	// exist. Default: the default exchange, to which To is the name of a queue.
	Exchange string
}

// Publisher publishes messages and has the broker confirm them. It connects when
// it first has to, and again after a failure.
type Publisher struct {
	o        PublisherOptions
	patience time.Duration

	mu      sync.Mutex // held while publishing
	channel            // link is nil without a connection
}

// NewPublisher returns a publisher; close it. Wrong options are errors of kind
// stet.KindInvalid.
func NewPublisher(o PublisherOptions) (*Publisher, error) {
	dial, err := dialer(o.URL, o.Dial)
	if err != nil {
		return nil, err
	}
	o.Dial = dial
	return &Publisher{o: o, patience: answerTimeout}, nil
}

// dialer is dial, or one for url.
func dialer(url string, dial func(context.Context) (*amqp.Connection, error)) (func(context.Context) (*amqp.Connection, error), error) {
	switch {
	case dial != nil:
		return dial, nil
	case url == "":
		return nil, misuse.Errorf("stetmsg/amqp: Options need a URL or Dial")
	}
	if _, err := amqp.ParseURI(url); err != nil { // its text has the password
		return nil, misuse.Errorf("stetmsg/amqp: Options.URL is malformed; it must be like amqp://user:password@host:5672/vhost, with special characters percent-encoded")
	}
	return func(context.Context) (*amqp.Connection, error) { return amqp.Dial(url) }, nil
}

// Publish implements stetmsg.Publish. Messages are persistent, mandatory (an error if no queue
// receives them) and confirmed. The ID is the property message-id. Message.Key is not used.
func (p *Publisher) Publish(ctx context.Context, messages []stet.Message) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(messages) > 0 {
		n := min(len(messages), unconfirmed)
		if err := p.publish(ctx, messages[:n]); err != nil {
			p.disconnect()
			return fmt.Errorf("stetmsg/amqp: %w", err)
		}
		messages = messages[n:]
	}
	return nil
}

// Check refuses messages that RabbitMQ never accepts: for stet.Options.CheckMessage. The error is of kind stet.KindInvalid.
func Check(m stet.Message) error { return check(m, 128<<10) }

// check is Check for frames of a size; 0 for no limit.
func check(m stet.Message, frame int) error {
	const short = 255 // bytes of a short text
	if len(m.To) > short {
		return misuse.Errorf("stetmsg/amqp: Message.To has %d bytes; at most %d", len(m.To), short)
	}
	for name, value := range m.Header {
		switch {
		case name == "CC" || name == "BCC":
			return misuse.Errorf("stetmsg/amqp: Message.Header has %s, by which RabbitMQ sends to other queues; emit a message for each", name)
		case len(name) > short || name == "content-type" && len(value) > short:
			return misuse.Errorf("stetmsg/amqp: Message.Header has a name, or a content-type, of more than %d bytes", short)
		}
	}
	if n := headerSize(publishing(m)); frame > 0 && n > frame-8 {
		return misuse.Errorf("stetmsg/amqp: Message.Header takes %d bytes; at most %d", n, frame-8)
	}
	return nil
}

// publish sends messages and waits until all are confirmed. The caller holds mu.
func (p *Publisher) publish(ctx context.Context, messages []stet.Message) error {
	if p.link == nil || p.link.conn.IsClosed() {
		conn, err := p.o.Dial(ctx)
		if err != nil {
			return err
		}
		p.channel = channel{link: &link{conn: conn, patience: p.patience}}
	}
	out := make([]routed, len(messages))
	for i, m := range messages {
		if err := check(m, p.link.conn.Config.FrameSize); err != nil { // the broker would close the connection
			return err
		}
		out[i] = routed{m.To, publishing(m)}
	}
	return p.channel.publish(ctx, p.o.Exchange, out...)
}

func publishing(m stet.Message) amqp.Publishing {
	out := amqp.Publishing{MessageId: m.ID, DeliveryMode: amqp.Persistent, Headers: amqp.Table{}, Body: m.Body}
	for name, value := range m.Header {
		if name == "content-type" {
			out.ContentType = value
			continue
		}
		out.Headers[name] = value
	}
	return out
}

// disconnect drops the connection. The caller holds mu.
func (p *Publisher) disconnect() {
	if p.link != nil {
		_ = p.link.conn.CloseDeadline(time.Now().Add(time.Second))
		p.channel = channel{}
	}
}

// Close disconnects.
func (p *Publisher) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.disconnect()
	return nil
}

var _ stetmsg.Publish = (*Publisher)(nil).Publish
