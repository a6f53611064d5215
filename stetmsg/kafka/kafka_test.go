package kafka_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/stetmsg"
	"github.com/stet-go/stet/stetmsg/kafka"
	"github.com/stet-go/stet/store/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(rig.Main(m)) }

var quiet = slog.New(slog.DiscardHandler)

const patience = 60 * time.Second // for a loaded machine

// fixture is Kafka, or a stand-in, with a topic of two partitions, and an engine.
type fixture struct {
	t       *testing.T
	cluster *kfake.Cluster // nil with Kafka
	client  *kgo.Client
	engine  *stet.Engine
	options kafka.Options

	mu      sync.Mutex
	ran     []string // keys, in their order
	reasons []stetmsg.Reason
	changed chan struct{}
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(2, "orders"), kfake.SeedTopics(1, "dead"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	f := newFixtureOn(t, cluster.ListenAddrs(), "")
	f.cluster = cluster
	return f
}

// newFixtureOn makes a fixture over brokers. Prefix is that of its topics and of its group.
func newFixtureOn(t *testing.T, addrs []string, prefix string) *fixture {
	t.Helper()
	seeds := kgo.SeedBrokers(addrs...)
	client, err := kgo.NewClient(seeds, kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	engine := stettest.Engine(t, memory.New(memory.Options{}), stet.Options{SweepEvery: -1})
	return &fixture{t: t, client: client, engine: engine, changed: make(chan struct{}, 1),
		options: kafka.Options{Client: []kgo.Opt{seeds}, Group: prefix + "workers", Topics: []string{prefix + "orders"}, DeadLetterTopic: prefix + "dead"}}
}

func (f *fixture) publish(partition int32, ids ...string) {
	f.t.Helper()
	for _, id := range ids {
		rec := &kgo.Record{Topic: f.options.Topics[0], Partition: partition, Value: []byte("five books"), Headers: []kgo.RecordHeader{{Key: "id", Value: []byte(id)}}}
		if id == "" {
			rec.Headers = nil
		}
		if err := f.client.ProduceSync(f.t.Context(), rec).FirstErr(); err != nil {
			f.t.Fatal(err)
		}
	}
}

// receiver records runs without an error.
func (f *fixture) receiver(h func(context.Context, string) error) *kafka.Receiver {
	f.t.Helper()
	c, err := stetmsg.New(f.engine, stetmsg.Options[*kgo.Record]{
		Operation: stetmsg.By(kafka.Envelope, stetmsg.Header("orders", "id")), ErrorLog: quiet,
		Backoff: func(int) time.Duration { return 200 * time.Millisecond },
		Observe: func(_ context.Context, d stetmsg.Decision) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.reasons = append(f.reasons, d.Reason)
		},
	}, func(ctx context.Context, _ *kgo.Record) ([]byte, error) {
		key := stet.FromContext(ctx).Op().Key
		if err := h(ctx, key); err != nil {
			return nil, err
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		f.ran = append(f.ran, key)
		select {
		case f.changed <- struct{}{}:
		default:
		}
		return nil, nil
	})
	if err != nil {
		f.t.Fatal(err)
	}
	r, err := kafka.New(c, f.options)
	if err != nil {
		f.t.Fatal(err)
	}
	return r
}

func (f *fixture) run(r *kafka.Receiver) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	return sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			f.t.Error(err)
		}
	})
}

func (f *fixture) until(done func(ran []string) bool) {
	f.t.Helper()
	timeout := time.After(patience)
	for {
		f.mu.Lock()
		ran := slices.Clone(f.ran)
		f.mu.Unlock()
		if done(ran) {
			return
		}
		select {
		case <-f.changed:
		case <-timeout:
			f.t.Fatalf("timed out; ran: %v", ran)
		}
	}
}

// committed is the group's offset in a partition.
func (f *fixture) committed(partition int32) int64 {
	return f.cluster.GroupInfo("workers").Commits["orders"][partition].Offset
}

func ok(context.Context, string) error { return nil }

func TestRecordDeliveredFiveTimesIsHandledOnceAndOrderIsKept(t *testing.T) {
	f := newFixture(t)
	closed := true
	stop := f.run(f.receiver(func(_ context.Context, key string) error {
		if key == "b" && closed { // it must wait, and the records behind it
			closed = false
			return stet.Retryable(errors.New("closed"))
		}
		return nil
	}))
	defer stop()
	f.publish(0, "a", "b", "a", "c", "b", "d", "last")
	f.until(func(ran []string) bool { return slices.Contains(ran, "last") })
	stop()
	if want := []string{"a", "b", "c", "d", "last"}; !slices.Equal(f.ran, want) {
		t.Fatalf("ran %v", f.ran)
	}
	if at := f.committed(0); at != 7 {
		t.Fatalf("committed up to %d of 7", at)
	}
}

func TestOffsetIsNotCommittedPastAnUnsettledRecord(t *testing.T) {
	f := newFixture(t)
	begun := make(chan struct{}, 100)
	stop := f.run(f.receiver(func(_ context.Context, key string) error {
		if key == "stuck" {
			begun <- struct{}{}
			return stet.Retryable(errors.New("busy"))
		}
		return nil
	}))
	defer stop()
	f.publish(0, "a", "stuck", "b")
	f.publish(1, "other") // partitions do not wait for each other
	f.until(func(ran []string) bool { return slices.Contains(ran, "other") && slices.Contains(ran, "a") })
	<-begun
	for again := false; !again; {
		select {
		case <-begun:
			again = true
		case <-f.changed:
			f.until(func(ran []string) bool {
				if slices.Contains(ran, "b") {
					t.Fatal("the record behind an unsettled one was run")
				}
				return true
			})
		}
	}
	stop()
	if at := f.committed(0); at != 1 {
		t.Fatalf("committed up to %d; the record at 1 is not settled", at)
	}
	stop = f.run(f.receiver(ok))
	defer stop()
	f.until(func(ran []string) bool { return slices.Contains(ran, "b") })
	stop()
	if !slices.Equal(f.ran[len(f.ran)-2:], []string{"stuck", "b"}) || f.committed(0) != 3 {
		t.Fatalf("ran %v, committed up to %d", f.ran, f.committed(0))
	}
}

func TestRebalanceRunsEachRecordOnce(t *testing.T) {
	f := newFixture(t)
	const n = 200
	f.rebalance(n)
	if a, b := f.committed(0), f.committed(1); a != n/2 || b != n/2 {
		t.Fatalf("committed up to %d and %d", a, b)
	}
}

// rebalance has n records handled by a member, by two, and by the second alone.
func (f *fixture) rebalance(n int) {
	f.t.Helper()
	slow := func(context.Context, string) error {
		time.Sleep(5 * time.Millisecond)
		return nil
	}
	stop1 := f.run(f.receiver(slow))
	defer stop1()
	for i := range n {
		f.publish(int32(i%2), fmt.Sprint(i))
	}
	f.until(func(ran []string) bool { return len(ran) > n/10 })
	stop2 := f.run(f.receiver(slow)) // a second member
	defer stop2()
	f.until(func(ran []string) bool { return len(ran) > n/2 })
	stop1() // the first one leaves
	f.until(func(ran []string) bool { return len(ran) >= n })
	stop2()
	f.once(n)
}

// once fails unless n records ran, each once.
func (f *fixture) once(n int) {
	f.t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	slices.Sort(f.ran)
	if len(slices.Compact(slices.Clone(f.ran))) != n || len(f.ran) != n {
		f.t.Fatalf("%d runs of %d records: %v", len(f.ran), n, f.ran)
	}
}

func TestRevokedPartitionWaitsForItsRun(t *testing.T) {
	f := newFixture(t)
	begun, release := make(chan struct{}, 2), make(chan struct{})
	hold := func(_ context.Context, key string) error {
		if key == "held0" || key == "held1" {
			begun <- struct{}{}
			<-release
		}
		return nil
	}
	stop1 := f.run(f.receiver(hold))
	defer stop1()
	f.publish(0, "held0", "a")
	f.publish(1, "held1", "b")
	<-begun
	<-begun
	stop2 := f.run(f.receiver(hold)) // one of the partitions is moved to it
	defer stop2()
	end := time.Now().Add(3 * time.Second) // nothing must happen until then
	for g := f.cluster.GroupInfo("workers"); len(g.Members) < 2 || time.Now().Before(end); g = f.cluster.GroupInfo("workers") {
		time.Sleep(10 * time.Millisecond)
	}
	close(release)
	f.until(func(ran []string) bool { return len(ran) == 4 })
	stop2()
	stop1()
	for _, r := range f.reasons {
		if r != stetmsg.Handled {
			t.Fatalf("a record was given to another member during its run: %v", f.reasons)
		}
	}
}

func TestDeadLetterHasItsReasonAndDoesNotDelayOthers(t *testing.T) {
	f := newFixture(t)
	stop := f.run(f.receiver(func(_ context.Context, key string) error {
		if key == "bad" {
			return errors.New("no such book")
		}
		return nil
	}))
	defer stop()
	f.publish(0, "bad", "", "good")
	f.until(func(ran []string) bool { return len(ran) == 1 })
	stop()
	reader, err := kgo.NewClient(kgo.SeedBrokers(f.cluster.ListenAddrs()...), kgo.ConsumeTopics("dead"))
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	var got []string
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for len(got) < 2 && ctx.Err() == nil {
		reader.PollFetches(ctx).EachRecord(func(rec *kgo.Record) {
			e := kafka.Envelope(rec)
			reason, _ := e.Header(kafka.ReasonHeader)
			origin, _ := e.Header(kafka.OriginHeader)
			got = append(got, reason+" "+origin+" "+string(rec.Value))
		})
	}
	if want := []string{"failed orders/0/0 five books", "invalid orders/0/1 five books"}; !slices.Equal(got, want) {
		t.Fatal(got)
	}
}

func TestWrongOptionsAreErrors(t *testing.T) {
	c, err := stetmsg.New(newFixture(t).engine, stetmsg.Options[*kgo.Record]{Operation: stetmsg.By(kafka.Envelope, stetmsg.Digest("s"))},
		func(context.Context, *kgo.Record) ([]byte, error) { return nil, nil })
	if err != nil {
		t.Fatal(err)
	}
	for i, o := range []kafka.Options{{}, {Group: "g", Topics: []string{"t"}}, {Group: "g", Topics: []string{"t"}, DeadLetterTopic: "t"},
		{Group: "g", Topics: []string{"t"}, DeadLetterTopic: "d", Client: []kgo.Opt{kgo.SeedBrokers()}}} {
		if _, err := kafka.New(c, o); stet.KindOf(err) != stet.KindInvalid {
			t.Errorf("%d: %v", i, err)
		}
	}
	if _, err := kafka.New(nil, kafka.Options{Group: "g", Topics: []string{"t"}, DeadLetterTopic: "d"}); stet.KindOf(err) != stet.KindInvalid {
		t.Error(err)
	}
}
