package rig

import (
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	amqp "github.com/rabbitmq/amqp091-go"
)

func TestRabbitMQKeepsPersistentMessagesThroughAKill(t *testing.T) {
	s := NewRabbitMQ(t, RabbitMQOptions{})
	withQueue := func(f func(*amqp.Channel)) {
		t.Helper()
		conn, err := amqp.Dial(s.URL())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		ch, err := conn.Channel()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ch.QueueDeclare("queue-of-a-kill", true, false, false, false, nil); err != nil {
			t.Fatal(err)
		}
		f(ch)
	}
	// RabbitMQ says that a durable queue is declared up to some seconds before its database
	// has written it down. A server that was stopped has.
	withQueue(func(*amqp.Channel) {})
	if err := s.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	withQueue(func(ch *amqp.Channel) {
		if err := ch.Confirm(false); err != nil {
			t.Fatal(err)
		}
		ok, err := ch.PublishWithDeferredConfirmWithContext(t.Context(), "", "queue-of-a-kill", true, false, amqp.Publishing{DeliveryMode: amqp.Persistent, Body: []byte("kept")})
		if err != nil || !ok.Wait() {
			t.Fatal("not confirmed", err)
		}
	})
	if err := s.Kill(); err != nil {
		t.Fatal(err)
	}
	if left := processes(s.dir); len(left) > 0 {
		t.Fatalf("%d processes are left of a killed server", len(left))
	}
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	withQueue(func(ch *amqp.Channel) {
		m, ok, err := ch.Get("queue-of-a-kill", true)
		if err != nil || !ok || string(m.Body) != "kept" {
			t.Fatalf("after the kill: %q, %v, %v; %s", m.Body, ok, err, s.Log())
		}
	})
	if !strings.Contains(s.Log(), "Server startup complete") {
		t.Error("the log does not say that it started")
	}
}

func TestNATSKeepsStreamsThroughAKill(t *testing.T) {
	s := NewNATS(t)
	stream := func() (jetstream.JetStream, jetstream.Stream) {
		t.Helper()
		nc, err := nats.Connect(s.URL())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(nc.Close)
		js, err := jetstream.New(nc)
		if err != nil {
			t.Fatal(err)
		}
		st, err := js.CreateOrUpdateStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}})
		if err != nil {
			t.Fatal(err)
		}
		return js, st
	}
	js, _ := stream()
	if _, err := js.Publish(t.Context(), "s", []byte("kept")); err != nil {
		t.Fatal(err)
	}
	if err := s.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, st := stream()
	m, err := st.GetMsg(t.Context(), 1)
	if err != nil || string(m.Data) != "kept" {
		t.Fatalf("after the kill: %v, %v", m, err)
	}
}
