package sqs_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"go.uber.org/goleak"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/stetmsg"
	"github.com/stet-go/stet/stetmsg/sqs"
	"github.com/stet-go/stet/store/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(rig.Main(m)) }

var quiet = slog.New(slog.DiscardHandler)

const patience = 60 * time.Second // for a loaded machine

// fixture is a stand-in for SQS and an engine.
type fixture struct {
	*fake
	t      *testing.T
	client *awssqs.Client
	engine *stet.Engine

	mu  sync.Mutex
	ran []string
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	engine := stettest.Engine(t, memory.New(memory.Options{}), stet.Options{SweepEvery: -1})
	server, client := newFake(t)
	return &fixture{fake: server, t: t, client: client, engine: engine}
}

func text(s string) types.MessageAttributeValue {
	return types.MessageAttributeValue{DataType: aws.String("String"), StringValue: &s}
}

func (f *fixture) send(queue, group string, ids ...string) {
	f.t.Helper()
	for _, id := range ids {
		in := &awssqs.SendMessageInput{QueueUrl: &queue, MessageBody: aws.String("five books"), MessageAttributes: map[string]types.MessageAttributeValue{}}
		if id != "" {
			in.MessageAttributes["id"] = text(id)
		}
		if group != "" {
			in.MessageGroupId = &group
		}
		if _, err := f.client.SendMessage(f.t.Context(), in); err != nil {
			f.t.Fatal(err)
		}
	}
}

func (f *fixture) consumer(h func(ctx context.Context, key string) error) *stetmsg.Consumer[types.Message] {
	f.t.Helper()
	c, err := stetmsg.New(f.engine, stetmsg.Options[types.Message]{
		Operation: stetmsg.By(sqs.Envelope, stetmsg.Header("orders", "id")), ErrorLog: quiet,
		Backoff: func(int) time.Duration { return 900 * time.Millisecond },
	}, func(ctx context.Context, _ types.Message) ([]byte, error) {
		key := stet.FromContext(ctx).Op().Key
		if err := h(ctx, key); err != nil {
			return nil, err
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		f.ran = append(f.ran, key)
		return nil, nil
	})
	if err != nil {
		f.t.Fatal(err)
	}
	return c
}

// run receives from a queue until it is empty.
func (f *fixture) run(queue, dead string, visibility time.Duration, h func(context.Context, string) error) {
	f.t.Helper()
	f.receive(f.consumer(h), sqs.Options{QueueURL: queue, DeadLetterQueueURL: dead, Visibility: visibility})
}

// receive hands the messages of a queue to c until it is empty.
func (f *fixture) receive(c *stetmsg.Consumer[types.Message], o sqs.Options) {
	f.t.Helper()
	o.Client = f.client
	queue := o.QueueURL
	r, err := sqs.New(c, o)
	if err != nil {
		f.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(f.t.Context(), patience)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	tick := time.NewTicker(10 * time.Millisecond) // the stand-in is polled
	defer tick.Stop()
	for len(f.queue(queue)) > 0 && ctx.Err() == nil {
		<-tick.C
	}
	if ctx.Err() != nil {
		f.t.Errorf("%d messages are left", len(f.queue(queue)))
	}
	cancel()
	if err := <-done; err != nil {
		f.t.Error(err)
	}
}

func ok(context.Context, string) error { return nil }

func TestMessageDeliveredFiveTimesIsHandledOnce(t *testing.T) {
	f := newFixture(t)
	f.send("q", "", "1", "1", "2", "1", "1", "1")
	f.run("q", "dead", 0, ok)
	slices.Sort(f.ran)
	if !slices.Equal(f.ran, []string{"1", "2"}) || len(f.queue("dead")) != 0 {
		t.Fatal(f.ran, f.queue("dead"))
	}
}

func TestRetryWaitsAndFailuresAreDeadLettered(t *testing.T) {
	f := newFixture(t)
	var at []time.Time
	f.send("q", "", "later", "bad", "")
	f.run("q", "dead", 0, func(_ context.Context, key string) error {
		if key == "bad" {
			return errors.New("no such book")
		}
		if at = append(at, time.Now()); len(at) == 1 {
			return stet.Retryable(errors.New("busy"))
		}
		return nil
	})
	if len(at) != 2 || at[1].Sub(at[0]) < 900*time.Millisecond {
		t.Errorf("runs at %v", at)
	}
	var reasons []string
	for _, m := range f.queue("dead") {
		reasons = append(reasons, fmt.Sprintf("%v, %v, %s", m.Attributes[sqs.ReasonAttribute].(map[string]any)["StringValue"], m.Attributes[sqs.ErrorAttribute] != nil, m.Body))
	}
	slices.Sort(reasons)
	if want := []string{"failed, true, five books", "invalid, true, five books"}; !slices.Equal(reasons, want) {
		t.Error(reasons)
	}
}

func TestGroupKeepsItsOrderDuringARetry(t *testing.T) {
	f := newFixture(t)
	closed := true
	f.send("q.fifo", "g", "a", "b", "c")
	f.send("q.fifo", "h", "x")
	f.run("q.fifo", "dead.fifo", 0, func(_ context.Context, key string) error {
		if key == "b" && closed {
			closed = false
			return stet.Retryable(errors.New("busy"))
		}
		return nil
	})
	got := slices.DeleteFunc(slices.Clone(f.ran), func(key string) bool { return key == "x" })
	if !slices.Equal(got, []string{"a", "b", "c"}) || f.ran[len(f.ran)-1] == "x" {
		t.Fatal(f.ran)
	}
}

func TestLongHandlerExtendsItsMessage(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.send("q", "", "1")
	f.run("q", "dead", 9*time.Second, func(context.Context, string) error {
		if m := f.queue("q")[0]; m.count != 1 {
			t.Errorf("passed %d times", m.count)
		}
		time.Sleep(11 * time.Second) // past the visibility timeout
		if m := f.queue("q")[0]; m.count != 1 {
			t.Errorf("passed %d times while it was in flight", m.count)
		}
		return nil
	})
	if f.extended < 2 {
		t.Errorf("extended %d times", f.extended)
	}
}

func TestWrongOptionsAreErrors(t *testing.T) {
	f := newFixture(t)
	c := f.consumer(ok)
	for i, o := range []sqs.Options{{}, {Client: f.client, QueueURL: "q"}, {Client: f.client, QueueURL: "q", DeadLetterQueueURL: "q"}, {Client: f.client, QueueURL: "q.fifo", DeadLetterQueueURL: "d"},
		{Client: f.client, QueueURL: "q", DeadLetterQueueURL: "d", Visibility: time.Second}, {Client: f.client, QueueURL: "q", DeadLetterQueueURL: "d", Prefetch: -1}} {
		if _, err := sqs.New(c, o); stet.KindOf(err) != stet.KindInvalid {
			t.Errorf("%d: %v", i, err)
		}
	}
	if _, err := sqs.New(nil, sqs.Options{Client: f.client, QueueURL: "q", DeadLetterQueueURL: "d"}); stet.KindOf(err) != stet.KindInvalid {
		t.Error(err)
	}
}

func Example() {
	var (
		client   *awssqs.Client // sqs.NewFromConfig makes one
		consumer *stetmsg.Consumer[types.Message]
		ctx      = context.Background()
	)
	receive := func() error {
		r, err := sqs.New(consumer, sqs.Options{Client: client, QueueURL: "https://sqs.eu-central-1.amazonaws.com/1/orders",
			DeadLetterQueueURL: "https://sqs.eu-central-1.amazonaws.com/1/orders-dead"})
		if err != nil {
			return err
		}
		return r.Run(ctx)
	}
	_ = receive
}
