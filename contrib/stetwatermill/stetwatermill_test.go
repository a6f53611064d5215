package stetwatermill_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/contrib/stetwatermill"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/stetmsg"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
	"github.com/stet-go/stet/store/sqlite"
)

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

// fixture is a router over channels, and its observed messages.
type fixture struct {
	*testing.T
	engine *stet.Engine
	pubsub *gochannel.GoChannel
	router *message.Router
	log    stettest.Log

	mu   sync.Mutex
	runs []string // of handlers
}

func newFixture(t *testing.T) *fixture {
	f := &fixture{T: t, engine: stettest.Engine(t, memory.New(memory.Options{}), stet.Options{})}
	f.pubsub = gochannel.NewGoChannel(gochannel.Config{Persistent: true}, watermill.NopLogger{})
	var err error
	if f.router, err = message.NewRouter(message.RouterConfig{CloseTimeout: 10 * time.Second}, watermill.NopLogger{}); err != nil {
		t.Fatal(err)
	}
	return f
}

func (f *fixture) options() stetwatermill.Options {
	return stetwatermill.Options{
		Options: stetmsg.Options[*message.Message]{Operation: stetwatermill.UUID, Backoff: func(int) time.Duration { return 0 },
			ErrorLog: slog.New(slog.NewTextHandler(&f.log, nil))},
		DeadLetter: stetwatermill.PoisonQueue(f.pubsub, "dead"),
	}
}

func (f *fixture) middleware(o stetwatermill.Options) message.HandlerMiddleware {
	f.Helper()
	m, err := stetwatermill.Middleware(f.engine, o)
	if err != nil {
		f.Fatal(err)
	}
	return m
}

// ran notes a run of a handler, and returns how many there were before of the same.
func (f *fixture) ran(what string) (before int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.runs {
		if r == what {
			before++
		}
	}
	f.runs = append(f.runs, what)
	return before
}

func (f *fixture) list() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.runs)
}

// start runs the router until the test ends.
func (f *fixture) start() {
	f.Helper()
	ended := make(chan error, 1)
	go func() { ended <- f.router.Run(context.Background()) }()
	<-f.router.Running()
	f.Cleanup(func() {
		if err := errors.Join(f.router.Close(), <-ended, f.pubsub.Close()); err != nil {
			f.Error(err)
		}
	})
}

func (f *fixture) publish(topic string, ms ...*message.Message) {
	f.Helper()
	if err := f.pubsub.Publish(topic, ms...); err != nil {
		f.Fatal(err)
	}
}

// receive returns the next n messages of a topic, and acknowledges them.
func (f *fixture) receive(topic string, n int) (ms []*message.Message) {
	f.Helper()
	ctx, cancel := context.WithCancel(f.Context())
	defer cancel()
	in, err := f.pubsub.Subscribe(ctx, topic)
	if err != nil {
		f.Fatal(err)
	}
	for end := time.After(20 * time.Second); len(ms) < n; {
		select {
		case m := <-in:
			m.Ack()
			ms = append(ms, m)
		case <-end:
			f.Fatalf("%d of %d messages have come to %q; log:\n%s", len(ms), n, topic, f.log.String())
		}
	}
	return ms
}

func order(uuid string) *message.Message { return message.NewMessage(uuid, []byte(`{"book":1}`)) }

// TestRetriedMessageIsNotLost has every tenth message fail when it comes first.
// Watermill's Deduplicator drops those when they come again.
func TestRetriedMessageIsNotLost(t *testing.T) {
	const n = 200
	for name, want := range map[string]int{"stet": n, "Deduplicator": n - n/10} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			guard := f.middleware(f.options())
			if name != "stet" {
				// By the UUID, so that it takes no two messages for one.
				guard = (&middleware.Deduplicator{KeyFactory: func(m *message.Message) (string, error) { return m.UUID, nil }}).Middleware
			}
			done := make(chan string, n)
			var effects sync.Map
			f.router.AddConsumerHandler("billing", "orders", f.pubsub, func(m *message.Message) error {
				if f.ran(m.UUID) == 0 && strings.HasSuffix(m.UUID, "0") {
					return stet.Retryable(errors.New("the database is being restarted"))
				}
				effects.Store(m.UUID, true)
				return nil
			}).AddMiddleware(func(h message.HandlerFunc) message.HandlerFunc {
				return func(m *message.Message) ([]*message.Message, error) {
					ms, err := h(m)
					if err == nil {
						done <- m.UUID
					}
					return ms, err
				}
			}, guard)
			f.start()
			for i := range n {
				f.publish("orders", order(fmt.Sprintf("order-%03d", i)))
			}
			for range n { // each is acknowledged in the end
				<-done
			}
			got := 0
			effects.Range(func(any, any) bool { got++; return true })
			if got != want {
				t.Errorf("%d of %d orders were billed, want %d", got, n, want)
			}
		})
	}
}

// outage is a publisher that fails at first.
type outage struct {
	message.Publisher
	mu    sync.Mutex
	fails int
}

func (o *outage) Publish(topic string, ms ...*message.Message) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.fails--; o.fails >= 0 {
		return errors.New("no connection")
	}
	return o.Publisher.Publish(topic, ms...)
}

func TestProducedMessagesAreReplayedUnchanged(t *testing.T) {
	f := newFixture(t)
	pub := &outage{Publisher: f.pubsub, fails: 3}
	var produced []*message.Message
	f.router.AddHandler("billing", "orders", f.pubsub, "invoices", pub, func(m *message.Message) ([]*message.Message, error) {
		f.ran(m.UUID)
		for i := range 3 {
			p := message.NewMessage(watermill.NewUUID(), []byte{byte(i), 0xff, '<'})
			p.Metadata.Set("of", m.UUID)
			p.Metadata.Set("text", "a < b & ü")
			produced = append(produced, p.Copy())
		}
		return produced, nil
	}).AddMiddleware(f.middleware(f.options()))
	f.start()
	f.publish("orders", order("1"))
	for i, m := range f.receive("invoices", 3) {
		if !slices.ContainsFunc(produced, m.Equals) {
			t.Errorf("message %d, %s %v %q, was not produced by the handler", i, m.UUID, m.Metadata, m.Payload)
		}
	}
	if got := f.list(); len(got) != 1 {
		t.Errorf("the handler ran %d times", len(got))
	}
}

func TestEachHandlerOfATopicHandlesEachMessage(t *testing.T) {
	f := newFixture(t)
	f.router.AddMiddleware(f.middleware(f.options()))
	for _, name := range []string{"billing", "shipping", "mail"} {
		f.router.AddHandler(name, "orders", f.pubsub, "out", f.pubsub, func(m *message.Message) ([]*message.Message, error) {
			f.ran(name)
			return []*message.Message{message.NewMessage(name, nil)}, nil
		})
	}
	f.start()
	f.publish("orders", order("1"))
	f.receive("out", 3)
	got := f.list()
	slices.Sort(got)
	if !slices.Equal(got, []string{"billing", "mail", "shipping"}) {
		t.Errorf("ran: %v", got)
	}
}

// Two handlers of a topic that share a scope: the second one would be skipped in silence.
func TestHandlersThatShareAScopeGetMismatch(t *testing.T) {
	f := newFixture(t)
	o := f.options()
	o.Operation = stetwatermill.By(stetmsg.Header("shop", "id"))
	f.router.AddMiddleware(f.middleware(o))
	for _, name := range []string{"billing", "shipping"} {
		f.router.AddConsumerHandler(name, "orders", f.pubsub, func(*message.Message) error { f.ran(name); return nil })
	}
	f.start()
	m := order("1")
	m.Metadata.Set("id", "1")
	f.publish("orders", m)
	dead := f.receive("dead", 1)[0]
	if got := f.list(); len(got) != 1 || dead.Metadata.Get(stetwatermill.ReasonMetadata) != "mismatch" || !strings.Contains(dead.Metadata.Get(stetwatermill.ErrorMetadata), "scope of its own") {
		t.Errorf("ran: %v; the dead letter has %v", got, dead.Metadata)
	}
}

func TestMessageThatCannotBeHandledIsADeadLetterWithItsReason(t *testing.T) {
	f := newFixture(t)
	f.router.AddConsumerHandler("billing", "orders", f.pubsub, func(m *message.Message) error {
		switch f.ran(m.UUID); m.UUID {
		case "fails":
			return errors.New("the card was refused")
		case "panics":
			panic("oops")
		case "busy":
			return stet.Retryable(errors.New("busy"))
		}
		return nil
	}).AddMiddleware(f.middleware(func() stetwatermill.Options { o := f.options(); o.MaxAttempts = 3; return o }()))
	f.start()
	f.publish("orders", order("fine"), order("fails"), order("panics"), order("busy"), message.NewMessage("", nil), message.NewMessage("fine", []byte("other")))
	want := map[string]string{"fails": "failed", "panics": "failed", "busy": "attempts-exhausted", "": "invalid", "fine": "mismatch"}
	for _, m := range f.receive("dead", len(want)) {
		if got := m.Metadata.Get(stetwatermill.ReasonMetadata); got != want[m.UUID] || m.Metadata.Get(middleware.PoisonedTopicKey) != "orders" || m.Metadata.Get(middleware.PoisonedHandlerKey) != "billing" {
			t.Errorf("%q was put aside with %v, want %s", m.UUID, m.Metadata, want[m.UUID])
		}
		delete(want, m.UUID)
	}
	if got := f.list(); len(got) != 6 || len(want) != 0 {
		t.Errorf("ran: %v; missing: %v", got, want)
	}
}

func TestFailedDeadLetterIsDeliveredAgain(t *testing.T) {
	f := newFixture(t)
	o := f.options()
	o.MaxPause = -1
	o.DeadLetter = stetwatermill.PoisonQueue(&outage{Publisher: f.pubsub, fails: 2}, "dead")
	f.router.AddConsumerHandler("billing", "orders", f.pubsub, func(m *message.Message) error {
		f.ran(m.UUID)
		return errors.New("no")
	}).AddMiddleware(f.middleware(o))
	f.start()
	f.publish("orders", order("1"))
	f.receive("dead", 1)
	if got := f.list(); len(got) != 1 || !strings.Contains(f.log.String(), "could not be put aside") {
		t.Errorf("ran: %v", got)
	}
}

func TestHandlerHasTheRunInTheMessagesContext(t *testing.T) {
	f := newFixture(t)
	g := f.middleware(func() stetwatermill.Options {
		o := f.options()
		o.Operation = stetwatermill.By(stetmsg.Header("shop", "id"))
		return o
	}())
	m := order("1")
	m.Metadata.Set("id", "42")
	type key struct{}
	ctx := context.WithValue(t.Context(), key{}, "kept")
	m.SetContext(ctx)
	_, err := g(func(m *message.Message) ([]*message.Message, error) {
		if run := stet.FromContext(m.Context()); run == nil || run.Op().Key != "42" || run.Op().Scope != "shop" || m.Context().Value(key{}) != "kept" {
			t.Errorf("the run is %v", run)
		}
		return nil, nil
	})(m)
	if err != nil || m.Context() != ctx {
		t.Errorf("%v; the context is %v", err, m.Context())
	}
}

func TestGoexitOfAHandlerReturnsItsMessage(t *testing.T) {
	f := newFixture(t)
	f.router.AddConsumerHandler("billing", "orders", f.pubsub, func(m *message.Message) error {
		f.ran(m.UUID)
		runtime.Goexit()
		return nil
	}).AddMiddleware(f.middleware(f.options()))
	f.start()
	f.publish("orders", order("1"))
	if m := f.receive("dead", 1)[0]; m.UUID != "1" || len(f.list()) != 1 {
		t.Errorf("%s; ran %v", m.UUID, f.list())
	}
}

func TestMessagesThatCannotBeStoredAreNotPublished(t *testing.T) {
	for name, of := range map[string]func() []*message.Message{
		"too large": func() []*message.Message { return []*message.Message{message.NewMessage("x", make([]byte, 1<<20))} },
		"nil":       func() []*message.Message { return []*message.Message{nil} },
		"no text":   func() []*message.Message { return []*message.Message{message.NewMessage("\xff", nil)} },
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.router.AddHandler("billing", "orders", f.pubsub, "out", f.pubsub, func(*message.Message) ([]*message.Message, error) { return of(), nil }).AddMiddleware(f.middleware(f.options()))
			f.start()
			f.publish("orders", order("1"))
			if m := f.receive("dead", 1)[0]; !strings.Contains(m.Metadata.Get(stetwatermill.ErrorMetadata), "cannot be stored") {
				t.Error(m.Metadata)
			}
		})
	}
}

func TestLargestProducedMessageIsStored(t *testing.T) {
	f := newFixture(t)
	const most = 1<<20 - 256
	for size := most*3/4 - 200; size < most*3/4; size += 10 {
		id := fmt.Sprint(size)
		h := message.PassthroughHandler
		m := message.NewMessage(id, make([]byte, size))
		m.SetContext(t.Context())
		o := f.options()
		o.Operation = stetwatermill.By(stetmsg.Header("s", "id"))
		o.DeadLetter = func(context.Context, *message.Message, stetmsg.Decision) error { return nil }
		g := f.middleware(o)
		m.Metadata.Set("id", id)
		first, err := g(h)(m)
		if err != nil {
			t.Fatal(err)
		}
		again, err := g(h)(m)
		if err != nil || len(first) != len(again) {
			t.Errorf("with %d bytes the first delivery has %d messages, the second %d: %v", size, len(first), len(again), err)
		}
	}
}

func TestEarlyAcknowledgementIsReported(t *testing.T) {
	f := newFixture(t)
	m := order("1")
	o := f.options()
	o.Operation = func(*message.Message) (stet.Op, error) { return stet.Op{Scope: "s", Key: "k"}, nil }
	if _, err := middleware.InstantAck(f.middleware(o)(message.PassthroughHandler))(m); err != nil || !strings.Contains(f.log.String(), "acknowledged before it was handled") {
		t.Errorf("%v; log: %s", err, f.log.String())
	}
}

func TestRetryErrorIsDistinguishable(t *testing.T) {
	f := newFixture(t)
	busy := errors.New("busy")
	m := order("1")
	o := f.options()
	o.Operation = func(*message.Message) (stet.Op, error) { return stet.Op{Scope: "s", Key: "k"}, nil }
	_, err := f.middleware(o)(func(*message.Message) ([]*message.Message, error) { return nil, stet.Retryable(busy) })(m)
	e, ok := errors.AsType[*stetwatermill.RetryError](err)
	if !ok || e.Decision.Reason != stetmsg.NoEffect || !errors.Is(err, busy) || !strings.Contains(err.Error(), "no-effect") {
		t.Errorf("%v", err)
	}
	if stet.KindOf(err) == stet.KindInvalid {
		t.Error("its kind")
	}
}

func TestTransactionIsRolledBackAndRetried(t *testing.T) {
	f := newFixture(t)
	st, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "stet.db"), sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	te := stettest.TxEngine(stettest.Engine(t, st, stet.Options{SweepEvery: -1}), store.TxStore[*sql.Tx](st))
	if err := te.InTx(t.Context(), func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "CREATE TABLE bills (uuid TEXT)")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	o := f.options()
	o.MaxAttempts = 3
	h, err := stetwatermill.HandleTx(te, o, func(m *message.Message, tx *sql.Tx) ([]*message.Message, error) {
		if _, err := tx.ExecContext(m.Context(), "INSERT INTO bills VALUES (?)", m.UUID); err != nil {
			return nil, err
		}
		out := []*message.Message{message.NewMessage(watermill.NewUUID(), []byte(m.UUID))}
		switch n := f.ran(m.UUID); {
		case m.UUID == "never", m.UUID == "later" && n == 0:
			return out, errors.New("a deadlock")
		case m.UUID == "permanent":
			return out, stet.Permanent(errors.New("no such book"))
		}
		return out, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	f.router.AddHandler("billing", "orders", f.pubsub, "out", &outage{Publisher: f.pubsub, fails: 1}, h)
	f.start()
	f.publish("orders", order("once"), order("later"), order("never"), order("permanent"))
	for _, m := range f.receive("dead", 2) {
		if want := map[string]string{"never": "attempts-exhausted", "permanent": "failed"}[m.UUID]; m.Metadata.Get(stetwatermill.ReasonMetadata) != want {
			t.Errorf("%q: %v", m.UUID, m.Metadata)
		}
	}
	f.receive("out", 2)
	var bills []string
	if err := te.InTx(t.Context(), func(ctx context.Context, tx *sql.Tx) error {
		rows, err := tx.QueryContext(ctx, "SELECT uuid FROM bills ORDER BY uuid")
		for err == nil && rows.Next() {
			var s string
			err = rows.Scan(&s)
			bills = append(bills, s)
		}
		return errors.Join(err, rows.Err(), rows.Close())
	}); err != nil {
		t.Fatal(err)
	}
	runs := f.list()
	slices.Sort(runs)
	if want := []string{"later", "later", "never", "never", "never", "once", "permanent"}; !slices.Equal(bills, []string{"later", "once"}) || !slices.Equal(runs, want) {
		t.Errorf("bills: %v; runs: %v", bills, runs)
	}
}

func TestWrongOptionsAreErrors(t *testing.T) {
	f := newFixture(t)
	for name, change := range map[string]func(*stetwatermill.Options){
		"Operation":   func(o *stetwatermill.Options) { o.Operation = nil },
		"Concurrency": func(o *stetwatermill.Options) { o.Concurrency = 4 },
		"DeadLetter":  func(o *stetwatermill.Options) { o.DeadLetter = stetwatermill.PoisonQueue(f.pubsub, "") },
		"PoisonQueue": func(o *stetwatermill.Options) { o.DeadLetter = stetwatermill.PoisonQueue(nil, "dead") },
	} {
		o := f.options()
		change(&o)
		if _, err := stetwatermill.Middleware(f.engine, o); stet.KindOf(err) != stet.KindInvalid || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := stetwatermill.Middleware(nil, f.options()); stet.KindOf(err) != stet.KindInvalid {
		t.Error(err)
	}
	if _, err := stetwatermill.HandleTx[*sql.Tx](nil, f.options(), nil); stet.KindOf(err) != stet.KindInvalid {
		t.Error(err)
	}
	// Outside of a router there is no name for a scope.
	if _, err := f.middleware(f.options())(message.PassthroughHandler)(order("1")); err != nil {
		t.Error(err)
	} else if m := f.receive("dead", 1)[0]; !strings.Contains(m.Metadata.Get(stetwatermill.ErrorMetadata), "scope") {
		t.Error(m.Metadata)
	}
}
