// Package watermill is a middleware for Watermill, which brings stetmsg to every
// broker that Watermill speaks. It is in this module, so that nobody who does not
// use Watermill has to have it.
package watermill

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stetmsg"
)

// DeadLetter is the error of a message that is to be put aside: it matches the
// shouldGoToPoisonQueue function of middleware.PoisonQueueWithFilter. Without a
// poison queue around this middleware the message would come again and again;
// it is not run again.
type DeadLetter struct{ stetmsg.Decision }

// Error implements error.
func (d DeadLetter) Error() string { return fmt.Sprintf("%s: %s", d.Reason, d.Text()) }

// IsDeadLetter is for middleware.PoisonQueueWithFilter.
func IsDeadLetter(err error) bool {
	_, ok := errors.AsType[DeadLetter](err)
	return ok
}

// Middleware returns a middleware that runs the handlers behind it once for each
// operation. One that has to wait is held until its time has come, or until the
// router ends, and is then refused (Nack), so that the broker delivers it again.
// Only handlers that publish nothing can be behind it: what a handler returns to
// be published would be lost by a crash between its outcome and the publishing.
//
// Options.Retryable sees the handler's errors as New of stetmsg does.
func Middleware(engine *stet.Engine, o stetmsg.Options[*message.Message]) (message.HandlerMiddleware, error) {
	nothing := func(context.Context, *message.Message) ([]byte, error) { return nil, nil }
	if _, err := stetmsg.New(engine, o, nothing); err != nil { // wrong options, here and not at the first handler
		return nil, err
	}
	return func(h message.HandlerFunc) message.HandlerFunc {
		c, err := stetmsg.New(engine, o, func(ctx context.Context, m *message.Message) ([]byte, error) {
			outer := m.Context()
			defer m.SetContext(outer)
			m.SetContext(ctx)
			out, err := h(m)
			if err == nil && len(out) > 0 {
				err = stet.Permanent(errors.New("the handler returned messages to publish, which would not be safe"))
			}
			return nil, err
		})
		return func(m *message.Message) ([]*message.Message, error) {
			if err != nil {
				return nil, err
			}
			ctx := m.Context()
			d := c.Decide(ctx, m, 0)
			switch d.Action {
			case stetmsg.Ack:
				return nil, nil
			case stetmsg.DeadLetter:
				return nil, DeadLetter{d}
			}
			wait := time.NewTimer(d.After)
			defer wait.Stop()
			select {
			case <-wait.C:
			case <-ctx.Done():
			}
			return nil, errors.Join(fmt.Errorf("stetmsg: %s: deliver it again", d.Reason), d.Err)
		}
	}, nil
}

// Envelope is how an identity sees a message: by its metadata, and by its UUID
// under the name "uuid", which is the producer's if the producer sets it.
func Envelope(m *message.Message) stetmsg.Envelope {
	return stetmsg.Envelope{Body: m.Payload, ContentType: m.Metadata.Get("content-type"), Header: func(name string) (string, bool) {
		if name == "uuid" {
			return m.UUID, m.UUID != ""
		}
		v, ok := m.Metadata[name]
		return v, ok
	}}
}
