package stetmsg_test

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/observe"
	"github.com/stet-go/stet/stetmsg"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

// A message that is refused permanently stands in nobody's way, and is seen.
func TestPermanentlyRefusedMessageIsReportedAndDelaysNoOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		unsent := make(map[store.ID]int)
		engine, err := stet.New(memory.New(memory.Options{}), stet.Options{SweepEvery: -1, Observer: observe.Func(func(_ context.Context, ev observe.Event) {
			mu.Lock()
			defer mu.Unlock()
			if ev.Kind == observe.Unsent && ev.Err != nil {
				unsent[ev.ID]++
			}
		})})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = engine.Close() }()
		emit := func(key, body string) {
			run, err := engine.Begin(t.Context(), stet.Op{Scope: "shop", Key: key})
			if err == nil {
				err = run.Emit(stet.Message{To: "orders", Body: []byte(body)})
			}
			if err == nil {
				err = run.Settle(t.Context(), stet.Outcome{})
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		out := &outside{refuse: func(m stet.Message) bool { return string(m.Body) == "poison" }}
		relay, err := stetmsg.NewRelay(engine, out.Publish, stetmsg.RelayOptions{ErrorLog: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error)
		go func() { done <- relay.Run(ctx) }()
		emit("poison", "poison")
		for i := range 20 {
			emit(string(rune('a'+i)), "good")
			time.Sleep(5 * time.Second)
			if n := len(out.bodies()); n < i+1 {
				t.Fatalf("%d messages of %d were sent", n, i+1)
			}
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		mu.Lock()
		defer mu.Unlock()
		if n := unsent[engine.ID("shop", "poison")]; len(unsent) != 1 || n < 3 || n > 10 || slices.Contains(out.bodies(), "poison") {
			t.Errorf("seen: %v", unsent)
		}
	})
}
