package broker_test

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	js "github.com/nats-io/nats.go/jetstream"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/stetmsg"
	"github.com/stet-go/stet/stetmsg/amqp"
	"github.com/stet-go/stet/stetmsg/jetstream"
	"github.com/stet-go/stet/stetmsg/kafka"
	"github.com/stet-go/stet/stetwork"
	"github.com/stet-go/stet/stetwork/broker"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(rig.Main(m)) }

const (
	patience   = 2 * time.Minute // for what a loaded machine does
	operations = 30
)

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

type parcel struct{ Book string }

// bench is an engine, and a worker whose queue is a broker's.
type bench struct {
	t      *testing.T
	engine *stet.Engine
	worker *stetwork.Worker

	mu      sync.Mutex
	shipped map[string]int
}

func newBench(t *testing.T, publish stetmsg.Publish, to string) *bench {
	t.Helper()
	b := &bench{t: t, shipped: map[string]int{}}
	var err error
	b.engine, err = stet.New(memory.New(memory.Options{}), stet.Options{SweepEvery: -1})
	must(t, err)
	t.Cleanup(func() { _ = b.engine.Close() })
	queue, err := broker.NewQueue(publish, func(stet.Item) string { return to })
	must(t, err)
	b.worker, err = stetwork.New(b.engine, stetwork.Options{Queue: queue, ErrorLog: quiet(),
		Dispatch: stetwork.DispatcherOptions{Poll: 50 * time.Millisecond, Again: 5 * time.Second},
		Backoff:  func(int) time.Duration { return 10 * time.Millisecond }})
	must(t, err)
	// The first attempt comes to nothing, so that each operation travels twice.
	must(t, stetwork.Handle(b.worker, "ship", func(ctx context.Context, p parcel) (string, error) {
		if stet.FromContext(ctx).Attempt() == 1 {
			return "", stet.Retryable(errors.New("busy"))
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		b.shipped[p.Book]++
		return "shipped", nil
	}))
	return b
}

// runs runs something until the test ends.
func (b *bench) runs(run func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	b.t.Cleanup(func() {
		cancel()
		must(b.t, <-done)
	})
}

// everyOperationEndsOnce accepts operations and waits until each has run once.
func (b *bench) everyOperationEndsOnce() {
	b.t.Helper()
	b.runs(b.worker.Run)
	var ids []store.ID
	for i := range operations {
		work, err := stetwork.NewWork("ship", parcel{strconv.Itoa(i)})
		must(b.t, err)
		st, err := b.engine.Accept(b.t.Context(), stet.Op{Scope: "shop", Key: strconv.Itoa(i)}, work)
		must(b.t, err)
		ids = append(ids, st.Record.ID)
	}
	for _, id := range ids {
		ctx, cancel := context.WithTimeout(b.t.Context(), patience)
		st, err := b.engine.Await(ctx, "shop", id)
		cancel()
		if err != nil || st.Record.State != store.Completed || st.Record.Attempt != 2 {
			b.t.Fatalf("%v, attempt %d, %v", st.Record.State, st.Record.Attempt, err)
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for book, n := range b.shipped {
		if n != 1 {
			b.t.Errorf("%s was shipped %d times", book, n)
		}
	}
}

func TestRabbitMQCarriesOperations(t *testing.T) {
	url := rig.RabbitMQ(t).URL()
	conn, err := amqp091.Dial(url)
	must(t, err)
	defer conn.Close()
	ch, err := conn.Channel()
	must(t, err)
	_, err = ch.QueueDeclare(t.Name(), true, false, false, false, amqp091.Table{"x-queue-type": "quorum"})
	must(t, err)
	publisher, err := amqp.NewPublisher(amqp.PublisherOptions{URL: url})
	must(t, err)
	t.Cleanup(func() { _ = publisher.Close() })
	b := newBench(t, publisher.Publish, t.Name())
	consumer, err := broker.NewConsumer(b.worker, amqp.Envelope, broker.ConsumerOptions{})
	must(t, err)
	receiver, err := amqp.New(consumer, amqp.Options{URL: url, Queue: t.Name()})
	must(t, err)
	b.runs(receiver.Run)
	b.everyOperationEndsOnce()
}

func TestJetStreamCarriesOperations(t *testing.T) {
	nc, err := nats.Connect(rig.NATS(t).URL(), nats.MaxReconnects(-1))
	must(t, err)
	t.Cleanup(nc.Close)
	stream, err := js.New(nc)
	must(t, err)
	for _, name := range []string{t.Name(), t.Name() + "-dead"} {
		_, err := stream.CreateStream(t.Context(), js.StreamConfig{Name: name, Subjects: []string{name}, Duplicates: time.Hour})
		must(t, err)
	}
	pull, err := stream.CreateConsumer(t.Context(), t.Name(), js.ConsumerConfig{Durable: "workers", AckPolicy: js.AckExplicitPolicy})
	must(t, err)
	b := newBench(t, jetstream.Publisher(stream), t.Name())
	consumer, err := broker.NewConsumer(b.worker, jetstream.Envelope, broker.ConsumerOptions{})
	must(t, err)
	receiver, err := jetstream.New(t.Context(), consumer, jetstream.Options{JetStream: stream, Consumer: pull, DeadLetterSubject: t.Name() + "-dead"})
	must(t, err)
	b.runs(receiver.Run)
	b.everyOperationEndsOnce()
}

func TestKafkaCarriesOperations(t *testing.T) {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(4, "work"), kfake.SeedTopics(1, "dead"))
	must(t, err)
	t.Cleanup(cluster.Close)
	client, err := kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...))
	must(t, err)
	t.Cleanup(client.Close)
	b := newBench(t, kafka.Publisher(client), "work")
	consumer, err := broker.NewConsumer(b.worker, kafka.Envelope, broker.ConsumerOptions{})
	must(t, err)
	receiver, err := kafka.New(consumer, kafka.Options{Client: []kgo.Opt{kgo.SeedBrokers(cluster.ListenAddrs()...)}, Group: "workers",
		Topics: []string{"work"}, DeadLetterTopic: "dead"})
	must(t, err)
	b.runs(receiver.Run)
	b.everyOperationEndsOnce()
}

func TestOperationWithoutAHandlerDelaysNoPartition(t *testing.T) {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "work"), kfake.SeedTopics(1, "dead"))
	must(t, err)
	t.Cleanup(cluster.Close)
	client, err := kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...))
	must(t, err)
	t.Cleanup(client.Close)
	b := newBench(t, kafka.Publisher(client), "work")
	decided := make(chan stetmsg.Decision, 100)
	consumer, err := broker.NewConsumer(b.worker, kafka.Envelope, broker.ConsumerOptions{
		Observe: func(_ context.Context, d stetmsg.Decision) { decided <- d }})
	must(t, err)
	receiver, err := kafka.New(consumer, kafka.Options{Client: []kgo.Opt{kgo.SeedBrokers(cluster.ListenAddrs()...)}, Group: "workers",
		Topics: []string{"work"}, DeadLetterTopic: "dead"})
	must(t, err)
	b.runs(receiver.Run)
	work, err := stetwork.NewWork("of-the-next-release", parcel{"0"})
	must(t, err)
	st, err := b.engine.Accept(t.Context(), stet.Op{Scope: "shop", Key: "of-the-next-release"}, work)
	must(t, err)
	b.everyOperationEndsOnce() // of the same partition
	if d := <-decided; d.ID != st.Record.ID || d.Reason != stetmsg.NoHandler {
		t.Errorf("the first of the partition: %v, %v", d.ID, d.Reason)
	}
	if now, err := b.engine.Lookup(t.Context(), st.Record.ID); err != nil || now.Record.State != store.Accepted || now.Record.Attempt != 0 {
		t.Errorf("%v, attempt %d, %v; want it accepted still", now.Record.State, now.Record.Attempt, err)
	}
}

func TestOperationsRunAfterABrokerOutage(t *testing.T) {
	var b *bench
	down := 5
	b = newBench(t, func(_ context.Context, messages []stet.Message) error {
		if down--; down > 0 {
			return errors.New("the broker is down")
		}
		consumer, err := broker.NewConsumer(b.worker, amqp.Envelope, broker.ConsumerOptions{})
		for _, m := range messages {
			b.runs(func(context.Context) error {
				consumer.Decide(context.Background(), amqp091.Delivery{Body: m.Body}, 1)
				return nil
			})
		}
		return err
	}, "work")
	b.everyOperationEndsOnce()
}

func TestOnlyMessagesThatNameNoOperationAreDeadLettered(t *testing.T) {
	b := newBench(t, func(context.Context, []stet.Message) error { return nil }, "work")
	consumer, err := broker.NewConsumer(b.worker, amqp.Envelope, broker.ConsumerOptions{})
	must(t, err)
	decide := func(body string) stetmsg.Decision {
		return consumer.Decide(t.Context(), amqp091.Delivery{Body: []byte(body)}, 1)
	}
	for _, body := range []string{"", "five books", `{}`, `{"id":"zz","name":"ship"}`, `{"id":"` + store.ID{}.String() + `"}`} {
		if d := decide(body); d.Action != stetmsg.DeadLetter || d.Reason != stetmsg.Invalid {
			t.Errorf("%q: %v, %v", body, d.Action, d.Reason)
		}
	}
	ship, bill := `{"id":"`+store.ID{1}.String()+`","name":"ship"}`, `{"id":"`+store.ID{1}.String()+`","name":"bill"}`
	if d := decide(ship); d.Action != stetmsg.Ack || d.ID != (store.ID{1}) {
		t.Errorf("there is no such operation: %v, %v", d.Action, d.Reason)
	}
	elsewhere := `{"id":"` + store.ID{1}.String() + `","name":"ship","class":"of-another"}`
	for name, body := range map[string]string{"no handler": bill, "no class": elsewhere} {
		if d := decide(body); d.Action != stetmsg.Ack || d.Reason != stetmsg.NoHandler || stet.KindOf(d.Err) != stet.KindInvalid {
			t.Errorf("%s: %v, %v, %v; want it acknowledged: the record is the queue", name, d.Action, d.Reason, d.Err)
		}
	}
	must(t, b.worker.Shutdown(t.Context()))
	if d := decide(ship); d.Action != stetmsg.Retry || d.Reason != stetmsg.Stopped || d.After <= 0 {
		t.Errorf("while it ends: %v, %v, after %v", d.Action, d.Reason, d.After)
	}
}

func TestWrongOptionsAreErrors(t *testing.T) {
	_, noPublish := broker.NewQueue(nil, func(stet.Item) string { return "" })
	_, noWorker := broker.NewConsumer(nil, amqp.Envelope, broker.ConsumerOptions{})
	for name, err := range map[string]error{"no publish": noPublish, "no worker": noWorker} {
		if stet.KindOf(err) != stet.KindInvalid {
			t.Errorf("%s: %v", name, err)
		}
	}
}
