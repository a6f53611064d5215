package proxy

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	js "github.com/nats-io/nats.go/jetstream"
	rabbit "github.com/rabbitmq/amqp091-go"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/intake"
	"github.com/stet-go/stet/internal/timer"
	"github.com/stet-go/stet/stetmsg"
	"github.com/stet-go/stet/stetmsg/amqp"
	"github.com/stet-go/stet/stetmsg/jetstream"
	"github.com/stet-go/stet/stetmsg/kafka"
	"github.com/stet-go/stet/stetmsg/sqs"
)

// broker sends messages by a stetmsg.Publish.
type broker struct {
	stetmsg.Publish
	refuses func(stet.Message) error
	closing func()
}

// publish implements sender. Either all messages of a call are confirmed, or it is not known
// which.
func (b *broker) publish(ctx context.Context, messages []stet.Message, results *publishResults) error {
	if err := b.Publish(ctx, messages); err != nil {
		return err
	}
	for _, m := range messages {
		results.note(m.ID)
	}
	return nil
}

func (b *broker) check(m stet.Message) error { return b.refuses(m) }

func (b *broker) close() { b.closing() }

// The first and the longest pause after a failed connection, and the timeout of connecting.
const (
	minDialPause = 250 * time.Millisecond
	maxDialPause = 15 * time.Second
	dialTimeout  = 5 * time.Second
)

// dialing connects, with a pause after each failure.
type dialing struct {
	mu    sync.Mutex
	n     int // failures since the last success
	until time.Time
	last  error
}

func (d *dialing) do(connect func() error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if time.Now().Before(d.until) {
		return fmt.Errorf("the connection failed, and is tried again soon: %w", d.last)
	}
	if d.last = connect(); d.last != nil {
		d.n++
		d.until = time.Now().Add(timer.Doubled(d.n, minDialPause, maxDialPause))
		return d.last
	}
	d.n = 0
	return nil
}

// amqp returns the sender of a target of AMQP.
func (t *Target) amqp() (sender, error) {
	if _, err := rabbit.ParseURI(t.By); err != nil { // its text has the password
		return nil, at("by", "%q is no URL of AMQP; write amqp://user:password@host:5672/vhost, with special characters in a part percent-encoded", redact(t.By))
	}
	var d dialing
	p, err := amqp.NewPublisher(amqp.PublisherOptions{Exchange: t.Exchange, Dial: func(context.Context) (conn *rabbit.Connection, err error) {
		err = d.do(func() error {
			conn, err = rabbit.DialConfig(t.By, rabbit.Config{Locale: "en_US", Dial: rabbit.DefaultDial(dialTimeout)})
			return err
		})
		return conn, err
	}})
	if err != nil {
		return nil, err
	}
	return &broker{Publish: p.Publish, refuses: amqp.Check, closing: func() { _ = p.Close() }}, nil
}

// lazy connects to a broker when it publishes first. Its client reconnects by itself.
type lazy struct {
	connect func(ctx context.Context) (publish stetmsg.Publish, lost func() bool, closing func(), err error)

	d       dialing
	mu      sync.Mutex
	send    stetmsg.Publish // nil: not connected
	lost    func() bool     // for good
	closing func()
}

func (l *lazy) publish(ctx context.Context, messages []stet.Message) error {
	l.mu.Lock()
	send, err := l.connected(ctx)
	l.mu.Unlock()
	if err != nil {
		return err
	}
	return send(ctx, messages)
}

// connected returns the Publish of the connection. The caller holds mu.
func (l *lazy) connected(ctx context.Context) (stetmsg.Publish, error) {
	if l.send != nil && l.lost() {
		l.closing()
		l.send = nil
	}
	if l.send != nil {
		return l.send, nil
	}
	err := l.d.do(func() (err error) {
		ctx, cancel := context.WithTimeout(ctx, dialTimeout)
		defer cancel()
		l.send, l.lost, l.closing, err = l.connect(ctx)
		return err
	})
	return l.send, err
}

func (l *lazy) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.send != nil {
		l.closing()
		l.send = nil
	}
}

// jetStream returns the sender of a target of JetStream.
func (t *Target) jetStream() (sender, error) {
	for one := range strings.SplitSeq(t.By, ",") {
		if u, err := url.Parse(one); err != nil || u.Host == "" || u.Scheme != "nats" && u.Scheme != "tls" {
			return nil, at("by", "it must be like nats://user:password@host:4222, or several of these with commas")
		}
	}
	options := []nats.Option{nats.Name("stet relay"), nats.Timeout(dialTimeout), nats.MaxReconnects(-1), nats.ReconnectBufSize(-1)}
	if t.Credentials != "" {
		if _, err := os.ReadFile(t.Credentials); err != nil {
			return nil, at("credentials", "%w", err)
		}
		options = append(options, nats.UserCredentials(t.Credentials))
	}
	l := &lazy{connect: func(context.Context) (stetmsg.Publish, func() bool, func(), error) {
		nc, err := nats.Connect(t.By, options...)
		if err != nil {
			return nil, nil, nil, fmt.Errorf("cannot connect to JetStream: %w", err)
		}
		stream, err := js.New(nc)
		if err != nil {
			nc.Close()
			return nil, nil, nil, err
		}
		return jetstream.Publisher(stream), nc.IsClosed, nc.Close, nil
	}}
	return &broker{Publish: l.publish, refuses: jetstream.Check, closing: l.close}, nil
}

// kafka returns the sender of a target of Kafka.
func (t *Target) kafka(retry time.Duration) (sender, error) {
	options, err := intake.KafkaOptions(t.By)
	if err != nil {
		if field, ok := errors.AsType[*intake.FieldError](err); ok {
			err = field.Err
		}
		return nil, at("by", "%w", err)
	}
	options = append(options, kgo.ClientID("stet-relay"), kgo.RecordDeliveryTimeout(retry))
	client, err := kgo.NewClient(options...) // it connects when it publishes
	if err != nil {
		return nil, at("by", "%w", err)
	}
	return &broker{Publish: kafka.Publisher(client), refuses: kafka.Check, closing: client.Close}, nil
}

// sqs returns the sender of a target that is one queue of SQS.
func (t *Target) sqs() (sender, error) {
	queue := strings.TrimPrefix(t.By, "sqs+")
	if u, err := url.Parse(queue); err != nil || u.User != nil || u.RawQuery != "" || strings.Count(strings.Trim(u.Path, "/"), "/") < 1 {
		return nil, at("by", "it must be sqs+ and the URL of a queue, like sqs+https://sqs.eu-central-1.amazonaws.com/123456789012/orders; credentials are those of the environment")
	}
	there := func(m stet.Message) stet.Message {
		m.To = queue
		return m
	}
	l := &lazy{connect: func(ctx context.Context) (stetmsg.Publish, func() bool, func(), error) {
		client, err := intake.SQSClient(ctx, queue)
		if err != nil {
			return nil, nil, nil, err
		}
		return sqs.Publisher(client), func() bool { return false }, func() {}, nil
	}}
	publish := func(ctx context.Context, messages []stet.Message) error {
		all := make([]stet.Message, len(messages))
		for i, m := range messages {
			all[i] = there(m)
		}
		return l.publish(ctx, all)
	}
	return &broker{Publish: publish, refuses: func(m stet.Message) error { return sqs.Check(there(m)) }, closing: l.close}, nil
}
