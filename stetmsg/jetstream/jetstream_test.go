package jetstream_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	js "github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/stetmsg"
	"github.com/stet-go/stet/stetmsg/jetstream"
	"github.com/stet-go/stet/store/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(rig.Main(m)) }

var quiet = slog.New(slog.DiscardHandler)

const patience = 60 * time.Second // for a loaded machine

// fixture is a stream of work, one of dead letters, and an engine.
type fixture struct {
	t        *testing.T
	js       js.JetStream
	consumer js.Consumer
	engine   *stet.Engine
	stopping func() // called after the context has ended; may be nil

	mu      sync.Mutex
	decided map[string][]stetmsg.Reason
	changed chan struct{}
}

func newFixture(t *testing.T, url string, config js.ConsumerConfig) *fixture {
	t.Helper()
	engine := stettest.Engine(t, memory.New(memory.Options{}), stet.Options{SweepEvery: -1})
	nc, err := nats.Connect(url, nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	f := &fixture{t: t, engine: engine, decided: map[string][]stetmsg.Reason{}, changed: make(chan struct{}, 1)}
	if f.js, err = js.New(nc); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{t.Name(), t.Name() + "-dead"} {
		retention := js.WorkQueuePolicy
		if name != t.Name() {
			retention = js.LimitsPolicy
		}
		stream := js.StreamConfig{Name: name, Subjects: []string{name}, Retention: retention, Replicas: config.Replicas}
		_, err := f.js.CreateStream(t.Context(), stream)
		for end := time.Now().Add(patience); err != nil && config.Replicas > 1 && time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
			_, err = f.js.CreateStream(t.Context(), stream) // a new cluster has no leader yet
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	config.Durable, config.AckPolicy = "workers", js.AckExplicitPolicy
	if f.consumer, err = f.js.CreateConsumer(t.Context(), t.Name(), config); err != nil {
		t.Fatal(err)
	}
	return f
}

func (f *fixture) publish(id string) {
	f.t.Helper()
	m := nats.NewMsg(f.t.Name())
	m.Data = []byte("five books")
	if id != "" {
		m.Header.Set("Order-Id", id)
	}
	var err error
	for range 100 { // the server may be on its way up
		if _, err = f.js.PublishMsg(context.Background(), m); err == nil {
			return
		}
	}
	f.t.Fatal(err)
}

type handler = func(context.Context, js.Msg) ([]byte, error)

func (f *fixture) wrap(h handler) *stetmsg.Consumer[js.Msg] {
	f.t.Helper()
	c, err := stetmsg.New(f.engine, stetmsg.Options[js.Msg]{
		Operation: stetmsg.By(jetstream.Envelope, stetmsg.Header("orders", "Order-Id")), MaxAttempts: 3, Concurrency: 4,
		ErrorLog: quiet, Backoff: func(int) time.Duration { return 500 * time.Millisecond },
		Observe: func(_ context.Context, d stetmsg.Decision) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.decided[d.ID.String()] = append(f.decided[d.ID.String()], d.Reason)
			select {
			case f.changed <- struct{}{}:
			default:
			}
		},
	}, h)
	if err != nil {
		f.t.Fatal(err)
	}
	return c
}

func (f *fixture) options() jetstream.Options {
	return jetstream.Options{JetStream: f.js, Consumer: f.consumer, DeadLetterSubject: f.t.Name() + "-dead", Prefetch: 8}
}

// run receives until stop is called.
func (f *fixture) run(h handler) (stop func()) {
	f.t.Helper()
	return f.receive(f.wrap(h), f.options())
}

// receive passes messages to c until stop is called.
func (f *fixture) receive(c *stetmsg.Consumer[js.Msg], o jetstream.Options) (stop func()) {
	f.t.Helper()
	r, err := jetstream.New(f.t.Context(), c, o)
	if err != nil {
		f.t.Fatal(err)
	}
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

func (f *fixture) reasons(id string) []stetmsg.Reason {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.decided[f.engine.ID("orders", id).String()]
}

func (f *fixture) until(done func() bool) {
	f.t.Helper()
	timeout := time.After(patience)
	tick := time.NewTicker(20 * time.Millisecond) // the server is polled
	defer tick.Stop()
	for !done() {
		select {
		case <-f.changed:
		case <-tick.C:
		case <-timeout:
			f.t.Fatalf("timed out; decided: %v", f.decided)
		}
	}
}

// left returns the number of messages of a stream. A work queue has unacknowledged ones only.
func (f *fixture) left(stream string) uint64 {
	s, err := f.js.Stream(context.Background(), stream)
	if err != nil {
		return 1 << 32 // the server is not there yet
	}
	return s.CachedInfo().State.Msgs
}

func TestMessageDeliveredFiveTimesIsHandledOnce(t *testing.T) {
	f := newFixture(t, rig.NATS(t).URL(), js.ConsumerConfig{})
	runs := make(chan struct{}, 10)
	stop := f.run(func(context.Context, js.Msg) ([]byte, error) {
		runs <- struct{}{}
		return nil, nil
	})
	defer stop()
	for range 5 {
		f.publish("1")
	}
	f.publish("2")
	f.until(func() bool { return f.left(t.Name()) == 0 })
	stop()
	if len(runs) != 2 {
		t.Fatalf("%d runs", len(runs))
	}
}

func TestRetriedMessageBecomesADeadLetter(t *testing.T) {
	f := newFixture(t, rig.NATS(t).URL(), js.ConsumerConfig{})
	var at []time.Time
	stop := f.run(func(context.Context, js.Msg) ([]byte, error) {
		at = append(at, time.Now())
		return nil, stet.Retryable(errors.New("closed"))
	})
	defer stop()
	f.publish("1")
	f.until(func() bool { return f.left(t.Name()) == 0 })
	f.publish("")
	f.until(func() bool { return f.left(t.Name()) == 0 })
	stop()
	if len(at) != 3 || at[2].Sub(at[0]) < time.Second {
		t.Fatalf("runs at %v", at)
	}
	dead, err := f.js.Stream(t.Context(), t.Name()+"-dead")
	if err != nil {
		t.Fatal(err)
	}
	for seq, reason := range []stetmsg.Reason{stetmsg.Exhausted, stetmsg.Invalid} {
		m, err := dead.GetMsg(t.Context(), uint64(seq)+1)
		if err != nil {
			t.Fatal(err)
		}
		if m.Header.Get(jetstream.ReasonHeader) != string(reason) || m.Header.Get(jetstream.ErrorHeader) == "" || string(m.Data) != "five books" {
			t.Errorf("dead letter %d: %v, %q", seq, m.Header, m.Data)
		}
	}
}

func TestLongHandlerExtendsItsMessage(t *testing.T) {
	t.Parallel()
	f := newFixture(t, rig.NATS(t).URL(), js.ConsumerConfig{AckWait: 8 * time.Second})
	deliveries := make(chan uint64, 10)
	stop := f.run(func(_ context.Context, m js.Msg) ([]byte, error) {
		meta, err := m.Metadata()
		if err != nil {
			return nil, err
		}
		deliveries <- meta.NumDelivered
		time.Sleep(18 * time.Second) // well past AckWait
		return nil, nil
	})
	defer stop()
	f.publish("1")
	f.until(func() bool { return f.left(t.Name()) == 0 })
	stop()
	if rs := f.reasons("1"); len(rs) != 1 || len(deliveries) != 1 || <-deliveries != 1 {
		t.Fatalf("it was delivered again: %v", rs)
	}
}

func TestReceiverContinuesAfterAKillOfTheServer(t *testing.T) {
	server := rig.NewNATS(t)
	f := newFixture(t, server.URL(), js.ConsumerConfig{AckWait: 2 * time.Second})
	held, release := make(chan struct{}), make(chan struct{})
	runs := make(chan string, 10)
	stop := f.run(func(_ context.Context, m js.Msg) ([]byte, error) {
		runs <- m.Headers().Get("Order-Id")
		if m.Headers().Get("Order-Id") == "held" {
			close(held)
			<-release
		}
		return nil, nil
	})
	defer stop()
	f.publish("held")
	<-held
	if err := errors.Join(server.Kill(), server.Start(t.Context())); err != nil {
		t.Fatal(err)
	}
	f.publish("after")
	f.until(func() bool { return len(f.reasons("after")) == 1 })
	close(release)
	f.until(func() bool { return f.left(t.Name()) == 0 })
	stop()
	if len(runs) != 2 {
		t.Fatalf("%d runs", len(runs))
	}
}

func TestShutdownReleasesWaitingMessages(t *testing.T) {
	f := newFixture(t, rig.NATS(t).URL(), js.ConsumerConfig{AckWait: time.Hour})
	begun, release := make(chan struct{}, 20), make(chan struct{})
	for i := range 10 {
		f.publish(fmt.Sprint(i))
	}
	stop := f.run(func(context.Context, js.Msg) ([]byte, error) {
		begun <- struct{}{}
		<-release
		return nil, nil
	})
	for range 4 { // the consumer's Concurrency
		<-begun
	}
	f.stopping = func() { close(release) }
	stop()
	f.stopping = nil
	n := len(begun)
	// AckWait is long: only released messages are delivered again.
	stop = f.run(func(context.Context, js.Msg) ([]byte, error) {
		begun <- struct{}{}
		return nil, nil
	})
	defer stop()
	f.until(func() bool { return f.left(t.Name()) == 0 })
	stop()
	if n > 0 || len(begun) != 6 {
		t.Fatalf("%d begun after the end, %d runs then", n, len(begun))
	}
}

func TestWrongOptionsAreErrors(t *testing.T) {
	f := newFixture(t, rig.NATS(t).URL(), js.ConsumerConfig{MaxDeliver: 3})
	c := f.wrap(func(context.Context, js.Msg) ([]byte, error) { return nil, nil })
	bad := []jetstream.Options{{}, f.options(), f.options(), f.options(), f.options(), f.options()} // the second for its MaxDeliver
	bad[2].DeadLetterSubject = ""
	bad[3].Prefetch = -1
	bad[4].Prefetch = 1
	bad[5].DeadLetterSubject = "dead.*"
	for i, o := range bad {
		if _, err := jetstream.New(t.Context(), c, o); stet.KindOf(err) != stet.KindInvalid {
			t.Errorf("%d: %v", i, err)
		}
	}
	if _, err := jetstream.New(t.Context(), nil, f.options()); stet.KindOf(err) != stet.KindInvalid {
		t.Error(err)
	}
}
