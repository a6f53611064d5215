package messages

import (
	"context"
	"errors"
	"os"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/stet-go/stet/internal/child"
	"github.com/stet-go/stet/internal/test/proof/crashtest"
	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/internal/test/rig/topic"
	"github.com/stet-go/stet/stetmsg"
	"github.com/stet-go/stet/stetmsg/kafka"
)

const (
	orders     = "orders"
	deadTopic  = "dead"
	workers    = "workers"
	partitions = 8

	// A group waits that long for members that were killed.
	sessionTimeout = 3 * time.Second
)

// kafkaCluster is a cluster of Apache Kafka, of one server or three.
type kafkaCluster struct {
	cluster *rig.Kafka
	client  *kgo.Client
}

func startKafka(n int) func(context.Context, *rig.Rig) (broker, error) {
	return func(ctx context.Context, r *rig.Rig) (broker, error) {
		cluster, err := r.StartKafka(ctx, n, nil)
		if err != nil {
			return nil, err
		}
		client, err := kgo.NewClient(kgo.SeedBrokers(cluster.Addrs()...), kgo.RecordPartitioner(kgo.RoundRobinPartitioner()))
		if err != nil {
			return nil, err
		}
		b := &kafkaCluster{cluster, client}
		err = topic.Create(ctx, client, partitions, int16(n), orders, outgoing)
		if err == nil {
			err = topic.Create(ctx, client, 1, int16(n), deadTopic)
		}
		if err != nil {
			b.close()
			return nil, err
		}
		return b, nil
	}
}

func (b *kafkaCluster) url() string { return strings.Join(b.cluster.Addrs(), ",") }

func (b *kafkaCluster) close() { b.client.Close() }

// restart kills the leader of a partition, and starts it.
func (b *kafkaCluster) restart(ctx context.Context) error {
	leaders, err := topic.Leaders(ctx, b.client, orders)
	if err != nil {
		return err
	}
	victim := b.cluster.Servers[max(leaders[0], 1)-1]
	if err := errors.Join(victim.Kill(), victim.Start(ctx)); err != nil {
		return err
	}
	return topic.Await(ctx, b.client, orders, outgoing, deadTopic)
}

func (b *kafkaCluster) publish(ctx context.Context, ids []string) error {
	recs := make([]*kgo.Record, len(ids))
	for i, id := range ids {
		recs[i] = &kgo.Record{Topic: orders, Value: []byte(id), Headers: []kgo.RecordHeader{{Key: "message-id", Value: []byte(id)}}}
	}
	return b.client.ProduceSync(ctx, recs...).FirstErr()
}

// ends is how many records a topic has.
func (b *kafkaCluster) ends(ctx context.Context, name string) (all int, err error) {
	ends, err := topic.Ends(ctx, b.client, name)
	for _, n := range ends {
		all += int(n)
	}
	return all, err
}

func (b *kafkaCluster) left(ctx context.Context) (left, dead int, err error) {
	all, err := b.ends(ctx, orders)
	if err != nil {
		return 0, 0, err
	}
	done, err := topic.Committed(ctx, b.client, workers, orders)
	if err != nil {
		return 0, 0, err
	}
	dead, err = b.ends(ctx, deadTopic)
	return all - int(done), dead, err
}

func (b *kafkaCluster) arrived(ctx context.Context) (letters []crashtest.Letter, err error) {
	all, err := b.ends(ctx, outgoing)
	if err != nil {
		return nil, err
	}
	cl, err := kgo.NewClient(kgo.SeedBrokers(b.cluster.Addrs()...), kgo.ConsumeTopics(outgoing))
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeoutCause(ctx, drainTimeout, errors.New("the topic could not be read"))
	defer cancel()
	for len(letters) < all {
		for _, rec := range cl.PollFetches(ctx).Records() {
			id, _ := kafka.Envelope(rec).Header(stetmsg.IDHeader)
			l, err := readLetter(id, rec.Value)
			if err != nil {
				return nil, err
			}
			letters = append(letters, l)
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
	}
	return letters, nil
}

func consumeKafka(ctx context.Context, s *shop) error {
	consumer, err := newConsumer(s, kafka.Envelope)
	if err != nil {
		return err
	}
	receiver, err := kafka.New(consumer, kafka.Options{
		Client: []kgo.Opt{kgo.SeedBrokers(strings.Split(s.URL, ",")...), kgo.SessionTimeout(sessionTimeout), kgo.HeartbeatInterval(sessionTimeout / 6), kgo.RebalanceTimeout(2 * sessionTimeout)},
		Group:  workers, Topics: []string{orders}, DeadLetterTopic: deadTopic,
	})
	if err != nil {
		return err
	}
	child.Ready(os.Stdout, "")
	return receiver.Run(ctx)
}

func publisherKafka(_ context.Context, o order) (stetmsg.Publish, func(), error) {
	cl, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(o.URL, ",")...))
	if err != nil {
		return nil, nil, err
	}
	return kafka.Publisher(cl), cl.Close, nil
}
