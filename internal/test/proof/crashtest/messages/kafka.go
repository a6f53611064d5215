package messages

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/stet-go/stet/internal/child"
	"github.com/stet-go/stet/internal/crash"
	"github.com/stet-go/stet/internal/test/proof/crashtest"
	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/stetmsg"
	"github.com/stet-go/stet/stetmsg/kafka"
)

const (
	topic      = "orders"
	deadTopic  = "dead"
	workers    = "workers"
	partitions = 8

	// A group waits that long for members that were killed.
	sessionTimeout = 3 * time.Second
)

// kafkaServer is kfake, which stands in for Kafka, in the parent's process. It
// keeps its data in files when it is restarted.
type kafkaServer struct {
	cluster *kfake.Cluster
	client  *kgo.Client
	dir     string
	port    int
}

func startKafka(context.Context, *rig.Rig) (broker, error) {
	dir, err := os.MkdirTemp("", "stet-kfake-")
	if err != nil {
		return nil, err
	}
	b := &kafkaServer{dir: dir}
	for range 20 {
		b.port = 12000 + rand.IntN(20000) // below those of outgoing connections, which could keep it from getting it back
		if err = b.start(kfake.SeedTopics(partitions, topic, outgoing), kfake.SeedTopics(1, deadTopic)); err == nil {
			break
		}
	}
	if err == nil {
		b.client, err = kgo.NewClient(kgo.SeedBrokers(b.url()), kgo.RecordPartitioner(kgo.RoundRobinPartitioner()))
	}
	if err != nil {
		b.close()
		return nil, err
	}
	return b, nil
}

// start leaves cluster nil if it fails.
func (b *kafkaServer) start(more ...kfake.Opt) error {
	cluster, err := kfake.NewCluster(append(more, kfake.NumBrokers(1), kfake.Ports(b.port), kfake.DataDir(b.dir), kfake.GroupMinSessionTimeout(time.Second))...)
	if err == nil {
		b.cluster = cluster
	}
	return err
}

// stop does nothing if it has not started again since.
func (b *kafkaServer) stop() {
	if b.cluster != nil {
		b.cluster.Close()
		b.cluster = nil
	}
}

func (b *kafkaServer) url() string { return fmt.Sprintf("127.0.0.1:%d", b.port) }

func (b *kafkaServer) close() {
	if b.client != nil {
		b.client.Close()
	}
	b.stop()
	_ = os.RemoveAll(b.dir)
}

// restart stops it properly.
func (b *kafkaServer) restart(ctx context.Context) error {
	b.stop()
	for {
		err := b.start()
		if err == nil || ctx.Err() != nil {
			return err
		}
		_ = crash.Pause(ctx, 100*time.Millisecond) // the port
	}
}

func (b *kafkaServer) publish(ctx context.Context, ids []string) error {
	recs := make([]*kgo.Record, len(ids))
	for i, id := range ids {
		recs[i] = &kgo.Record{Topic: topic, Value: []byte(id), Headers: []kgo.RecordHeader{{Key: "message-id", Value: []byte(id)}}}
	}
	return b.client.ProduceSync(ctx, recs...).FirstErr()
}

// ends is how many records a topic has, and how many of them the group has done.
func (b *kafkaServer) ends(topic string) (all, done int, err error) {
	if b.cluster == nil {
		return 0, 0, errors.New("the cluster is not running")
	}
	infos := b.cluster.PartitionInfos(topic)
	if len(infos) == 0 {
		return 0, 0, fmt.Errorf("the topic %q is gone", topic)
	}
	for _, p := range infos {
		all += int(p.HighWatermark)
	}
	if group := b.cluster.GroupInfo(workers); group != nil {
		for _, c := range group.Commits[topic] {
			done += int(c.Offset)
		}
	}
	return all, done, nil
}

func (b *kafkaServer) left(context.Context) (left, dead int, err error) {
	all, done, err := b.ends(topic)
	if err != nil {
		return 0, 0, err
	}
	dead, _, err = b.ends(deadTopic)
	return all - done, dead, err
}

func (b *kafkaServer) arrived(ctx context.Context) (letters []crashtest.Letter, err error) {
	all, _, err := b.ends(outgoing)
	if err != nil {
		return nil, err
	}
	cl, err := kgo.NewClient(kgo.SeedBrokers(b.url()), kgo.ConsumeTopics(outgoing))
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
		Client: []kgo.Opt{kgo.SeedBrokers(s.URL), kgo.SessionTimeout(sessionTimeout), kgo.HeartbeatInterval(sessionTimeout / 6), kgo.RebalanceTimeout(2 * sessionTimeout)},
		Group:  workers, Topics: []string{topic}, DeadLetterTopic: deadTopic,
	})
	if err != nil {
		return err
	}
	child.Ready(os.Stdout, "")
	return receiver.Run(ctx)
}

func publisherKafka(_ context.Context, o order) (stetmsg.Publish, func(), error) {
	cl, err := kgo.NewClient(kgo.SeedBrokers(o.URL))
	if err != nil {
		return nil, nil, err
	}
	return kafka.Publisher(cl), cl.Close, nil
}
