package stetmsg_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/observe"
	"github.com/stet-go/stet/stetmsg"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

// outside is a broker for messages that leave.
type outside struct {
	mu      sync.Mutex
	got     []stet.Message
	refuse  func(stet.Message) bool
	publish int // calls
}

func (o *outside) Publish(_ context.Context, ms []stet.Message) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.publish++
	for _, m := range ms {
		if o.refuse != nil && o.refuse(m) {
			return errors.New("refused")
		}
		o.got = append(o.got, m)
	}
	return nil
}

func (o *outside) bodies() (all []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, m := range o.got {
		all = append(all, string(m.Body))
	}
	slices.Sort(all)
	return all
}

func (b *bench) relay(o *outside) *stetmsg.Relay {
	b.t.Helper()
	r, err := stetmsg.NewRelay(b.engine, o.Publish, stetmsg.RelayOptions{ErrorLog: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.t.Fatal(err)
	}
	return r
}

// emitting is a handler that tells others, and ends unchanged told.
func emitting(end func(*stet.Run) error) handler {
	return func(ctx context.Context, m order) ([]byte, error) {
		run := stet.FromContext(ctx)
		for _, what := range []string{"charged", "shipped"} {
			if err := run.Emit(stet.Message{To: "events", Body: []byte(what + " " + m.ID)}); err != nil {
				return nil, err
			}
		}
		return nil, end(run)
	}
}

func ok(*stet.Run) error { return nil }

func TestMessagesAreSentOnlyWithTheOutcome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, out := inMemory(t, stet.Policy{}), &outside{}
		r := b.relay(out)
		for name, end := range map[string]func(*stet.Run) error{
			"released": func(*stet.Run) error { return stet.Retryable(errors.New("busy")) },
			"unknown":  func(run *stet.Run) error { run.Declare(stet.MayHaveExecuted, 0); return nil },
		} {
			b.consumer(emitting(end)).Decide(t.Context(), order{ID: name}, 1)
			if n, err := r.Once(t.Context()); n != 0 || err != nil || len(out.got) != 0 {
				t.Errorf("%s: %d relayed, %v, %v left", name, n, err, out.bodies())
			}
		}
		c := b.consumer(emitting(ok))
		for range 3 { // replays emit nothing
			wants(t, c.Decide(t.Context(), order{ID: "1"}, 1), stetmsg.Ack, map[bool]stetmsg.Reason{true: stetmsg.Handled, false: stetmsg.Replayed}[len(out.got) == 0])
			if _, err := r.Once(t.Context()); err != nil {
				t.Fatal(err)
			}
			time.Sleep(2 * stetmsg.DefaultRelayAgain)
		}
		if got := out.bodies(); !slices.Equal(got, []string{"charged 1", "shipped 1"}) {
			t.Errorf("what left: %q", got)
		}
	})
}

func TestUnconfirmedMessageIsSentAgainWithTheSameID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, out := inMemory(t, stet.Policy{}), &outside{}
		r := b.relay(out)
		b.consumer(emitting(ok)).Decide(t.Context(), order{ID: "1"}, 1)
		first := true
		out.refuse = func(m stet.Message) bool { defer func() { first = false }(); return !first } // one of two got there
		if n, err := r.Once(t.Context()); n != 0 || err == nil {
			t.Fatalf("%d, %v", n, err)
		}
		if n, err := r.Once(t.Context()); n != 0 || err != nil {
			t.Fatalf("not yet due: %d, %v", n, err)
		}
		out.refuse = nil
		time.Sleep(stetmsg.DefaultRelayAgain)
		if n, err := r.Once(t.Context()); n != 1 || err != nil {
			t.Fatalf("%d, %v", n, err)
		}
		if len(out.got) != 3 || out.got[0].ID != out.got[1].ID || out.got[1].ID == out.got[2].ID || out.got[0].ID == "" {
			t.Errorf("sent: %+v", out.got)
		}
	})
}

func TestRefusedMessageDoesNotDelayOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := inMemory(t, stet.Policy{})
		out := &outside{refuse: func(m stet.Message) bool { return string(m.Body) == "charged 3" }}
		c := b.consumer(emitting(ok))
		for i := range 6 {
			c.Decide(t.Context(), order{ID: fmt.Sprint(i)}, 1)
		}
		if n, err := b.relay(out).Once(t.Context()); n != 5 || err == nil {
			t.Errorf("%d relayed, %v; want 5 and an error", n, err)
		}
	})
}

// hanging is a Publish that hangs on some messages, and counts the others.
type hanging struct {
	mu    sync.Mutex
	hangs func(stet.Message) bool
	sent  map[string]int // by their bodies
}

func (h *hanging) Publish(ctx context.Context, ms []stet.Message) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, m := range ms {
		if h.hangs(m) {
			<-ctx.Done()
			return ctx.Err()
		}
		h.sent[m.To+" "+string(m.Body)]++
	}
	return nil
}

// relays runs a relay for a time with messages to destinations.
func (h *hanging) relays(t *testing.T, to map[string]int, within time.Duration) {
	t.Helper()
	b := inMemory(t, stet.Policy{})
	r, err := stetmsg.NewRelay(b.engine, h.Publish, stetmsg.RelayOptions{ErrorLog: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	for to, n := range to {
		for i := range n {
			b.consumer(func(ctx context.Context, m order) ([]byte, error) {
				return nil, stet.FromContext(ctx).Emit(stet.Message{To: to, Body: []byte(strconv.Itoa(i))})
			}).Decide(t.Context(), order{ID: to + strconv.Itoa(i)}, 1)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	if err := r.Run(ctx); err != nil {
		t.Error(err)
	}
}

func TestRelayToAHangingDestinationDelaysNoOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &hanging{hangs: func(m stet.Message) bool { return m.To != "up" }, sent: map[string]int{}}
		h.relays(t, map[string]int{"down": 150, "away": 1, "up": 120}, 2*time.Minute)
		for i := range 120 {
			if n := h.sent["up "+strconv.Itoa(i)]; n != 1 {
				t.Errorf("message %d to a broker that takes them was sent %d times", i, n)
			}
		}
	})
}

func TestRelayToARecoveredDestinationContinues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		back := time.Now().Add(10 * time.Minute)
		h := &hanging{hangs: func(m stet.Message) bool { return m.To == "down" && time.Now().Before(back) }, sent: map[string]int{}}
		h.relays(t, map[string]int{"down": 150, "up": 1}, 12*time.Minute)
		if len(h.sent) != 151 {
			t.Errorf("%d of 151 messages were sent", len(h.sent))
		}
	})
}

func TestHangingMessageDoesNotDelayOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &hanging{hangs: func(m stet.Message) bool { return string(m.Body) == "7" }, sent: map[string]int{}}
		h.relays(t, map[string]int{"events": 150}, 5*time.Minute)
		if len(h.sent) != 149 {
			t.Errorf("%d of 149 messages were sent", len(h.sent))
		}
	})
}

func TestRelayWakesAndEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, out := inMemory(t, stet.Policy{}), &outside{}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- b.relay(out).Run(ctx) }()
		synctest.Wait()
		began := time.Now()
		b.consumer(emitting(ok)).Decide(t.Context(), order{ID: "1"}, 1)
		synctest.Wait()
		if len(out.got) != 2 || !time.Now().Equal(began) {
			t.Errorf("%d messages after %v", len(out.got), time.Since(began))
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

func TestTwoRelaysSendEachMessageOnceWhileNothingFails(t *testing.T) {
	b, out := inMemory(t, stet.Policy{}), &outside{}
	c := b.consumer(emitting(ok))
	for i := range 500 {
		c.Decide(t.Context(), order{ID: fmt.Sprint(i)}, 1)
	}
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for r := b.relay(out); ; {
				if n, err := r.Once(t.Context()); n == 0 || err != nil {
					return
				}
			}
		})
	}
	wg.Wait()
	if got := out.bodies(); len(got) != 1000 || len(slices.Compact(got)) != 1000 {
		t.Errorf("%d messages left; want 1000, each once", len(got))
	}
}

func TestRelayRefusesWrongOptions(t *testing.T) {
	b, out := inMemory(t, stet.Policy{}), &outside{}
	plain := stettest.Engine(t, struct{ store.Store }{memory.New(memory.Options{})}, stet.Options{})
	for name, try := range map[string]func() error{
		"no engine":    func() error { _, err := stetmsg.NewRelay(nil, out.Publish, stetmsg.RelayOptions{}); return err },
		"no publisher": func() error { _, err := stetmsg.NewRelay(b.engine, nil, stetmsg.RelayOptions{}); return err },
		"no messages":  func() error { _, err := stetmsg.NewRelay(plain, out.Publish, stetmsg.RelayOptions{}); return err },
		"batch": func() error {
			_, err := stetmsg.NewRelay(b.engine, out.Publish, stetmsg.RelayOptions{Batch: 1001})
			return err
		},
		"negative time": func() error {
			_, err := stetmsg.NewRelay(b.engine, out.Publish, stetmsg.RelayOptions{Poll: -1})
			return err
		},
	} {
		if err := try(); stet.KindOf(err) != stet.KindInvalid {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A permanently refused message delays no other message, and is reported.
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
