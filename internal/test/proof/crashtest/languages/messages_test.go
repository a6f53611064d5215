package languages

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/stet-go/stet/internal/child"
)

// posted are the messages that were published: each asks for a payment of its own.
type posted struct {
	url string

	mu   sync.Mutex
	conn *amqp091.Connection
	ch   *amqp091.Channel
	keys []string
}

const deadQueue = queue + ".dead"

// consumers adds processes that hand messages to the services, and has customers publish some.
func (f *flow) consumers(t *testing.T, services []*lane, kills plan) *posted {
	t.Helper()
	m := &posted{url: f.killer.broker.URL()}
	for _, service := range services {
		config := filepath.Join(t.TempDir(), "stet.yaml")
		text := fmt.Sprintf(`store: %s
upstream: {url: http://%s}
scope: header:X-Account
drain: 1s
consume:
  - {name: messages, from: "%s", queue: %s, queue_type: classic, dead_letter: %s, post: /payments, settles: service, lease: %v, timeout: %v, concurrency: 4,
     max_attempts: 1000000, backoff: {first: 1s, longest: 1s}}
`, f.store, service.Addr, m.url, queue, deadQueue, lease, lease)
		if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		f.killer.add("", kills, func(string) child.Command {
			return foreign(nil, f.program, "consume", "--config", config, "--admin-listen", "off")
		})
	}
	if err := m.publish(t.Context(), ""); err != nil { // which declares the queue
		t.Fatal(err)
	}
	t.Cleanup(m.close)
	f.killer.unasked, f.killer.read = true, func(paid map[string][]int64) { m.ask(f.killer, paid) }
	f.killer.more = func(ctx context.Context, key string) error { return m.publish(ctx, "m-"+key) }
	f.killer.after = func(ctx context.Context) error { return m.paid(ctx, f.killer.url) }
	return m
}

// connect connects, and declares the queue. The caller holds m.mu.
func (m *posted) connect() (err error) {
	if m.conn != nil && !m.conn.IsClosed() && !m.ch.IsClosed() {
		return nil
	}
	if m.conn != nil {
		_ = m.conn.Close()
	}
	if m.conn, err = amqp091.Dial(m.url); err != nil {
		m.conn = nil
		return err
	}
	if m.ch, err = m.conn.Channel(); err == nil {
		err = m.ch.Confirm(false)
	}
	if err == nil {
		_, err = m.ch.QueueDeclare(queue, true, false, false, false, nil)
	}
	if err != nil {
		_ = m.conn.Close()
		m.conn = nil
	}
	return err
}

func (m *posted) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.conn != nil {
		_ = m.conn.Close()
	}
}

// publish publishes a message until it is confirmed, which may be more than once.
func (m *posted) publish(ctx context.Context, key string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for end := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		err := m.connect()
		if err == nil && key == "" {
			return nil
		}
		if err == nil {
			if err = m.once(ctx, key); err == nil {
				m.keys = append(m.keys, key)
				return nil
			}
		}
		if time.Now().After(end) || ctx.Err() != nil {
			return errors.Join(err, context.Cause(ctx))
		}
	}
}

func (m *posted) once(ctx context.Context, key string) error {
	ctx, cancel := context.WithTimeout(ctx, perRequest)
	defer cancel()
	sent, err := m.ch.PublishWithDeferredConfirmWithContext(ctx, "", queue, true, false,
		amqp091.Publishing{DeliveryMode: amqp091.Persistent, MessageId: key, ContentType: "application/json", Body: []byte(body(key))})
	if err != nil {
		return err
	}
	if ok, err := sent.WaitContext(ctx); err != nil || !ok {
		return errors.Join(err, errors.New("a message was not confirmed"))
	}
	return nil
}

// paid waits until there is a payment of each message, or for long enough. Dead letters are
// an error.
func (m *posted) paid(ctx context.Context, database string) error {
	conn, err := pgx.Connect(ctx, database)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	m.mu.Lock()
	defer m.mu.Unlock()
	for end := time.Now().Add(patience); time.Now().Before(end) && ctx.Err() == nil; time.Sleep(200 * time.Millisecond) {
		var n int
		if err := conn.QueryRow(ctx, "SELECT count(DISTINCT key) FROM ledger WHERE key = ANY($1)", m.keys).Scan(&n); err != nil {
			return err
		}
		if n == len(m.keys) {
			break
		}
	}
	if err := m.connect(); err != nil {
		return err
	}
	if q, err := m.ch.QueueDeclarePassive(deadQueue, true, false, false, false, nil); err == nil && q.Messages > 0 {
		return fmt.Errorf("%d messages are dead letters", q.Messages)
	}
	return nil
}

// ask has the judge look for a payment of each message.
func (m *posted) ask(s *killer, paid map[string][]int64) {
	for _, key := range m.keys {
		s.asked(key)
		if ids := paid[key]; len(ids) > 0 {
			s.heard(key, answer{201, fmt.Sprintf(`{"payment": %d}`, ids[0])})
		}
	}
}
