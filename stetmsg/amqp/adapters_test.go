package amqp_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/canonical"
	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/stetmsg"
	"github.com/stet-go/stet/stetmsg/amqp"
	"github.com/stet-go/stet/store"
)

// shop books orders that are posted by HTTP, and orders that come from RabbitMQ.
type shop struct {
	*fixture
	server  *httptest.Server
	stop    func()
	booked  atomic.Int64
	begun   chan string   // which adapter has begun to book; nil: not told
	proceed chan struct{} // closed when it may continue
}

func (s *shop) book(adapter string) []byte {
	n := s.booked.Add(1)
	if s.begun != nil {
		s.begun <- adapter
		<-s.proceed
	}
	return fmt.Appendf(nil, `{"booking":%d}`, n)
}

func newShop(t *testing.T, url string, slow bool) *shop {
	s := &shop{fixture: newFixture(t, url)}
	if slow {
		s.begun, s.proceed = make(chan string, 2), make(chan struct{})
	}
	of, err := canonical.Fingerprint("order")
	if err != nil {
		t.Fatal(err)
	}
	quiet := slog.New(slog.DiscardHandler)
	m, err := stethttp.New(s.engine, stethttp.Options{ErrorLog: quiet,
		Scope:       func(*http.Request) (string, error) { return "orders", nil },
		Fingerprint: func(_ *http.Request, body []byte) (store.Fingerprint, error) { return of(body), nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	s.server = httptest.NewServer(m.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		receipt := s.book("http")
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write(receipt)
	})))
	t.Cleanup(s.server.Close)
	c, err := stetmsg.New(s.engine, stetmsg.Options[amqp091.Delivery]{ErrorLog: quiet,
		Operation: stetmsg.By(amqp.Envelope, stetmsg.Header("orders", "Idempotency-Key").WithFingerprint(
			func(e stetmsg.Envelope) (store.Fingerprint, error) { return of(e.Body), nil })),
		Observe: func(_ context.Context, d stetmsg.Decision) { s.observe(d) },
	}, func(context.Context, amqp091.Delivery) ([]byte, error) { return s.book("message"), nil })
	if err != nil {
		t.Fatal(err)
	}
	r, err := amqp.New(c, amqp.Options{URL: url, Queue: s.queue})
	if err != nil {
		t.Fatal(err)
	}
	s.stop = s.run(r)
	return s
}

// post posts the order. JSON of the same meaning comes by RabbitMQ.
func (s *shop) post(key string) (status int, body string) {
	r, err := http.NewRequest(http.MethodPost, s.server.URL+"/orders", strings.NewReader(`{"book": 7, "copies": 1}`))
	if err != nil {
		s.t.Error(err)
		return 0, ""
	}
	r.Header.Set("Idempotency-Key", `"`+key+`"`)
	r.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		s.t.Error(err)
		return 0, ""
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		s.t.Error(err)
	}
	return res.StatusCode, string(b)
}

func (s *shop) message(key string) {
	s.publish(amqp091.Publishing{Headers: amqp091.Table{"Idempotency-Key": key}, Body: []byte(`{"copies":1,"book":7}`)})
}

// decidedAs reports whether the copies of a message were decided so, in any order.
func (s *shop) decidedAs(key string, want ...stetmsg.Reason) bool {
	left := s.reasons(key)
	for _, w := range want {
		found := false
		for i, r := range left {
			if r == w {
				left, found = append(left[:i:i], left[i+1:]...), true
				break
			}
		}
		if !found {
			return false
		}
	}
	return true
}

// TestOrderPostedByHTTPAndRedeliveredByRabbitMQRunsOnce, in both orders, and while the
// other is running.
func TestOrderPostedByHTTPAndRedeliveredByRabbitMQRunsOnce(t *testing.T) {
	url := rig.RabbitMQ(t).URL()
	t.Run("HTTP first", func(t *testing.T) {
		s := newShop(t, url, false)
		defer s.stop()
		status, body := s.post("k")
		for range 3 {
			s.message("k")
		}
		s.until(func() bool { return s.decidedAs("k", stetmsg.Replayed, stetmsg.Replayed, stetmsg.Replayed) })
		if n := s.booked.Load(); n != 1 || status != 201 || body != `{"booking":1}` {
			t.Errorf("booked %d times; %d %s", n, status, body)
		}
	})
	t.Run("message first", func(t *testing.T) {
		s := newShop(t, url, false)
		defer s.stop()
		s.message("k")
		s.until(func() bool { return s.decidedAs("k", stetmsg.Handled) })
		s.message("k")
		s.until(func() bool { return s.decidedAs("k", stetmsg.Handled, stetmsg.Replayed) })
		if status, body := s.post("k"); s.booked.Load() != 1 || status != 200 || body != `{"booking":1}` {
			t.Errorf("booked %d times; %d %s", s.booked.Load(), status, body)
		}
	})
	t.Run("another order under the key", func(t *testing.T) {
		s := newShop(t, url, false)
		defer s.stop()
		s.post("k")
		s.publish(amqp091.Publishing{Headers: amqp091.Table{"Idempotency-Key": "k"}, Body: []byte(`{"copies":2,"book":7}`)})
		s.until(func() bool { return s.decidedAs("k", stetmsg.Mismatch) })
		if n := s.booked.Load(); n != 1 {
			t.Errorf("booked %d times", n)
		}
	})
	t.Run("Do before both", func(t *testing.T) { doBeforeBoth(t, newShop(t, url, false)) })
}

// TestOrderInFlightIsRefusedByTheOtherAdapter while one of them runs it.
func TestOrderInFlightIsRefusedByTheOtherAdapter(t *testing.T) {
	url := rig.RabbitMQ(t).URL()
	t.Run("message while HTTP runs", func(t *testing.T) {
		s := newShop(t, url, true)
		defer s.stop()
		answered := make(chan int, 1)
		go func() { status, _ := s.post("k"); answered <- status }()
		if adapter := <-s.begun; adapter != "http" {
			t.Fatal(adapter)
		}
		s.message("k")
		s.until(func() bool { return s.decidedAs("k", stetmsg.InFlight) })
		close(s.proceed)
		s.until(func() bool { return s.decidedAs("k", stetmsg.Replayed) })
		if status := <-answered; status != 201 || s.booked.Load() != 1 {
			t.Errorf("booked %d times; %d", s.booked.Load(), status)
		}
	})
	t.Run("HTTP while the message runs", func(t *testing.T) {
		s := newShop(t, url, true)
		defer s.stop()
		s.message("k")
		if adapter := <-s.begun; adapter != "message" {
			t.Fatal(adapter)
		}
		if status, body := s.post("k"); status != 409 || !strings.Contains(body, "in-flight") {
			t.Errorf("while it runs: %d %s", status, body)
		}
		close(s.proceed)
		s.until(func() bool { return s.decidedAs("k", stetmsg.Handled) })
		if status, body := s.post("k"); s.booked.Load() != 1 || status != 200 || body != `{"booking":1}` {
			t.Errorf("booked %d times; %d %s", s.booked.Load(), status, body)
		}
	})
}

func doBeforeBoth(t *testing.T, s *shop) {
	defer s.stop()
	of, _ := canonical.Fingerprint("order")
	type receipt struct {
		Booking int `json:"booking"`
	}
	op := stet.Op{Scope: "orders", Key: "k", Fingerprint: of([]byte(`{"book":7,"copies":1}`))}
	if _, err := stet.Do(t.Context(), s.engine, op, func(context.Context) (receipt, error) { return receipt{int(s.booked.Add(1))}, nil }); err != nil {
		t.Fatal(err)
	}
	s.message("k")
	s.until(func() bool { return s.decidedAs("k", stetmsg.Replayed) })
	if status, body := s.post("k"); s.booked.Load() != 1 || status != 200 || body != `{"booking":1}` {
		t.Errorf("booked %d times; %d %s", s.booked.Load(), status, body)
	}
}
