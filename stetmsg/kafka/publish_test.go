package kafka_test

import (
	"context"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stetmsg"
	"github.com/stet-go/stet/stetmsg/kafka"
)

func TestPublishedRecordHasItsID(t *testing.T) {
	f := newFixture(t)
	publish := kafka.Publisher(f.client)
	err := publish(t.Context(), []stet.Message{
		{ID: "id-1", To: "orders", Key: "customer-7", Header: map[string]string{"kind": "shipped"}, Body: []byte("five books")},
		{ID: "id-2", To: "orders", Key: "customer-7", Body: []byte("six books")},
	})
	if err != nil {
		t.Fatal(err)
	}
	reader, err := kgo.NewClient(kgo.SeedBrokers(f.cluster.ListenAddrs()...), kgo.ConsumeTopics("orders"))
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	var recs []*kgo.Record
	wait, stop := context.WithTimeout(t.Context(), patience)
	defer stop()
	for len(recs) < 2 {
		recs = append(recs, reader.PollFetches(wait).Records()...)
		if wait.Err() != nil {
			t.Fatalf("%d records arrived", len(recs))
		}
	}
	id, _ := kafka.Envelope(recs[0]).Header(stetmsg.IDHeader)
	kind, _ := kafka.Envelope(recs[0]).Header("kind")
	if id != "id-1" || kind != "shipped" || string(recs[0].Key) != "customer-7" || string(recs[0].Value) != "five books" || recs[0].Partition != recs[1].Partition {
		t.Errorf("got %+v; want id == \"id-1\", kind == \"shipped\", string(recs[0].Key) == \"customer-7\", string(recs[0].Value) == \"five books\", recs[0].Partition == recs[1].Partition", recs[0])
	}
}

// TestPublisherReturnsWithItsContext: the client has met the broker, and
// cannot know whether the next record arrives.
func TestPublisherReturnsWithItsContext(t *testing.T) {
	f := newFixture(t)
	publish := kafka.Publisher(f.client)
	message := []stet.Message{{ID: "id-1", To: "orders", Body: []byte("five books")}}
	if err := publish(t.Context(), message); err != nil {
		t.Fatal(err)
	}
	f.cluster.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- publish(ctx, message) }() // ends with the client at the latest
	select {
	case err := <-ended:
		if err == nil {
			t.Error("published without a broker")
		}
	case <-time.After(patience):
		t.Error("it did not end with its context")
	}
}
