package stetwatermill_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/contrib/stetwatermill"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/stetmsg"
	"github.com/stet-go/stet/store/memory"
)

// alone is a middleware outside of a router, by the UUID, whose dead letters are dropped.
func alone(t testing.TB, e *stet.Engine, change func(*stetwatermill.Options)) message.HandlerMiddleware {
	t.Helper()
	o := stetwatermill.Options{
		Options: stetmsg.Options[*message.Message]{Operation: func(m *message.Message) (stet.Op, error) {
			op, err := stetwatermill.UUID(m)
			op.Scope = "test"
			return op, err
		}, ErrorLog: quiet},
		DeadLetter: func(context.Context, *message.Message, stetmsg.Decision) error { return nil },
	}
	change(&o)
	m, err := stetwatermill.Middleware(e, o)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestRetriedMessageIsHeldForABoundedTime(t *testing.T) {
	for name, c := range map[string]struct {
		backoff, most, want time.Duration
		closes              bool
	}{
		"backoff":             {backoff: 2 * time.Second, want: 2 * time.Second},
		"default bound":       {backoff: time.Hour, want: stetwatermill.DefaultMaxPause},
		"bound":               {backoff: time.Hour, most: time.Minute, want: time.Minute},
		"none":                {backoff: time.Hour, most: -1},
		"the router closes":   {backoff: time.Hour, most: time.Minute, want: time.Second, closes: true},
		"as long as it takes": {backoff: time.Second, most: time.Minute, want: time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			engine := stettest.Engine(t, memory.New(memory.Options{}), stet.Options{SweepEvery: -1})
			g := alone(t, engine, func(o *stetwatermill.Options) {
				o.Backoff, o.MaxPause = func(int) time.Duration { return c.backoff }, c.most
			})
			m := order("1")
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			m.SetContext(ctx)
			if c.closes {
				time.AfterFunc(time.Second, cancel)
			}
			begin := time.Now()
			_, err := g(func(*message.Message) ([]*message.Message, error) { return nil, stet.Retryable(errors.New("busy")) })(m)
			if took := time.Since(begin); err == nil || took < c.want || took > c.want+100*time.Millisecond {
				t.Errorf("%s: held for %v, want %v; %v", name, took, c.want, err)
			}
			_ = engine.Close()
		})
	}
}

func TestMessageWithDiscardedOutcomeIsAcknowledgedAndReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := stettest.Engine(t, memory.New(memory.Options{}), stet.Options{SweepEvery: time.Hour})
		var log stettest.Log
		runs := 0
		h := alone(t, engine, func(o *stetwatermill.Options) { o.ErrorLog = slog.New(slog.NewTextHandler(&log, nil)) })(func(m *message.Message) ([]*message.Message, error) {
			runs++
			return message.Messages{m.Copy()}, nil
		})
		for i, want := range []int{1, 1, 0} { // messages to publish
			if ms, err := h(order("1")); err != nil || len(ms) != want || runs != 1 {
				t.Errorf("%d: %v, %v; %d runs", i, ms, err, runs)
			}
			if i == 1 {
				time.Sleep(3 * 24 * time.Hour)
			}
		}
		if !strings.Contains(log.String(), "no longer kept") {
			t.Errorf("log: %s", log.String())
		}
		_ = engine.Close()
	})
}

// An operation that another adapter or an operator settled has no messages.
func TestMessageThatWasExecutedElsewhereIsAcknowledged(t *testing.T) {
	engine := stettest.Engine(t, memory.New(memory.Options{}), stet.Options{})
	var log stettest.Log
	h := alone(t, engine, func(o *stetwatermill.Options) { o.ErrorLog = slog.New(slog.NewTextHandler(&log, nil)) })(func(*message.Message) ([]*message.Message, error) {
		t.Error("run")
		return nil, nil
	})
	m := order("1")
	if _, err := stet.Do(t.Context(), engine, stet.Op{Scope: "test", Key: "1", Fingerprint: stet.NewFingerprint(m.Payload)}, func(context.Context) (string, error) { return "by Do", nil }); err != nil {
		t.Fatal(err)
	}
	if ms, err := h(m); err != nil || len(ms) != 0 || !strings.Contains(log.String(), "executed elsewhere") {
		t.Errorf("%v, %v; log: %s", ms, err, log.String())
	}
}

func TestPoisonQueueIsAnotherTopic(t *testing.T) {
	f := newFixture(t)
	o := f.options()
	o.DeadLetter, o.MaxPause = stetwatermill.PoisonQueue(f.pubsub, "orders"), -1
	refused := make(chan error, 1)
	f.router.AddConsumerHandler("billing", "orders", f.pubsub, func(*message.Message) error { return errors.New("no") }).AddMiddleware(func(h message.HandlerFunc) message.HandlerFunc {
		return func(m *message.Message) ([]*message.Message, error) {
			_, err := h(m)
			refused <- err
			return nil, nil
		}
	}, f.middleware(o))
	f.start()
	f.publish("orders", order("1"))
	if err := <-refused; err == nil || !strings.Contains(err.Error(), "again and again") {
		t.Error(err)
	}
}

// Two middlewares around one handler, on the router and on the handler.
func TestMiddlewareWithinItselfIsRefusedAndSettlesNothing(t *testing.T) {
	engine := stettest.Engine(t, memory.New(memory.Options{}), stet.Options{})
	g := alone(t, engine, func(o *stetwatermill.Options) { o.MaxPause = -1 })
	runs := 0
	h := func(*message.Message) ([]*message.Message, error) { runs++; return nil, nil }
	if _, err := g(g(h))(order("1")); err == nil || runs != 0 || !strings.Contains(err.Error(), "not on both") {
		t.Errorf("%v; %d runs", err, runs)
	}
	if _, err := g(h)(order("1")); err != nil || runs != 1 {
		t.Errorf("%v; %d runs", err, runs)
	}
}

func TestMessageAcknowledgedByItsHandlerButNotHandledIsReported(t *testing.T) {
	f := newFixture(t)
	o := f.options()
	o.Operation = func(*message.Message) (stet.Op, error) { return stet.Op{Scope: "s", Key: "k"}, nil }
	_, err := f.middleware(o)(func(m *message.Message) ([]*message.Message, error) {
		m.Ack()
		return nil, stet.Retryable(errors.New("busy"))
	})(order("1"))
	if err == nil || !strings.Contains(f.log.String(), "but is lost") || strings.Contains(f.log.String(), "before it was handled") {
		t.Errorf("%v; log: %s", err, f.log.String())
	}
}

// TestMessageWithACancelledContextIsHandled: the channel passes the publisher's context on,
// which has ended, and would do so again and again.
func TestMessageWithACancelledContextIsHandled(t *testing.T) {
	f := newFixture(t)
	preserving := gochannel.NewGoChannel(gochannel.Config{Persistent: true, PreserveContext: true}, watermill.NopLogger{})
	t.Cleanup(func() { _ = preserving.Close() })
	came := make(chan struct{}, 100)
	f.router.AddMiddleware(func(h message.HandlerFunc) message.HandlerFunc {
		return func(m *message.Message) ([]*message.Message, error) {
			select {
			case came <- struct{}{}:
			default:
			}
			return h(m)
		}
	}, f.middleware(f.options()))
	handled := make(chan struct{}, 100)
	f.router.AddConsumerHandler("billing", "orders", preserving, func(m *message.Message) error {
		handled <- struct{}{}
		return m.Context().Err()
	})
	f.start()
	ctx, leave := context.WithCancel(t.Context())
	m := order("1")
	m.SetContext(ctx)
	leave()
	if err := preserving.Publish("orders", m); err != nil {
		t.Fatal(err)
	}
	<-came
	select {
	case <-handled:
	case <-came:
		t.Error("it came again, and was not handled")
	}
}

// TestProducedMessageThatHasTheRunsContextCanBePublished: the run has ended by then, and with
// it its context, and publishers that look at it would publish nothing.
func TestProducedMessageThatHasTheRunsContextCanBePublished(t *testing.T) {
	type key struct{}
	m := order("1")
	m.SetContext(context.WithValue(t.Context(), key{}, "trace"))
	e := stettest.Engine(t, memory.New(memory.Options{}), stet.Options{})
	got, err := alone(t, e, func(*stetwatermill.Options) {})(func(m *message.Message) ([]*message.Message, error) {
		return []*message.Message{message.NewMessageWithContext(m.Context(), "2", nil)}, nil
	})(m)
	if err != nil || len(got) != 1 || got[0].Context().Err() != nil || got[0].Context().Value(key{}) != "trace" {
		t.Errorf("%v, %v", got, err)
	}
}
