package kafka_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stetmsg"
	"github.com/stet-go/stet/stetmsg/kafka"
)

func TestWaitingRecordsAreBoundedInMemory(t *testing.T) {
	f := newFixture(t)
	const large = 64 // of nearly 1 MB each
	value := make([]byte, 950_000)
	for i := range large {
		rec := &kgo.Record{Topic: "orders", Value: value, Headers: []kgo.RecordHeader{{Key: "id", Value: fmt.Append(nil, "large ", i)}}}
		if err := f.client.ProduceSync(t.Context(), rec).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	release := make(chan struct{})
	c, err := stetmsg.New(f.engine, stetmsg.Options[*kgo.Record]{
		Operation: stetmsg.By(kafka.Envelope, stetmsg.Header("orders", "id")), ErrorLog: quiet,
	}, func(ctx context.Context, rec *kgo.Record) ([]byte, error) {
		if rec.Partition == 0 {
			<-release
		}
		f.mu.Lock()
		f.ran = append(f.ran, stet.FromContext(ctx).Op().Key)
		f.mu.Unlock()
		select {
		case f.changed <- struct{}{}:
		default:
		}
		return nil, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	r, err := kafka.New(c, kafka.Options{Client: []kgo.Opt{kgo.SeedBrokers(f.cluster.ListenAddrs()...)}, Group: "workers",
		Topics: []string{"orders"}, DeadLetterTopic: "dead"})
	if err != nil {
		t.Fatal(err)
	}
	stop := f.run(r)
	defer stop()
	for i := range 200 { // while the other partition is polled again and again
		id := fmt.Sprint(i)
		f.publish(1, id)
		f.until(func(ran []string) bool { return slices.Contains(ran, id) })
	}
	// The hooks of the client do not tell this: to them a record of a paused partition,
	// which the client discards, was polled.
	if n := r.Waiting("orders", 0); n == 0 || n > large/2 {
		t.Errorf("%d large records wait in memory, not 1 to %d", n, large/2)
	}
	close(release)
	f.until(func(ran []string) bool { return slices.Contains(ran, fmt.Sprint("large ", large-1)) })
}
