package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	rabbit "github.com/rabbitmq/amqp091-go"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/fault"
	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/store"
)

// sender is a service that emits a message to each of some destinations, about every
// payment; and what its messages have reached.
type sender struct {
	*httptest.Server
	hook *httptest.Server
	url  string // of the store

	mu   sync.Mutex
	runs map[string]int
	got  map[string]int // by ID
}

func openSender(t *testing.T, storeURL string, to ...string) *sender {
	t.Helper()
	s := &sender{url: storeURL, runs: map[string]int{}, got: map[string]int{}}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key := r.Header.Get("Idempotency-Key")
		s.mu.Lock()
		s.runs[key]++
		s.mu.Unlock()
		for _, to := range to {
			w.Header().Add("Stet-Emit", fmt.Sprintf(`{"to":%q,"body":{"paid":%q}}`, to, key))
		}
		w.WriteHeader(201)
	}))
	t.Cleanup(s.Close)
	s.hook = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		s.took(r.Header.Get("Ce-Id"))
	}))
	t.Cleanup(s.hook.Close)
	return s
}

func (s *sender) took(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.got[id]++
}

// times says how often the nth message of a payment has arrived.
func (s *sender) times(key string, n int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.got[stet.DeriveKey("stet/message", store.Digest("", "single-tenant", key).String(), fmt.Sprint(n))]
}

// start starts a sidecar with targets.
func (s *sender) start(t *testing.T, targets ...string) *instance {
	t.Helper()
	return s.startWith(t, "timeout: 1m", targets...)
}

// startWith is start with what the route has besides.
func (s *sender) startWith(t *testing.T, route string, targets ...string) *instance {
	t.Helper()
	file := filepath.Join(t.TempDir(), "stet.yaml")
	text := fmt.Sprintf("upstream: {url: %q}\nlisten: 127.0.0.1:0\nstore: %s\nscope: single-tenant\nroutes: [{path: /payments, %s}]\nrelay: {retry: 1s, targets: [%s]}\n",
		s.URL, s.url, route, strings.Join(targets, ", "))
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return startProxy(t, "--config", file)
}

// emitStores are a file and a database, of which each call returns a new one.
func emitStores(t *testing.T) map[string]func() string {
	return map[string]func() string{
		"sqlite": func() string { return filepath.Join(t.TempDir(), "stet.db") },
		"postgres": func() string {
			url := rig.Postgres(t).Database(t)
			must(t, "migrate", "up", "--store", url)
			return url
		},
	}
}

// At each point between the outcome and the relay's record where a sidecar dies, its messages leave
// all the same, under the same ID, and the payment is made once.
func TestSidecarThatDiesAfterTheOutcomeLosesNoMessage(t *testing.T) {
	for name, open := range emitStores(t) {
		for _, point := range []fault.Point{fault.SettleAfter, fault.ResponseBefore, fault.RelayBefore, fault.RelaySent, fault.RelayAfter} {
			t.Run(name+"/"+string(point), func(t *testing.T) {
				s := openSender(t, open(), "paid") // a message of another point would end the sidecar early
				key := string(point)
				t.Setenv(dieEnv, key)
				dying := s.start(t, "{by: '"+s.hook.URL+"'}")
				pay(t, dying.url, key)
				select {
				case <-dying.done:
				case <-time.After(time.Minute):
					t.Fatal("the sidecar does not pass this point")
				}
				t.Setenv(dieEnv, "")
				next := s.start(t, "{by: '"+s.hook.URL+"'}")
				if status, body, replayed := pay(t, next.url, key); status != 201 || !replayed {
					t.Fatalf("%d %s, replayed %v", status, body, replayed)
				}
				stettest.Eventually(t, "the message arrives", func() bool { return s.times(key, 0) > 0 })
				s.mu.Lock()
				defer s.mu.Unlock()
				if s.runs[key] != 1 {
					t.Errorf("it was paid %d times", s.runs[key])
				}
			})
		}
	}
}

// queue makes a durable queue, and receives its messages.
func (s *sender) queue(t *testing.T, url, name string) {
	t.Helper()
	conn, err := rabbit.Dial(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ch.QueueDeclare(name, true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	in, err := ch.Consume(name, "", true, false, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for m := range in {
			s.took(m.MessageId)
		}
	}()
}

// A broker fails and returns: the messages emitted in between arrive, and messages
// for other brokers do not wait.
func TestMessagesWaitForABrokerThatIsAway(t *testing.T) {
	t.Parallel()
	for name, open := range emitStores(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := rig.NewRabbitMQ(t, rig.RabbitMQOptions{})
			s := openSender(t, open(), "paid", "mails")
			s.queue(t, server.URL(), "paid")
			p := s.start(t, "{to: paid, by: '"+server.URL()+"'}", "{by: '"+s.hook.URL+"'}")
			pay(t, p.url, "before")
			stettest.Eventually(t, "the first arrives", func() bool { return s.times("before", 0) == 1 && s.times("before", 1) == 1 })
			_ = server.Kill()
			for i := range 10 {
				if status, body, _ := pay(t, p.url, fmt.Sprint("k", i)); status != 201 {
					t.Fatalf("%d %s", status, body)
				}
			}
			stettest.Eventually(t, "what goes elsewhere arrives", func() bool {
				for i := range 10 {
					if s.times(fmt.Sprint("k", i), 1) == 0 {
						return false
					}
				}
				return true
			})
			stettest.Eventually(t, "the log names the error", func() bool { return strings.Contains(p.log(), "a target does not accept messages") })
			if err := server.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			s.queue(t, server.URL(), "paid")
			stettest.Eventually(t, "all arrive", func() bool {
				for i := range 10 {
					if s.times(fmt.Sprint("k", i), 0) == 0 {
						return false
					}
				}
				return true
			})
			for i := range 10 {
				if n := s.times(fmt.Sprint("k", i), 1); n != 1 {
					t.Errorf("what goes elsewhere arrived %d times", n)
				}
			}
			if log := p.log(); strings.Contains(log, "guest:guest") || strings.Count(log, "a target does not accept messages") > 2 || strings.Count(log, "stet: unsent") > 2 {
				t.Errorf("the log: %s", log)
			}
		})
	}
}
