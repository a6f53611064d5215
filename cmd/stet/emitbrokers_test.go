package main

import (
	"context"
	"crypto/md5"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	rabbit "github.com/rabbitmq/amqp091-go"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/fault"
	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/store"
)

// pays pays once, and wants the message of that under its ID; it is the sender's only one.
func (s *sender) pays(t *testing.T, p *instance, key string) {
	t.Helper()
	if status, body, _ := pay(t, p.url, key); status != 201 {
		t.Fatalf("%d %s", status, body)
	}
	stettest.Eventually(t, "the message of "+key+" arrives", func() bool { return s.times(key, 0) > 0 })
}

func TestJetStreamGetsEmittedMessagesAfterAnOutage(t *testing.T) {
	server := rig.NewNATS(t)
	s := openSender(t, filepath.Join(t.TempDir(), "stet.db"), "audit.paid")
	receive := func() {
		nc, err := nats.Connect(server.URL())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(nc.Close)
		js, err := jetstream.New(nc)
		if err != nil {
			t.Fatal(err)
		}
		stream, err := js.CreateOrUpdateStream(t.Context(), jetstream.StreamConfig{Name: "audit", Subjects: []string{"audit.>"}})
		if err != nil {
			t.Fatal(err)
		}
		c, err := stream.CreateOrUpdateConsumer(t.Context(), jetstream.ConsumerConfig{AckPolicy: jetstream.AckNonePolicy})
		if err != nil {
			t.Fatal(err)
		}
		consuming, err := c.Consume(func(m jetstream.Msg) { s.took(m.Headers().Get(nats.MsgIdHdr)) })
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(consuming.Stop)
	}
	receive()
	p := s.start(t, "{to: 'audit.*', by: '"+server.URL()+"'}")
	s.pays(t, p, "before")
	_ = server.Kill()
	if status, body, _ := pay(t, p.url, "between"); status != 201 {
		t.Fatalf("%d %s", status, body)
	}
	if err := server.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	receive()
	stettest.Eventually(t, "the message emitted in between arrives", func() bool { return s.times("between", 0) > 0 })
}

func TestKafkaGetsEmittedMessages(t *testing.T) {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "ledger"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	s := openSender(t, filepath.Join(t.TempDir(), "stet.db"), "ledger")
	client, err := kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...), kgo.ConsumeTopics("ledger"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			client.PollFetches(ctx).EachRecord(func(r *kgo.Record) {
				for _, h := range r.Headers {
					if h.Key == "message-id" {
						s.took(string(h.Value))
					}
				}
			})
		}
	}()
	t.Cleanup(func() { cancel(); <-done; client.Close() })
	p := s.start(t, "{by: 'kafka://"+cluster.ListenAddrs()[0]+"'}")
	s.pays(t, p, "k")
}

// A stand-in for SQS knows one call of its protocol.
func TestSQSGetsEmittedMessages(t *testing.T) {
	for name, value := range map[string]string{"AWS_ACCESS_KEY_ID": "none", "AWS_SECRET_ACCESS_KEY": "nothing", "AWS_REGION": "eu-central-1"} {
		t.Setenv(name, value)
	}
	s := openSender(t, filepath.Join(t.TempDir(), "stet.db"), "mail")
	sqs := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var in struct {
			QueueURL                                          string `json:"QueueUrl"`
			MessageBody, MessageGroupID, MessageDeduplication string
			MessageAttributes                                 map[string]struct{ StringValue string }
		}
		body, _ := io.ReadAll(r.Body)
		if err := json.Unmarshal(body, &in); err != nil || r.Header.Get("X-Amz-Target") != "AmazonSQS.SendMessage" || in.QueueURL != "http://"+r.Host+"/123456789012/mail" {
			t.Errorf("%s %s: %v", r.Header.Get("X-Amz-Target"), body, err)
		}
		s.took(in.MessageAttributes["message-id"].StringValue)
		sum := md5.Sum([]byte(in.MessageBody))
		w.Header().Set("Content-Type", "application/x-amz-json-1.0")
		_, _ = fmt.Fprintf(w, `{"MessageId":"1","MD5OfMessageBody":%q}`, hex.EncodeToString(sum[:]))
	}))
	t.Cleanup(sqs.Close)
	p := s.start(t, "{by: 'sqs+"+sqs.URL+"/123456789012/mail'}")
	s.pays(t, p, "k")
	if n := s.times("k", 0); n != 1 {
		t.Errorf("it was sent %d times", n)
	}
}

// What one service emits another consumes, and emits on: each of the two runs once.
func TestConsumerEmitsMessagesOfResponses(t *testing.T) {
	server := rig.RabbitMQ(t)
	queue := "emit-" + stet.NewKey()
	conn, err := rabbit.Dial(server.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ch.QueueDeclare(queue, true, false, false, false, rabbit.Table{"x-queue-type": "quorum"}); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	first := openSender(t, filepath.Join(dir, "first.db"), queue)
	second := openSender(t, filepath.Join(dir, "second.db"), "on")
	file := filepath.Join(dir, "consume.yaml")
	text := fmt.Sprintf("upstream: {url: %q}\nstore: %s\nconsume:\n  - {name: orders, from: %q, queue: %s, post: /orders}\nrelay: {retry: 1s, targets: [{by: %q}]}\n",
		second.URL, second.url, server.URL(), queue, second.hook.URL)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	consumer := exec.Command(os.Args[0], "consume", "--config", file, "--admin-listen", "off")
	consumer.Env = append(os.Environ(), commandEnv+"=1")
	consumer.Stderr = os.Stderr
	if err := consumer.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = consumer.Process.Kill(); _ = consumer.Wait() })
	p := first.start(t, "{by: '"+server.URL()+"'}")
	if status, body, _ := pay(t, p.url, "k"); status != 201 {
		t.Fatalf("%d %s", status, body)
	}
	id := stet.DeriveKey("stet/message", store.Digest("", "single-tenant", "k").String(), "0")
	stettest.Eventually(t, "it is emitted on", func() bool {
		second.mu.Lock()
		defer second.mu.Unlock()
		return len(second.got) == 1
	})
	second.mu.Lock()
	defer second.mu.Unlock()
	if second.runs[id] != 1 || len(second.runs) != 1 {
		t.Errorf("the second service has run %v; want %s, once", second.runs, id)
	}
}

// If the sidecar dies, messages emitted by SQL are sent with the outcome.
func TestSidecarThatDiesLosesNoMessageThatWasEmittedBySQL(t *testing.T) {
	for _, point := range []fault.Point{fault.HandlerBefore, fault.HandlerAfter, fault.ResponseBefore, fault.RelayBefore, fault.RelaySent, fault.RelayAfter} {
		t.Run(string(point), func(t *testing.T) {
			url := rig.Postgres(t).Database(t) // a message of another point would end the sidecar early
			b := openTill(t, url, "")
			s := openSender(t, url)
			s.Server = b.Server
			start := func() *instance {
				return s.startWith(t, "settles: service, lease: 500ms", "{by: '"+s.hook.URL+"'}")
			}
			key := string(point)
			b.does(key, func(w http.ResponseWriter, r *http.Request, n int) error {
				return pgx.BeginFunc(context.Background(), b.own, func(tx pgx.Tx) error {
					const sql = "SELECT stet.stet_emit($1, 'paid', convert_to($2, 'UTF8')), stet.stet_settle($1, 201, body => convert_to($2, 'UTF8'))"
					if _, err := tx.Exec(context.Background(), "INSERT INTO ledger VALUES ($1)", key); err != nil {
						return err
					}
					_, err := tx.Exec(context.Background(), sql, r.Header.Get("Stet-Claim"), fmt.Sprintf("payment %s by try %d", key, n))
					return err
				})
			})
			t.Setenv(dieEnv, key)
			dying := start()
			pay(t, dying.url, key)
			select {
			case <-dying.done:
			case <-time.After(30 * time.Second):
				t.Fatal("the sidecar does not pass this point")
			}
			t.Setenv(dieEnv, "")
			b.paid(t, start(), key)
			stettest.Eventually(t, "the message arrives", func() bool { return s.times(key, 0) > 0 })
		})
	}
}
