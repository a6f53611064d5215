package intake_test

import (
	"context"
	"crypto/md5"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	rabbit "github.com/rabbitmq/amqp091-go"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/stet-go/stet/internal/test/rig"
)

// message is one to be published.
type message struct {
	contentType, body string
	headers           map[string]string
	key               string // of a partition or a group, where there are some
}

// letter is a dead letter.
type letter struct{ reason, body string }

// broker is a broker with a source of messages, and a place for dead letters.
type broker interface {
	yaml() string // from:, and what else names the source
	send(t *testing.T, ms ...message)
	dead(t *testing.T) []letter
	left(t *testing.T) int // messages that are not acknowledged; -1: it does not say
}

// brokers make one for a test.
var brokers = map[string]func(*testing.T) broker{
	"rabbitmq": newRabbitMQ, "jetstream": newJetStream, "kafka": newKafka, "sqs": newSQS,
}

// rabbitMQ is a queue.
type rabbitMQ struct{ url, queue string }

func newRabbitMQ(t *testing.T) broker {
	b := &rabbitMQ{rig.RabbitMQ(t).URL(), rig.Named(t, ".")}
	b.channel(t, func(ch *rabbit.Channel) {
		if _, err := ch.QueueDeclare(b.queue, true, false, false, false, rabbit.Table{"x-queue-type": "quorum"}); err != nil {
			t.Fatal(err)
		}
	})
	return b
}

func (b *rabbitMQ) channel(t *testing.T, use func(*rabbit.Channel)) {
	t.Helper()
	conn, err := rabbit.Dial(b.url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	use(ch)
}

func (b *rabbitMQ) yaml() string { return fmt.Sprintf("from: %q, queue: %s", b.url, b.queue) }

func (b *rabbitMQ) send(t *testing.T, ms ...message) {
	t.Helper()
	b.channel(t, func(ch *rabbit.Channel) {
		if err := ch.Confirm(false); err != nil {
			t.Fatal(err)
		}
		for _, m := range ms {
			p := rabbit.Publishing{DeliveryMode: rabbit.Persistent, ContentType: m.contentType, Body: []byte(m.body), Headers: rabbit.Table{}}
			for name, v := range m.headers {
				p.Headers[name] = v
			}
			sent, err := ch.PublishWithDeferredConfirmWithContext(context.Background(), "", b.queue, true, false, p)
			if err != nil || !sent.Wait() {
				t.Fatal("not confirmed", err)
			}
		}
	})
}

func (b *rabbitMQ) dead(t *testing.T) (all []letter) {
	t.Helper()
	conn, err := rabbit.Dial(b.url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close() // unacknowledged messages return to the queue
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	for {
		m, ok, err := ch.Get(b.queue+".dead", false)
		if err != nil || !ok {
			return all
		}
		reason, _ := m.Headers["stet-reason"].(string)
		all = append(all, letter{reason, string(m.Body)})
	}
}

func (b *rabbitMQ) left(*testing.T) int { return -1 }

// jetStream is a stream with a consumer.
type jetStream struct {
	url, name string
	js        jetstream.JetStream
	consumer  jetstream.Consumer
}

func newJetStream(t *testing.T) broker {
	b := &jetStream{url: rig.NATS(t).URL(), name: rig.Named(t, "-")}
	nc, err := nats.Connect(b.url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	if b.js, err = jetstream.New(nc); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{b.name, b.name + "-dead"} {
		if _, err := b.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: name, Subjects: []string{name}}); err != nil {
			t.Fatal(err)
		}
	}
	b.consumer, err = b.js.CreateConsumer(t.Context(), b.name, jetstream.ConsumerConfig{Durable: "workers", AckPolicy: jetstream.AckExplicitPolicy, MaxAckPending: b.pending(t), AckWait: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// pending is how many messages may be in flight: one where the test is about the order.
func (*jetStream) pending(t *testing.T) int {
	if strings.Contains(t.Name(), "Order") {
		return 1
	}
	return 100
}

func (b *jetStream) yaml() string {
	return fmt.Sprintf("from: %q, stream: %s, consumer: workers, dead_letter: %s-dead", b.url, b.name, b.name)
}

func (b *jetStream) send(t *testing.T, ms ...message) {
	t.Helper()
	for _, m := range ms {
		msg := nats.NewMsg(b.name)
		msg.Data = []byte(m.body)
		if m.contentType != "" {
			msg.Header.Set("Content-Type", m.contentType)
		}
		for name, v := range m.headers {
			msg.Header[name] = []string{v}
		}
		if _, err := b.js.PublishMsg(t.Context(), msg); err != nil {
			t.Fatal(err)
		}
	}
}

func (b *jetStream) dead(t *testing.T) (all []letter) {
	t.Helper()
	stream, err := b.js.Stream(t.Context(), b.name+"-dead")
	if err != nil {
		t.Fatal(err)
	}
	for seq := uint64(1); ; seq++ {
		m, err := stream.GetMsg(t.Context(), seq)
		if err != nil {
			return all
		}
		all = append(all, letter{m.Header.Get("Stet-Reason"), string(m.Data)})
	}
}

func (b *jetStream) left(t *testing.T) int {
	t.Helper()
	info, err := b.consumer.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return int(info.NumPending) + info.NumAckPending
}

// kafka is a topic of a stand-in, with two partitions.
type kafka struct {
	cluster *kfake.Cluster
	client  *kgo.Client
}

func newKafka(t *testing.T) broker {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(2, "orders"), kfake.SeedTopics(1, "dead"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	client, err := kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return &kafka{cluster, client}
}

func (b *kafka) yaml() string {
	return fmt.Sprintf("from: %q, topics: [orders], group: workers, dead_letter: dead", "kafka://"+strings.Join(b.cluster.ListenAddrs(), ","))
}

func (b *kafka) send(t *testing.T, ms ...message) {
	t.Helper()
	for _, m := range ms {
		rec := &kgo.Record{Topic: "orders", Value: []byte(m.body)}
		if m.key != "" {
			rec.Key = []byte(m.key)
		}
		if m.contentType != "" {
			rec.Headers = append(rec.Headers, kgo.RecordHeader{Key: "content-type", Value: []byte(m.contentType)})
		}
		for name, v := range m.headers {
			rec.Headers = append(rec.Headers, kgo.RecordHeader{Key: name, Value: []byte(v)})
		}
		if err := b.client.ProduceSync(t.Context(), rec).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
}

func (b *kafka) dead(t *testing.T) (all []letter) {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(b.cluster.ListenAddrs()...), kgo.ConsumeTopics("dead"))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		fetches := client.PollFetches(ctx)
		cancel()
		if fetches.NumRecords() == 0 {
			return all
		}
		fetches.EachRecord(func(rec *kgo.Record) {
			l := letter{body: string(rec.Value)}
			for _, h := range rec.Headers {
				if h.Key == "stet-reason" {
					l.reason = string(h.Value)
				}
			}
			all = append(all, l)
		})
	}
}

func (b *kafka) left(*testing.T) int { return -1 }

// simpleQueue stands in for SQS: it speaks as much of its protocol as is used.
type simpleQueue struct {
	server *httptest.Server
	name   string

	mu     sync.Mutex
	n      int
	queues map[string][]*stored
}

type stored struct {
	id, body, group string
	attributes      map[string]any
	count           int
	visible         time.Time
}

func newSQS(t *testing.T) broker {
	t.Setenv("AWS_ACCESS_KEY_ID", "none")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "nothing")
	t.Setenv("AWS_REGION", "eu-central-1")
	b := &simpleQueue{queues: map[string][]*stored{}, name: "orders"}
	if strings.Contains(t.Name(), "Order") {
		b.name = "orders.fifo"
	}
	b.server = httptest.NewServer(b)
	t.Cleanup(b.server.Close)
	return b
}

func (b *simpleQueue) queue(name string) string { return b.server.URL + "/123456789012/" + name }

func (b *simpleQueue) yaml() string {
	return fmt.Sprintf("from: %q, dead_letter: %q, visibility: 3s", b.queue(b.name), b.queue("dead-"+b.name))
}

func (b *simpleQueue) add(queue string, m *stored) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.n++
	m.id = strconv.Itoa(b.n)
	b.queues[queue] = append(b.queues[queue], m)
}

func (b *simpleQueue) send(_ *testing.T, ms ...message) {
	for _, m := range ms {
		s := &stored{body: m.body, group: m.key, attributes: map[string]any{}}
		if m.contentType != "" {
			s.attributes["content-type"] = map[string]string{"DataType": "String", "StringValue": m.contentType}
		}
		for name, v := range m.headers {
			s.attributes[name] = map[string]string{"DataType": "String", "StringValue": v}
		}
		b.add(b.queue(b.name), s)
	}
}

func (b *simpleQueue) dead(*testing.T) (all []letter) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, m := range b.queues[b.queue("dead-"+b.name)] {
		l := letter{body: m.body}
		if a, ok := m.attributes["stet-reason"].(map[string]any); ok {
			l.reason, _ = a["StringValue"].(string)
		}
		all = append(all, l)
	}
	return all
}

func (b *simpleQueue) left(*testing.T) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.queues[b.queue(b.name)])
}

func (b *simpleQueue) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var c struct {
		QueueURL            string `json:"QueueUrl"`
		MessageBody         string
		MessageAttributes   map[string]any
		MaxNumberOfMessages int
		WaitTimeSeconds     int
		VisibilityTimeout   int
		ReceiptHandle       string
	}
	if err := json.NewDecoder(r.Body).Decode(&c); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	var out any = struct{}{}
	switch _, name, _ := strings.Cut(r.Header.Get("X-Amz-Target"), "."); name {
	case "SendMessage":
		b.add(c.QueueURL, &stored{body: c.MessageBody, attributes: c.MessageAttributes})
		out = map[string]any{"MessageId": "1", "MD5OfMessageBody": sum(c.MessageBody)}
	case "ReceiveMessage":
		messages := b.take(c.QueueURL, c.MaxNumberOfMessages, c.VisibilityTimeout)
		for end := time.Now().Add(time.Duration(c.WaitTimeSeconds) * time.Second); len(messages) == 0 && time.Now().Before(end) && r.Context().Err() == nil; {
			time.Sleep(5 * time.Millisecond)
			messages = b.take(c.QueueURL, c.MaxNumberOfMessages, c.VisibilityTimeout)
		}
		out = map[string]any{"Messages": messages}
	case "DeleteMessage", "ChangeMessageVisibility":
		b.change(c.QueueURL, c.ReceiptHandle, name == "DeleteMessage", c.VisibilityTimeout)
	}
	w.Header().Set("Content-Type", "application/x-amz-json-1.0")
	_ = json.NewEncoder(w).Encode(out)
}

// take passes visible messages; none of a group that has an invisible one.
func (b *simpleQueue) take(queue string, most, visibility int) (messages []any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	blocked := map[string]bool{}
	for _, m := range b.queues[queue] {
		if m.visible.After(time.Now()) && m.group != "" {
			blocked[m.group] = true
		}
	}
	for _, m := range b.queues[queue] {
		if m.visible.After(time.Now()) || blocked[m.group] || len(messages) == most {
			continue
		}
		m.visible = time.Now().Add(time.Duration(visibility) * time.Second)
		m.count++
		messages = append(messages, map[string]any{"MessageId": m.id, "ReceiptHandle": m.id, "Body": m.body, "MD5OfBody": sum(m.body), "MessageAttributes": m.attributes,
			"Attributes": map[string]string{"ApproximateReceiveCount": strconv.Itoa(m.count), "MessageGroupId": m.group}})
	}
	return messages
}

func (b *simpleQueue) change(queue, id string, remove bool, visibility int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, m := range b.queues[queue] {
		switch {
		case m.id != id:
		case remove:
			b.queues[queue] = append(b.queues[queue][:i:i], b.queues[queue][i+1:]...)
			return
		default:
			m.visible = time.Now().Add(time.Duration(visibility) * time.Second)
		}
	}
}

func sum(s string) string {
	h := md5.Sum([]byte(s)) // SQS's checksum
	return hex.EncodeToString(h[:])
}
