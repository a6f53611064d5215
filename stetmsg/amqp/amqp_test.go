package amqp_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"go.uber.org/goleak"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/stetmsg"
	"github.com/stet-go/stet/stetmsg/amqp"
	"github.com/stet-go/stet/store/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(rig.Main(m)) }

const patience = 60 * time.Second // for a loaded machine

// fixture is a queue and an engine.
type fixture struct {
	t       *testing.T
	url     string
	queue   string
	engine  *stet.Engine
	mu      sync.Mutex
	decided map[string][]stetmsg.Reason
	changed chan struct{}

	stopping func() // called after the context has ended; may be nil
}

func newFixture(t *testing.T, url string) *fixture {
	t.Helper()
	engine := stettest.Engine(t, memory.New(memory.Options{}), stet.Options{SweepEvery: -1})
	f := &fixture{t: t, url: url, queue: t.Name(), engine: engine, decided: map[string][]stetmsg.Reason{}, changed: make(chan struct{}, 1)}
	f.channel(func(ch *amqp091.Channel) {
		if _, err := ch.QueueDeclare(f.queue, true, false, false, false, nil); err != nil {
			t.Fatal(err)
		}
	})
	return f
}

func (f *fixture) channel(use func(*amqp091.Channel)) {
	f.t.Helper()
	conn, err := amqp091.Dial(f.url)
	if err != nil {
		f.t.Fatal(err)
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		f.t.Fatal(err)
	}
	use(ch)
}

func (f *fixture) publish(ms ...amqp091.Publishing) {
	f.t.Helper()
	f.channel(func(ch *amqp091.Channel) {
		if err := ch.Confirm(false); err != nil {
			f.t.Fatal(err)
		}
		for _, m := range ms {
			m.DeliveryMode = amqp091.Persistent
			sent, err := ch.PublishWithDeferredConfirmWithContext(context.Background(), "", f.queue, true, false, m)
			if err != nil || !sent.Wait() {
				f.t.Fatal("not confirmed", err)
			}
		}
	})
}

type handler = func(context.Context, amqp091.Delivery) ([]byte, error)

func (f *fixture) receiver(h handler, o amqp.Options) *amqp.Receiver {
	f.t.Helper()
	byID := stetmsg.By(amqp.Envelope, stetmsg.Header("orders", "message-id"))
	c, err := stetmsg.New(f.engine, stetmsg.Options[amqp091.Delivery]{
		Operation: byID, MaxAttempts: 3, Concurrency: 4, ErrorLog: slog.New(slog.DiscardHandler),
		Backoff: func(int) time.Duration { return time.Second },
		Observe: func(_ context.Context, d stetmsg.Decision) { f.observe(d) },
	}, h)
	if err != nil {
		f.t.Fatal(err)
	}
	o.URL, o.Queue = f.url, f.queue
	r, err := amqp.New(c, o)
	if err != nil {
		f.t.Fatal(err)
	}
	return r
}

func (f *fixture) observe(d stetmsg.Decision) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.decided[d.ID.String()] = append(f.decided[d.ID.String()], d.Reason)
	select {
	case f.changed <- struct{}{}:
	default:
	}
}

func (f *fixture) reasons(id string) []stetmsg.Reason {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.decided[f.engine.ID("orders", id).String()]
}

// until waits until done says yes after a decision.
func (f *fixture) until(done func() bool) {
	f.t.Helper()
	timeout := time.After(patience)
	for !done() {
		select {
		case <-f.changed:
		case <-timeout:
			f.t.Fatalf("timed out; decided: %v", f.decided)
		}
	}
}

// run runs a receiver until stop is called.
func (f *fixture) run(r *amqp.Receiver) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	return sync.OnceFunc(func() {
		cancel()
		if f.stopping != nil {
			f.stopping()
		}
		if err := <-done; err != nil {
			f.t.Error(err)
		}
	})
}

// get takes a message from a queue, and waits for it.
func (f *fixture) get(queue string) (m amqp091.Delivery) {
	f.t.Helper()
	f.channel(func(ch *amqp091.Channel) {
		if err := ch.Qos(1, 0, false); err != nil {
			f.t.Fatal(err)
		}
		ms, err := ch.Consume(queue, "", false, false, false, false, nil)
		if err != nil {
			f.t.Fatal(err)
		}
		select {
		case m = <-ms:
			if err := m.Ack(false); err != nil {
				f.t.Fatal(err)
			}
		case <-time.After(patience):
			f.t.Fatalf("nothing came to %s", queue)
		}
	})
	return m
}

func (f *fixture) left() (n int) {
	f.t.Helper()
	f.channel(func(ch *amqp091.Channel) {
		q, err := ch.QueueDeclarePassive(f.queue, true, false, false, false, nil)
		if err != nil {
			f.t.Fatal(err)
		}
		n = q.Messages
	})
	return n
}

func TestMessageDeliveredFiveTimesIsHandledOnce(t *testing.T) {
	f := newFixture(t, rig.RabbitMQ(t).URL())
	runs := make(chan string, 10)
	stop := f.run(f.receiver(func(_ context.Context, m amqp091.Delivery) ([]byte, error) {
		runs <- string(m.Body)
		return nil, nil
	}, amqp.Options{}))
	defer stop()
	for range 5 {
		f.publish(amqp091.Publishing{MessageId: "1", Body: []byte("five books")})
	}
	f.publish(amqp091.Publishing{MessageId: "2", Body: []byte("five books")}) // another intent
	f.until(func() bool {
		acked := 0
		for _, r := range f.reasons("1") {
			if r == stetmsg.Handled || r == stetmsg.Replayed {
				acked++
			}
		}
		return acked == 5 && len(f.reasons("2")) == 1
	})
	stop()
	if len(runs) != 2 || f.left() != 0 {
		t.Fatalf("%d runs, %d messages left", len(runs), f.left())
	}
}

func TestRetriedMessageHasItsHeadersAndProperties(t *testing.T) {
	f := newFixture(t, rig.RabbitMQ(t).URL())
	type seen struct {
		m  amqp091.Delivery
		at time.Time
	}
	var got []seen
	stop := f.run(f.receiver(func(_ context.Context, m amqp091.Delivery) ([]byte, error) {
		got = append(got, seen{m, time.Now()})
		if len(got) < 3 {
			return nil, stet.Retryable(errors.New("closed"))
		}
		return nil, nil
	}, amqp.Options{}))
	defer stop()
	f.publish(amqp091.Publishing{MessageId: "1", ContentType: "text/plain", Expiration: "600000", Headers: amqp091.Table{"tenant": "t1"}, Body: []byte("b")})
	f.until(func() bool { return len(f.reasons("1")) == 3 })
	stop()
	last := got[2]
	if last.at.Sub(got[0].at) < 2*time.Second {
		t.Errorf("three runs within %v", last.at.Sub(got[0].at))
	}
	m := last.m
	if m.MessageId != "1" || m.ContentType != "text/plain" || m.Headers["tenant"] != "t1" || m.RoutingKey != f.queue || m.Exchange != "" || string(m.Body) != "b" {
		t.Errorf("it came back as %+v", m)
	}
	if f.left() != 0 {
		t.Error("a message is left")
	}
}

func TestDeadLetterHasItsReason(t *testing.T) {
	f := newFixture(t, rig.RabbitMQ(t).URL())
	stop := f.run(f.receiver(func(context.Context, amqp091.Delivery) ([]byte, error) {
		return nil, errors.New("no such book")
	}, amqp.Options{}))
	defer stop()
	f.publish(amqp091.Publishing{MessageId: "1", Body: []byte("b")}, amqp091.Publishing{Body: []byte("nameless")})
	f.until(func() bool { return len(f.reasons("1")) == 1 })
	reasons := map[any]string{}
	for range 2 {
		m := f.get(f.queue + ".dead")
		reasons[m.Headers[amqp.ReasonHeader]] = string(m.Body)
		if m.Headers[amqp.ErrorHeader] == "" {
			t.Error("no text")
		}
	}
	if reasons["failed"] != "b" || reasons["invalid"] != "nameless" {
		t.Fatal(reasons)
	}
}

func TestReceiverReconnectsAfterARestart(t *testing.T) {
	server := rig.NewRabbitMQ(t, rig.RabbitMQOptions{})
	f := newFixture(t, server.URL())
	held, release := make(chan struct{}), make(chan struct{})
	runs := make(chan string, 10)
	stop := f.run(f.receiver(func(_ context.Context, m amqp091.Delivery) ([]byte, error) {
		runs <- m.MessageId
		if m.MessageId == "held" {
			close(held)
			<-release
		}
		return nil, nil
	}, amqp.Options{QueueType: "classic"}))
	defer stop()
	f.publish(amqp091.Publishing{MessageId: "held"})
	<-held
	if err := errors.Join(server.Kill(), server.Start(t.Context())); err != nil {
		t.Fatal(err)
	}
	f.publish(amqp091.Publishing{MessageId: "after"})
	f.until(func() bool { return len(f.reasons("after")) == 1 })
	close(release)
	// The copy that the broker delivered again is acknowledged, not run.
	f.until(func() bool {
		rs := f.reasons("held")
		return len(rs) > 1 && rs[len(rs)-1] == stetmsg.Replayed
	})
	stop()
	if len(runs) != 2 || f.left() != 0 {
		t.Fatalf("%d runs, %d left", len(runs), f.left())
	}
}

func TestShutdownReleasesWaitingMessages(t *testing.T) {
	f := newFixture(t, rig.RabbitMQ(t).URL())
	begun, release := make(chan struct{}, 10), make(chan struct{})
	r := f.receiver(func(context.Context, amqp091.Delivery) ([]byte, error) {
		begun <- struct{}{}
		<-release
		return nil, nil
	}, amqp.Options{Prefetch: 7})
	for i := range 10 {
		f.publish(amqp091.Publishing{MessageId: fmt.Sprint(i)})
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	for range 4 { // the consumer's Concurrency
		<-begun
	}
	cancel()
	close(release)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if n := f.left(); n != 6 || len(begun) != 0 {
		t.Fatalf("%d messages are left of 10, of which 4 were begun", n)
	}
}

func TestWrongOptionsAndRefusalsAreErrors(t *testing.T) {
	f := newFixture(t, rig.RabbitMQ(t).URL())
	h := func(context.Context, amqp091.Delivery) ([]byte, error) { return nil, nil }
	f.queue = "no such queue"
	r := f.receiver(h, amqp.Options{})
	r.SetRefusals(0)
	if err := r.Run(t.Context()); err == nil {
		t.Error("a queue that does not exist was no error")
	}
	c, err := stetmsg.New(f.engine, stetmsg.Options[amqp091.Delivery]{Operation: stetmsg.By(amqp.Envelope, stetmsg.Digest("s"))}, h)
	if err != nil {
		t.Fatal(err)
	}
	stettest.Options(t, "testdata/options.txt", func(o amqp.Options) error { _, err := amqp.New(c, o); return err })
	if _, err := amqp.New(nil, amqp.Options{URL: f.url, Queue: "q"}); stet.KindOf(err) != stet.KindInvalid {
		t.Error(err)
	}
}
