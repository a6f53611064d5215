package rig

import (
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/stet-go/stet/internal/test/rig/topic"
)

func TestKafkaKeepsRecordsThroughAKill(t *testing.T) {
	begin := time.Now()
	k := NewKafka(t, 1, nil)
	t.Log("started after", time.Since(begin))
	cl, err := kgo.NewClient(kgo.SeedBrokers(k.Addrs()...))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	if err := topic.Create(t.Context(), cl, 2, 1, "orders"); err != nil {
		t.Fatal(err)
	}
	t.Log("created after", time.Since(begin))
	if err := cl.ProduceSync(t.Context(), &kgo.Record{Topic: "orders", Value: []byte("kept")}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	if err := k.Servers[0].Kill(); err != nil {
		t.Fatal(err)
	}
	if err := k.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Log("started again after", time.Since(begin))
	if err := topic.Await(t.Context(), cl, "orders"); err != nil {
		t.Fatal(err)
	}
	t.Log("served after", time.Since(begin))
	ends, err := topic.Ends(t.Context(), cl, "orders")
	if slices.Sort(ends); err != nil || !slices.Equal(ends, []int64{0, 1}) {
		t.Errorf("after the kill there are %v records, %v", ends, err)
	}
}
