package amqp_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/stetmsg"
	"github.com/stet-go/stet/stetmsg/amqp"
)

// The headers of a message are one frame, which has a limit (128 KiB by default).
func TestMessageWithHeadersOfAFrameIsDeadLettered(t *testing.T) {
	for name, tc := range map[string]struct {
		room int
		err  error
	}{
		"dead, with room for a reason": {400, stet.Permanent(errors.New(strings.Repeat("no such book ", 50)))},
		"dead, without room":           {100, stet.Permanent(errors.New(strings.Repeat("no such book ", 50)))},
		"waits":                        {100, nil},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, rig.RabbitMQ(t).URL())
			h := func(context.Context, amqp091.Delivery) ([]byte, error) { return nil, tc.err }
			if tc.err == nil {
				h = nothingHappened
			}
			f.publish(amqp091.Publishing{MessageId: "1", Headers: amqp091.Table{"large": strings.Repeat("x", 131072-8-tc.room)}, Body: []byte("five books")})
			stop := f.run(f.receiver(h, amqp.Options{}))
			defer stop()
			f.until(func() bool { return len(f.reasons("1")) > 0 })
			m := f.get(f.queue + ".dead")
			stop()
			if large, _ := m.Headers["large"].(string); m.MessageId != "1" || len(large) != 131072-8-tc.room || string(m.Body) != "five books" {
				t.Errorf("%d bytes", len(large))
			}
			if f.left() != 0 {
				t.Errorf("%d left", f.left())
			}
		})
	}
}

// What RabbitMQ notes of a wait would not fit the frame any more.
func TestMessageWithTooLargeHeadersForARetryIsDeadLettered(t *testing.T) {
	for _, kind := range []string{"quorum", "classic"} {
		t.Run(kind, func(t *testing.T) {
			f := newFixture(t, rig.RabbitMQ(t).URL())
			f.queue += "-own"
			f.channel(func(ch *amqp091.Channel) {
				if _, err := ch.QueueDeclare(f.queue, true, false, false, false, amqp091.Table{"x-queue-type": kind}); err != nil {
					t.Fatal(err)
				}
			})
			c, err := stetmsg.New(f.engine, stetmsg.Options[amqp091.Delivery]{
				Operation: stetmsg.By(amqp.Envelope, stetmsg.Header("orders", "message-id")), MaxAttempts: -1, ErrorLog: slog.New(slog.DiscardHandler),
				Backoff: func(int) time.Duration { return time.Millisecond },
			}, nothingHappened)
			if err != nil {
				t.Fatal(err)
			}
			r, err := amqp.New(c, amqp.Options{URL: f.url, Queue: f.queue})
			if err != nil {
				t.Fatal(err)
			}
			stop := f.run(r)
			defer stop()
			f.publish(amqp091.Publishing{MessageId: "1", Headers: amqp091.Table{"large": strings.Repeat("x", 131072-8-1000)}, Body: []byte("five books")})
			if m := f.get(f.queue + ".dead"); m.MessageId != "1" || m.Headers[amqp.ReasonHeader] != string(stetmsg.Exhausted) {
				t.Errorf("got %s, %v; want m.MessageId == \"1\", m.Headers[amqp.ReasonHeader] == string(stetmsg.Exhausted)", m.MessageId, m.Headers[amqp.ReasonHeader])
			}
			stop()
			if f.left() != 0 {
				t.Errorf("%d left", f.left())
			}
		})
	}
}
