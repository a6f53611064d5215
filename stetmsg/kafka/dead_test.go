package kafka_test

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/stet-go/stet/stetmsg"
	"github.com/stet-go/stet/stetmsg/kafka"
)

// The client does not take back a record that it has tried to send.
func TestReceiverStopsWhileDeadLettersAreUnconfirmed(t *testing.T) {
	f := newFixture(t)
	down := make(chan struct{})
	stop := f.run(f.receiver(func(_ context.Context, key string) error {
		switch key {
		case "good":
			return nil
		case "last":
			f.cluster.Close()
			close(down)
		}
		return errors.New("no such book")
	}))
	f.publish(0, "first", "good") // so that the client has met the broker
	f.until(func(ran []string) bool { return len(ran) == 1 })
	f.publish(0, "last")
	<-down
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		stop()
	}()
	select {
	case <-stopped:
	case <-time.After(patience):
		t.Fatal("Run does not end")
	}
}

func TestDeadLetterTopicIsNotConsumed(t *testing.T) {
	f := newFixture(t)
	c, err := stetmsg.New(f.engine, stetmsg.Options[*kgo.Record]{
		Operation: stetmsg.By(kafka.Envelope, stetmsg.Header("orders", "id")), ErrorLog: quiet,
	}, func(_ context.Context, rec *kgo.Record) ([]byte, error) {
		f.mu.Lock()
		f.ran = append(f.ran, rec.Topic)
		f.mu.Unlock()
		select {
		case f.changed <- struct{}{}:
		default:
		}
		return nil, errors.New("no such book")
	})
	if err != nil {
		t.Fatal(err)
	}
	r, err := kafka.New(c, kafka.Options{Client: []kgo.Opt{kgo.SeedBrokers(f.cluster.ListenAddrs()...), kgo.ConsumeRegex()}, Group: "workers",
		Topics: []string{"orders|dead"}, DeadLetterTopic: "dead"})
	if err != nil {
		t.Fatal(err)
	}
	stop := f.run(r)
	defer stop()
	if err := f.client.ProduceSync(t.Context(), &kgo.Record{Topic: "dead", Headers: []kgo.RecordHeader{{Key: "id", Value: []byte("old")}}}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	f.publish(0, "new")
	f.until(func(ran []string) bool { return slices.Contains(ran, "orders") })
	f.dead(2)
	f.publish(0, "newer")
	f.until(func(ran []string) bool { return len(ran) >= 2 })
	stop()
	if slices.Contains(f.ran, "dead") {
		t.Errorf("received from %v", f.ran)
	}
}

func TestPartitionContinuesAfterGoexit(t *testing.T) {
	f := newFixture(t)
	stop := f.run(f.receiver(func(_ context.Context, key string) error {
		if key == "last words" {
			runtime.Goexit()
		}
		return nil
	}))
	defer stop()
	f.publish(0, "last words", "good")
	f.until(func(ran []string) bool { return slices.Contains(ran, "good") })
	stop()
	if reason, _ := kafka.Envelope(f.dead(1)[0]).Header(kafka.ReasonHeader); reason != string(stetmsg.Failed) || f.committed(0) != 2 {
		t.Errorf("dead as %q, committed up to %d", reason, f.committed(0))
	}
}
