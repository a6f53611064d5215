package amqp_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/stetmsg"
	"github.com/stet-go/stet/stetmsg/amqp"
)

// messages returns how many messages a queue has that are not in flight.
func (f *fixture) messages(queue string) (n int) {
	f.t.Helper()
	f.channel(func(ch *amqp091.Channel) {
		q, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
		if err != nil {
			f.t.Fatal(err)
		}
		n = q.Messages
	})
	return n
}

func (f *fixture) declare(queue string, args amqp091.Table) {
	f.t.Helper()
	f.channel(func(ch *amqp091.Channel) {
		if _, err := ch.QueueDeclare(queue, true, false, false, false, args); err != nil {
			f.t.Fatal(err)
		}
	})
}

func nothingHappened(context.Context, amqp091.Delivery) ([]byte, error) {
	return nil, stet.Retryable(errors.New("closed"))
}

func TestCopiesAreInOneQueue(t *testing.T) {
	for name, from := range map[string]string{"sent here, with a copy to another": "", "sent to another, with a copy here": "-other"} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, rig.RabbitMQ(t).URL())
			other := f.queue + "-other"
			f.declare(other, nil)
			stop := f.run(f.receiver(nothingHappened, amqp.Options{}))
			defer stop()
			cc := other
			if from != "" {
				cc = f.queue
			}
			f.channel(func(ch *amqp091.Channel) {
				m := amqp091.Publishing{MessageId: "1", DeliveryMode: amqp091.Persistent, Headers: amqp091.Table{"CC": []any{cc}, "BCC": []any{cc}, "x-delay": int32(1), "trace": "7"}, Body: []byte("five books")}
				if err := ch.Confirm(false); err != nil {
					t.Fatal(err)
				}
				sent, err := ch.PublishWithDeferredConfirmWithContext(t.Context(), "", f.queue+from, true, false, m)
				if err != nil || !sent.Wait() {
					t.Fatal(err)
				}
			})
			dead := f.get(f.queue + ".dead") // MaxAttempts are used up: two copies waited before
			stop()
			if _, has := dead.Headers["CC"]; has || dead.Headers["trace"] != "7" || dead.MessageId != "1" {
				t.Errorf("the dead letter has the headers %v", dead.Headers)
			}
			if rs := f.reasons("1"); len(rs) != 3 {
				t.Errorf("%d decisions: %v", len(rs), rs)
			}
			if n, d, l := f.messages(other), f.messages(f.queue+".dead"), f.left(); n != 1 || d != 0 || l != 0 {
				t.Errorf("%d messages in the other queue, of which the producer sent one; %d more dead letters, %d left", n, d, l)
			}
		})
	}
}

func TestMessageStaysUnacknowledgedWhileItsDeadLetterIsRefused(t *testing.T) {
	f := newFixture(t, rig.RabbitMQ(t).URL())
	f.queue += "-limited"
	f.declare(f.queue, amqp091.Table{"x-queue-type": "quorum", "x-delivery-limit": int32(2)})
	exchange, dead := f.queue+"-dlx", f.queue+"-dead"
	f.declare(dead, nil)
	f.channel(func(ch *amqp091.Channel) { // without a binding
		if err := ch.ExchangeDeclare(exchange, "direct", true, false, false, false, nil); err != nil {
			t.Fatal(err)
		}
	})
	stop := f.run(f.receiver(func(context.Context, amqp091.Delivery) ([]byte, error) {
		return nil, stet.Permanent(errors.New("it cannot be"))
	}, amqp.Options{DeadLetterExchange: exchange}))
	defer stop()
	f.publish(amqp091.Publishing{MessageId: "1", Body: []byte("five books")})
	f.until(func() bool { return len(f.reasons("1")) == 1 })
	time.Sleep(4 * time.Second) // it was released each second, and gone after the third time
	f.channel(func(ch *amqp091.Channel) {
		if err := ch.QueueBind(dead, f.queue, exchange, false, nil); err != nil {
			t.Fatal(err)
		}
	})
	if m := f.get(dead); m.MessageId != "1" || m.Headers[amqp.ReasonHeader] != string(stetmsg.Failed) {
		t.Errorf("the dead letter is %v", m.Headers)
	}
	stop()
	if rs := f.reasons("1"); len(rs) != 1 || f.left() != 0 {
		t.Errorf("decisions %v, %d left", rs, f.left())
	}
}

// returned publishes a message, and has it come back so many times, as it does from
// processes that it crashes. It returns the message, which is unacknowledged.
func (f *fixture) returned(ch *amqp091.Channel, times int) (m amqp091.Delivery) {
	f.t.Helper()
	f.publish(amqp091.Publishing{MessageId: "1", Body: []byte("five books")})
	for came := 0; came <= times; {
		var ok bool
		var err error
		if m, ok, err = ch.Get(f.queue, false); err != nil {
			f.t.Fatal(err)
		} else if !ok {
			continue // it is on its way back
		}
		if came++; came <= times {
			if err := m.Nack(false, true); err != nil {
				f.t.Fatal(err)
			}
		}
	}
	return m
}

func TestMessageThatKillsProcessesIsReplacedBeforeItsDeliveryLimit(t *testing.T) {
	f := newFixture(t, rig.RabbitMQ(t).URL())
	f.queue += "-limited"
	f.declare(f.queue, amqp091.Table{"x-queue-type": "quorum", "x-delivery-limit": int32(20)}) // the default from RabbitMQ 4 on
	f.channel(func(ch *amqp091.Channel) {
		if err := f.returned(ch, 12).Nack(false, true); err != nil {
			t.Fatal(err)
		}
	})
	ran := make(chan amqp091.Table, 10)
	stop := f.run(f.receiver(func(_ context.Context, m amqp091.Delivery) ([]byte, error) {
		ran <- m.Headers
		return nil, nil
	}, amqp.Options{}))
	defer stop()
	f.until(func() bool { return len(f.reasons("1")) == 1 })
	stop()
	h := <-ran
	if n := h["x-delivery-count"]; n != nil && n != int64(0) || h["stet-deliveries"] != int64(13) || f.left() != 0 {
		t.Errorf("it ran with the headers %v; %d are left", h, f.left())
	}
}

func TestOftenReturnedMessageIsReplacedByACopy(t *testing.T) {
	f := newFixture(t, rig.RabbitMQ(t).URL())
	f.queue += "-limited"
	f.declare(f.queue, amqp091.Table{"x-queue-type": "quorum", "x-delivery-limit": int32(20)}) // the default from RabbitMQ 4 on
	begun, release := make(chan struct{}, 10), make(chan struct{})
	r := f.receiver(func(context.Context, amqp091.Delivery) ([]byte, error) {
		begun <- struct{}{}
		<-release
		return nil, nil
	}, amqp.Options{})
	var stop func()
	f.channel(func(ch *amqp091.Channel) {
		m := f.returned(ch, 12)
		for i := range 4 { // the consumer's Concurrency
			f.publish(amqp091.Publishing{MessageId: fmt.Sprint("long", i)})
		}
		stop = f.run(r)
		for range 4 {
			<-begun
		}
		if err := m.Nack(false, true); err != nil { // and it waits behind the others
			t.Fatal(err)
		}
	})
	for f.messages(f.queue) > 0 {
		time.Sleep(10 * time.Millisecond)
	}
	time.Sleep(200 * time.Millisecond) // the server has sent it; now the receiver reads it
	f.stopping = func() { close(release) }
	stop()
	m := f.get(f.queue)
	if n := m.Headers["x-delivery-count"]; m.MessageId != "1" || n != nil && n != int64(0) {
		t.Errorf("message %s came back, counted %v times by its queue", m.MessageId, n)
	}
	if n := m.Headers["stet-deliveries"]; n != int64(13) {
		t.Errorf("it remembers %v deliveries, want 13", n)
	}
}

// Several messages may be on their way when a connection is lost.
func TestCopiesOverALostConnectionAreErrors(t *testing.T) {
	f := newFixture(t, rig.RabbitMQ(t).URL())
	conn, err := amqp091.Dial(f.url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	publish, err := amqp.Outbound(conn, amqp.Options{DeadLetterQueue: f.queue + ".dead", QueueType: "classic"})
	if err == nil {
		err = publish(t.Context(), f.queue)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := publish(t.Context(), f.queue); !errors.Is(err, amqp091.ErrClosed) {
			t.Errorf("got %v, want that the connection is closed", err)
		}
	}
}
