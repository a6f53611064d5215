package amqp

import (
	"context"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// unconfirmed is the maximum of published messages that wait for their confirmation.
const unconfirmed = 500

var errReturned = errors.New("the broker has no queue")

// link is a connection that is closed if the server does not answer.
type link struct {
	conn     *amqp.Connection
	patience time.Duration
}

// bounded calls f, which waits for the server. After patience it closes the connection, and f
// returns an error.
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

// channel publishes messages that the broker confirms. After an error other than errReturned, a
// late confirmation could be counted for the next message: close the channel or its connection.
type channel struct {
	link     *link
	ch       *amqp.Channel // nil before open
	returned chan amqp.Return
}

// open waits for the server.
func (c *channel) open() error {
	ch, err := c.link.conn.Channel()
	if err != nil {
		return err // the closed channel stays
	}
	c.ch, c.returned = ch, ch.NotifyReturn(make(chan amqp.Return, unconfirmed))
	return ch.Confirm(false)
}

// routed is a message with its routing key.
type routed struct {
	key string
	amqp.Publishing
}

// publish returns nil when the broker has all messages in queues. There are at most unconfirmed.
func (c *channel) publish(ctx context.Context, exchange string, messages ...routed) error {
	if c.ch == nil || c.ch.IsClosed() {
		if err := c.link.bounded(c.open); err != nil {
			return err
		}
	}
	sent := make([]*amqp.DeferredConfirmation, len(messages))
	for i, m := range messages {
		err := c.link.bounded(func() (err error) {
			sent[i], err = c.ch.PublishWithDeferredConfirmWithContext(ctx, exchange, m.key, true, false, m.Publishing)
			return err
		})
		if err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, c.link.patience)
	defer cancel()
	for _, s := range sent {
		switch ok, err := s.WaitContext(ctx); {
		case err != nil:
			return fmt.Errorf("the broker has not confirmed in time: %w", err)
		case !ok:
			return errors.New("the broker refused a message")
		}
	}
	select {
	case back, open := <-c.returned: // it comes before the confirmation
		if !open {
			return fmt.Errorf("the channel was closed before the broker had confirmed: %w", amqp.ErrClosed)
		}
		return fmt.Errorf("%w for exchange %q: %d %s", errReturned, exchange, back.ReplyCode, back.ReplyText)
	default:
		return nil
	}
}
