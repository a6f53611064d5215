package proxy

import (
	"context"
	"fmt"
	"sync"
	"time"

	rabbit "github.com/rabbitmq/amqp091-go"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/timer"
	"github.com/stet-go/stet/stetmsg"
	"github.com/stet-go/stet/stetmsg/amqp"
)

// broker sends messages by what publishes them to a broker.
type broker struct {
	stetmsg.Publish
	refuses func(stet.Message) error
	closing func()
}

// publish implements sender: of messages that go together all are confirmed, or it is not
// known which are.
func (b *broker) publish(ctx context.Context, messages []stet.Message, confirmed func(stet.Message)) error {
	if err := b.Publish(ctx, messages); err != nil {
		return err
	}
	for _, m := range messages {
		confirmed(m)
	}
	return nil
}

func (b *broker) check(m stet.Message) error { return b.refuses(m) }

func (b *broker) close() { b.closing() }

// The pause after a broker could not be connected to, and the longest; and how long
// connecting may take.
const (
	minDialPause = 250 * time.Millisecond
	maxDialPause = 15 * time.Second
	dialTimeout  = 5 * time.Second
)

// dialing connects, and does not try so for a while after it has failed.
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
		return fmt.Errorf("it could not be connected to, and is tried again soon: %w", d.last)
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
		return nil, at("by", "%q is no URL of AMQP; write amqp://user:password@host:5672/vhost, with what is special in a part percent-encoded", redact(t.By))
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
