package main

import (
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	rabbit "github.com/rabbitmq/amqp091-go"

	"github.com/stet-go/stet/internal/fault"
	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/internal/test/stettest"
)

// startConsumer starts a process that consumes; it dies at a point, unless that is "".
func startConsumer(t *testing.T, file string, point fault.Point) *instance {
	t.Helper()
	p := startDying(t, point, "consume", "--config", file, "--admin-listen", "127.0.0.1:0")
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(p.log())
		}
	})
	return p
}

// source is a queue or a stream.
type source struct {
	yaml string
	send func(key, body string)
	dead func() (keys []string)
	left func() int
}

func rabbitSource(t *testing.T) *source {
	t.Helper()
	url, queue := rig.RabbitMQ(t).URL(), rig.Named(t, ".")
	conn, err := rabbit.Dial(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	ch, err := conn.Channel()
	if err == nil {
		err = ch.Confirm(false)
	}
	if err == nil {
		_, err = ch.QueueDeclare(queue, true, false, false, false, rabbit.Table{"x-queue-type": "quorum"})
	}
	if err == nil {
		_, err = ch.QueueDeclare(queue+".dead", true, false, false, false, rabbit.Table{"x-queue-type": "quorum"})
	}
	if err != nil {
		t.Fatal(err)
	}
	return &source{
		yaml: fmt.Sprintf("from: %q, queue: %s", url, queue),
		send: func(key, body string) {
			t.Helper()
			sent, err := ch.PublishWithDeferredConfirmWithContext(t.Context(), "", queue, true, false, rabbit.Publishing{DeliveryMode: rabbit.Persistent, MessageId: key, Body: []byte(body)})
			if err != nil || !sent.Wait() {
				t.Fatal("not confirmed", err)
			}
		},
		dead: func() (keys []string) {
			for {
				m, ok, err := ch.Get(queue+".dead", true)
				if err != nil {
					t.Fatal(err)
				}
				if !ok {
					return keys
				}
				keys = append(keys, fmt.Sprint(m.MessageId, " ", m.Headers["stet-reason"]))
			}
		},
		left: func() int {
			q, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
			if err != nil {
				t.Fatal(err)
			}
			return q.Messages
		},
	}
}

func streamSource(t *testing.T) *source {
	t.Helper()
	url, name := rig.NATS(t).URL(), rig.Named(t, "-")
	nc, err := nats.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{name, name + "-dead"} {
		if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: name, Subjects: []string{name}}); err != nil {
			t.Fatal(err)
		}
	}
	c, err := js.CreateConsumer(t.Context(), name, jetstream.ConsumerConfig{Durable: "workers", AckPolicy: jetstream.AckExplicitPolicy, AckWait: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	return &source{
		yaml: fmt.Sprintf("from: %q, stream: %s, consumer: workers, dead_letter: %s-dead, id: 'header:order-id'", url, name, name),
		send: func(key, body string) {
			t.Helper()
			m := nats.NewMsg(name)
			m.Header["order-id"] = []string{key}
			m.Data = []byte(body)
			if _, err := js.PublishMsg(t.Context(), m); err != nil {
				t.Fatal(err)
			}
		},
		dead: func() (keys []string) {
			s, err := js.Stream(t.Context(), name+"-dead")
			if err != nil {
				t.Fatal(err)
			}
			for seq := uint64(1); ; seq++ {
				m, err := s.GetMsg(t.Context(), seq)
				if err != nil {
					return keys
				}
				keys = append(keys, m.Header["order-id"][0]+" "+m.Header.Get("Stet-Reason"))
			}
		},
		left: func() int {
			info, err := c.Info(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return int(info.NumPending) + info.NumAckPending
		},
	}
}

var sources = map[string]func(*testing.T) *source{"rabbitmq": rabbitSource, "jetstream": streamSource}

func consumeConfig(t *testing.T, upstream, store string, s *source, more string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "stet.yaml")
	text := fmt.Sprintf("upstream: {url: %q}\nstore: %q\nconsume:\n  - {name: orders, %s, post: /payments, lease: 1s, backoff: {longest: 1s}, %s}\n", upstream, store, s.yaml, more)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// The deaths of a consumer, one after the other: at points of a run, and at any time ("").
var deaths = []fault.Point{fault.ClaimAfter, "", fault.HandlerBefore, fault.HandlerAfter, "", fault.ClaimBefore, fault.HandlerAfter, ""}

// dying kills consumers while they have messages. n counts the requests to the service.
func dying(t *testing.T, file string, n func() int) {
	t.Helper()
	for _, point := range deaths {
		before, p := n(), startConsumer(t, file, point)
		if point == "" {
			stettest.Eventually(t, "requests", func() bool { return n() > before+2 })
			p.kill()
		}
		select {
		case <-p.done:
		case <-time.After(time.Minute):
			t.Fatalf("it did not die at %s: %s", point, p.log())
		}
	}
}

// The ledger has no unique constraint: nothing but the claims keeps a payment from being
// made twice.
func TestConsumersThatAreKilledHaveEachMessageSettledOnce(t *testing.T) {
	t.Parallel()
	for name, open := range sources {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := open(t)
			b := openTill(t, rig.Postgres(t).Database(t), "")
			file := consumeConfig(t, b.URL, b.url, s, "settles: service, concurrency: 4, max_attempts: 50")
			const messages = 150
			for i := range messages {
				key := fmt.Sprint("order ", i%50) // three copies of each
				b.does(key, func(_ http.ResponseWriter, r *http.Request, n int) error {
					return b.pay(r, n, nil, func() { time.Sleep(20 * time.Millisecond) }) // a consumer dies in the meantime
				})
				s.send(key, "pay")
			}
			dying(t, file, func() int { return b.asked() })
			p := startConsumer(t, file, "")
			stettest.Eventually(t, "all messages", func() bool { return s.left() == 0 && b.all(t) >= 50 && b.unsettled(t) == 0 })
			for i := range 50 {
				if key := fmt.Sprint("order ", i); b.payments(t, key) != 1 {
					t.Errorf("%s was paid %d times", key, b.payments(t, key))
				}
			}
			if dead := s.dead(); len(dead) > 0 {
				t.Errorf("dead letters: %v", dead)
			}
			p.signal(syscall.SIGTERM)
			<-p.done
		})
	}
}

func (b *till) asked() (n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, tries := range b.tries {
		n += tries
	}
	return n
}

func (b *till) all(t *testing.T) int {
	return rowCount(t, b.pool, "SELECT count(DISTINCT key) FROM ledger")
}

func (b *till) unsettled(t *testing.T) int {
	return rowCount(t, b.pool, "SELECT count(*) FROM stet.operations WHERE state NOT IN ('completed', 'failed')")
}

func rowCount(t *testing.T, pool *pgxpool.Pool, sql string) (n int) {
	t.Helper()
	if err := pool.QueryRow(t.Context(), sql).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// plain is a service without stet. It counts its executions by key.
type plain struct {
	addr string

	mu   sync.Mutex
	did  map[string]int
	wait chan struct{} // if it is set, requests wait for it
}

func newPlain(t *testing.T) *plain {
	t.Helper()
	addr, err := rig.FreeAddr()
	if err != nil {
		t.Fatal(err)
	}
	return &plain{addr: addr, did: map[string]int{}}
}

func (s *plain) start(t *testing.T) {
	t.Helper()
	l, err := net.Listen("tcp", s.addr)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		s.mu.Lock()
		s.did[r.Header.Get("Idempotency-Key")]++
		wait := s.wait
		s.mu.Unlock()
		if wait != nil {
			<-wait
		}
		time.Sleep(5 * time.Millisecond) // a consumer dies in the meantime
		w.WriteHeader(http.StatusNoContent)
	}))
	_ = server.Listener.Close()
	server.Listener = l
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	server.Start()
	t.Cleanup(server.Close)
}

func (s *plain) total() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, times := range s.did {
		n += times
	}
	return n
}

func (s *plain) times(key string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.did[key]
}

// If a service does not settle, its running messages become unknown: each is a dead letter,
// and never sent again.
func TestConsumersThatAreKilledLoseNothingAndSendNothingTwice(t *testing.T) {
	t.Parallel()
	for name, open := range sources {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, service := open(t), newPlain(t)
			service.start(t)
			file := consumeConfig(t, "http://"+service.addr, filepath.Join(t.TempDir(), "stet.db"), s, "concurrency: 4")
			const messages = 150
			for i := range messages {
				s.send(fmt.Sprint("order ", i), "x")
			}
			dying(t, file, service.total)
			startConsumer(t, file, "")
			stettest.Eventually(t, "all messages", func() bool { return s.left() == 0 && service.total() > 0 })
			unknown := map[string]bool{}
			var dead []string
			stettest.Eventually(t, "dead letters and all others", func() bool {
				dead = append(dead, s.dead()...)
				for _, letter := range dead {
					key, _ := strings.CutSuffix(letter, " outcome-unknown")
					unknown[key] = true
				}
				for i := range messages {
					if key := fmt.Sprint("order ", i); service.times(key) == 0 && !unknown[key] {
						return false
					}
				}
				return true
			})
			for i := range messages {
				if key := fmt.Sprint("order ", i); service.times(key) > 1 {
					t.Errorf("%s was sent %d times", key, service.times(key))
				}
			}
			for letter := range unknown {
				if strings.Count(letter, " ") != 1 {
					t.Errorf("a dead letter for another reason: %s", letter)
				}
			}
			if len(unknown) > 4*len(deaths) {
				t.Errorf("%d messages are unknown, more than were with the service", len(unknown))
			}
		})
	}
}

func TestConsumerThatIsKilledWhileItsServiceIsDownLeavesNothingUnknown(t *testing.T) {
	t.Parallel()
	for name, open := range sources {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, service := open(t), newPlain(t)
			url := rig.Postgres(t).Database(t)
			b := openTill(t, url, "")                                                                   // for its pool alone
			file := consumeConfig(t, "http://"+service.addr, url, s, "max_attempts: 1, concurrency: 1") // of several, some may have begun when the first finds out
			const messages = 20
			for i := range messages {
				s.send(fmt.Sprint("order ", i), "x")
			}
			for range 3 {
				p := startConsumer(t, file, "")
				p.saysNow("the service is unavailable")
				stettest.Eventually(t, "runs that end", func() bool {
					return rowCount(t, b.pool, "SELECT count(*) FROM stet.operations WHERE state = 'running'") == 0
				})
				if m := metrics(t, p.admin); !strings.Contains(m, `stet_consume_paused{name="orders"} 1`) {
					t.Errorf("it does not say that it pauses: %s", m)
				}
				p.kill()
			}
			service.start(t)
			p := startConsumer(t, file, "")
			stettest.Eventually(t, "all messages", func() bool { return s.left() == 0 && service.total() >= messages })
			if dead := s.dead(); len(dead) > 0 || service.total() != messages {
				t.Errorf("%d were sent; dead letters: %v", service.total(), dead)
			}
			want := fmt.Sprintf(`stet_consume_messages_total{action="ack",name="orders",reason="handled"} %d`, messages)
			stettest.Eventually(t, "the metrics", func() bool { return strings.Contains(metrics(t, p.admin), want) })
		})
	}
}

func metrics(t *testing.T, admin string) string {
	t.Helper()
	res, err := oneShot.Get(admin + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestConsumerEndsRunningMessagesOnSIGTERM(t *testing.T) {
	s, service := streamSource(t), newPlain(t)
	service.wait = make(chan struct{})
	service.start(t)
	file := consumeConfig(t, "http://"+service.addr, filepath.Join(t.TempDir(), "stet.db"), s, "concurrency: 2")
	for i := range 10 {
		s.send(fmt.Sprint("order ", i), "x")
	}
	p := startConsumer(t, file, "")
	stettest.Eventually(t, "two requests", func() bool { return service.total() == 2 })
	p.signal(syscall.SIGTERM)
	p.saysNow("draining")
	close(service.wait)
	select {
	case <-p.done:
	case <-time.After(time.Minute):
		t.Fatal("it did not end")
	}
	if code := p.cmd.ProcessState.ExitCode(); code != 0 || service.total() != 2 {
		t.Errorf("exit status %d, %d requests", code, service.total())
	}
	if dead := s.dead(); len(dead) > 0 {
		t.Errorf("dead letters: %v", dead)
	}
	startConsumer(t, file, "")
	stettest.Eventually(t, "the others", func() bool { return s.left() == 0 })
	for i := range 10 {
		if key := fmt.Sprint("order ", i); service.times(key) != 1 {
			t.Errorf("%s was sent %d times", key, service.times(key))
		}
	}
}

func TestConsumeWithoutMessagesToConsumeIsRefused(t *testing.T) {
	file := filepath.Join(t.TempDir(), "stet.yaml")
	if err := os.WriteFile(file, []byte("upstream: {url: http://127.0.0.1:1}\nscope: single-tenant\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if status, _, stderr := command(t, "consume", "--config", file); status != exitFailure || !strings.Contains(stderr, "add consume:") {
		t.Errorf("exit status %d: %s", status, stderr)
	}
	if status, _, stderr := command(t, "proxy", "--consume", "--config", file); status != exitFailure || !strings.Contains(stderr, "add consume:") {
		t.Errorf("exit status %d: %s", status, stderr)
	}
	if status, _, stderr := command(t, "consume"); status != exitUsage || !strings.Contains(stderr, "--config") {
		t.Errorf("exit status %d: %s", status, stderr)
	}
}
