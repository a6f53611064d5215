package watermill_test

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	wm "github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/bench/watermill"
	"github.com/stet-go/stet/stetmsg"
	"github.com/stet-go/stet/store/memory"
)

const patience = 2 * time.Minute // for what a loaded machine does

// effects runs a router with a middleware over a handler that fails once, sends
// one message copies times, and returns how often the handler had its effect when
// all copies have been acknowledged.
func effects(t *testing.T, around message.HandlerMiddleware, copies int) int64 {
	t.Helper()
	broker := gochannel.NewGoChannel(gochannel.Config{BlockPublishUntilSubscriberAck: true}, wm.NopLogger{})
	defer broker.Close()
	router, err := message.NewRouter(message.RouterConfig{}, wm.NopLogger{})
	if err != nil {
		t.Fatal(err)
	}
	defer router.Close()
	router.AddMiddleware(around)
	var runs, effects atomic.Int64
	router.AddConsumerHandler("orders", "orders", broker, func(*message.Message) error {
		if runs.Add(1) == 1 {
			return errors.New("the warehouse is closed")
		}
		effects.Add(1)
		return nil
	})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	go func() { _ = router.Run(ctx) }() // ends with Close
	select {
	case <-router.Running():
	case <-ctx.Done():
		t.Fatal("the router does not run")
	}
	for range copies {
		if err := broker.Publish("orders", message.NewMessage("order-1001", []byte("five books"))); err != nil { // returns once it was acknowledged
			t.Fatal(err)
		}
	}
	return effects.Load()
}

func TestWatermillsDeduplicatorLosesTheMessageOfAHandlerThatFailsOnceAndStetDoesNot(t *testing.T) {
	if n := effects(t, (&middleware.Deduplicator{}).Middleware, 1); n != 0 {
		t.Errorf("Watermill's deduplicator: %d effects; it marks a message before it is handled, so 0 were expected", n)
	}
	engine, err := stet.New(memory.New(memory.Options{}), stet.Options{SweepEvery: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Close()
	around, err := watermill.Middleware(engine, stetmsg.Options[*message.Message]{
		Operation: stetmsg.By(watermill.Envelope, stetmsg.Header("orders", "uuid")),
		Retryable: func(error) bool { return true }, // the handler says so: it fails before its effect
		Backoff:   func(int) time.Duration { return time.Millisecond },
		ErrorLog:  slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	if n := effects(t, around, 5); n != 1 {
		t.Errorf("stet: %d effects of 5 copies", n)
	}
}

func TestMessageThatFailsForGoodIsADeadLetterAndNotRunAgain(t *testing.T) {
	engine, err := stet.New(memory.New(memory.Options{}), stet.Options{SweepEvery: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Close()
	around, err := watermill.Middleware(engine, stetmsg.Options[*message.Message]{
		Operation: stetmsg.By(watermill.Envelope, stetmsg.Header("orders", "uuid")), ErrorLog: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	runs := 0
	h := around(func(*message.Message) ([]*message.Message, error) {
		runs++
		return []*message.Message{message.NewMessage("2", nil)}, nil
	})
	for range 2 {
		if _, err := h(message.NewMessage("1", nil)); !watermill.IsDeadLetter(err) {
			t.Errorf("%v is no dead letter", err)
		}
	}
	if _, err := watermill.Middleware(engine, stetmsg.Options[*message.Message]{}); stet.KindOf(err) != stet.KindInvalid {
		t.Error(err)
	}
	if runs != 1 {
		t.Errorf("%d runs", runs)
	}
}
