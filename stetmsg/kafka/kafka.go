// Package kafka receives records from Kafka for a stetmsg.Consumer, as a member of a consumer
// group.
//
// The records of a partition are handled one after the other, in their order: a record that
// must wait delays the records behind it in its partition. Partitions are handled
// concurrently, up to the consumer's Concurrency. An offset is committed only past records
// that are settled or dead-lettered. When a partition is revoked, the run in progress ends and
// its offset is committed before another member receives the partition. A member that was
// wrongly considered dead finds that its records run, or ran, elsewhere.
//
// Kafka does not count deliveries. Attempts are counted while a partition stays with a member.
// Attempts that crashed a member are counted in the metadata of the group's offsets, so that a
// record that kills its process is dead-lettered in the end. After a crash, the next member
// commits before each of the up to 1,000 records that may have caused it.
//
// Its tests run on Apache Kafka, and on kfake, a stand-in, for faults of the brokers.
package kafka

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stet-go/stet/internal/misuse"
	"github.com/stet-go/stet/stetmsg"
	"github.com/stet-go/stet/stetmsg/internal/receiver"
)

// Headers of a dead letter: the reason, and its origin. A dead letter that is too large for its
// topic is sent without the error, then without its value, with an OmittedHeader, then without
// its own headers, and then without its key. The original record stays at OriginHeader for the
// retention of its topic.
const (
	ReasonHeader  = "stet-reason"
	ErrorHeader   = "stet-error"
	OriginHeader  = "stet-origin" // topic/partition/offset
	OmittedHeader = "stet-omitted"
)

// maxRecord is the largest dead letter that is sent, in bytes. The broker decides about
// smaller ones.
const maxRecord = 64 << 20

const (
	pollRecords = 500                    // in one poll, and waiting in a partition before it is paused
	pollBytes   = 16 << 20               // the same, while waiting
	fetchWait   = 500 * time.Millisecond // Kafka's default, which is not the client's
	commitWait  = 10 * time.Second
	brokerWait  = 200 * time.Millisecond // before a dead letter is tried again
)

// Options configure a Receiver. All but Client are required.
type Options struct {
	// Client are options of the client: seed brokers, TLS and so on. Those of
	// committing and rebalancing are this package's. kgo.FetchMaxWait is 500 ms
	// unless it is set.
	Client []kgo.Opt
	// Group and Topics select the consumed records. With kgo.ConsumeRegex the DeadLetterTopic
	// is never consumed.
	Group  string
	Topics []string
	// DeadLetterTopic gets dead letters, with the key that they came with.
	DeadLetterTopic string
}

// Receiver passes the records of a group's partitions to a consumer.
type Receiver struct {
	consumer *stetmsg.Consumer[*kgo.Record]
	o        Options

	mu      sync.Mutex
	workers map[partition]*worker

	dead chan struct{} // holds one while a dead letter is sent: a batch of several may be too large
}

type partition struct {
	topic string
	n     int32
}

// New returns a receiver. Wrong options are errors of kind stet.KindInvalid.
func New(consumer *stetmsg.Consumer[*kgo.Record], o Options) (*Receiver, error) {
	switch {
	case consumer == nil:
		return nil, misuse.Errorf("stetmsg/kafka: New needs a consumer; stetmsg.New makes one")
	case o.Group == "" || len(o.Topics) == 0 || o.DeadLetterTopic == "":
		return nil, misuse.Errorf("stetmsg/kafka: Options need a Group, Topics and a DeadLetterTopic")
	case slices.Contains(o.Topics, o.DeadLetterTopic):
		return nil, misuse.Errorf("stetmsg/kafka: Options.DeadLetterTopic is among Topics: dead letters would be received again")
	}
	r := &Receiver{consumer: consumer, o: o, workers: make(map[partition]*worker), dead: make(chan struct{}, 1)}
	if err := kgo.ValidateOpts(r.options(context.Background())...); err != nil {
		return nil, misuse.Errorf("stetmsg/kafka: Options.Client: %w", err)
	}
	// Dead letters would be received again. The client refuses the option if Topics are not
	// regular expressions.
	o.Client = append(slices.Clone(o.Client), kgo.ConsumeExcludeTopics("^"+regexp.QuoteMeta(o.DeadLetterTopic)+"$"))
	if excluding := (&Receiver{o: o}).options(context.Background()); kgo.ValidateOpts(excluding...) == nil {
		r.o = o
	}
	return r, nil
}

// options are those of the client; ctx is the workers'.
func (r *Receiver) options(ctx context.Context) []kgo.Opt {
	// A partition that is fetched again waits for the brokers' answer to the fetch
	// without it.
	return append(append([]kgo.Opt{kgo.FetchMaxWait(fetchWait)}, r.o.Client...),
		kgo.ConsumerGroup(r.o.Group),
		kgo.ConsumeTopics(r.o.Topics...),
		kgo.AutoCommitMarks(),
		kgo.AutoCommitInterval(time.Second),
		kgo.BlockRebalanceOnPoll(),
		kgo.RequiredAcks(kgo.AllISRAcks()), // of dead letters
		kgo.ProducerBatchMaxBytes(maxRecord),
		kgo.OnPartitionsAssigned(func(_ context.Context, cl *kgo.Client, ps map[string][]int32) { r.assigned(ctx, cl, ps) }),
		kgo.OnOffsetsFetched(func(_ context.Context, _ *kgo.Client, resp *kmsg.OffsetFetchResponse) error {
			r.fetched(resp)
			return nil
		}),
		kgo.OnPartitionsRevoked(func(ctx context.Context, _ *kgo.Client, ps map[string][]int32) {
			leave(ctx, r.end(ps))
		}),
		kgo.OnPartitionsLost(func(_ context.Context, _ *kgo.Client, ps map[string][]int32) { r.end(ps) }),
	)
}

// Run receives until ctx ends; then it receives no more, ends the runs that it
// has begun, commits, leaves the group and returns nil. While no broker can be
// reached it tries again.
func (r *Receiver) Run(ctx context.Context) error {
	cl, err := kgo.NewClient(r.options(ctx)...)
	if err != nil {
		return fmt.Errorf("stetmsg/kafka: %w", err)
	}
	defer cl.CloseAllowingRebalance()
	var pause receiver.Pause
	for ctx.Err() == nil {
		fetches := cl.PollRecords(ctx, pollRecords)
		var failed error
		fetches.EachError(func(topic string, n int32, err error) {
			failed = errors.Join(failed, fmt.Errorf("%s/%d: %w", topic, n, err))
		})
		fetches.EachPartition(func(p kgo.FetchTopicPartition) { r.worker(p.Topic, p.Partition).push(p.Records) })
		cl.AllowRebalance()
		if failed == nil || ctx.Err() != nil {
			pause.Reset()
			continue
		}
		pause.Wait(ctx, r.consumer.Log(), failed)
	}
	all := make(map[string][]int32)
	r.mu.Lock()
	for p := range r.workers {
		all[p.topic] = append(all[p.topic], p.n)
	}
	r.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commitWait)
	defer cancel()
	leave(ctx, r.end(all))
	cl.AllowRebalance()
	_ = cl.LeaveGroupContext(ctx) // otherwise the brokers notice by its session timeout
	return nil
}

func (r *Receiver) assigned(ctx context.Context, cl *kgo.Client, ps map[string][]int32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for topic, ns := range ps {
		for _, n := range ns {
			w := &worker{r: r, cl: cl, p: partition{topic, n}, wake: make(chan struct{}, 1), gone: make(chan struct{})}
			w.ctx, w.cancel = context.WithCancel(ctx)
			r.workers[w.p] = w
			go w.run() // ends with end
		}
	}
}

func (r *Receiver) worker(topic string, n int32) *worker {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.workers[partition{topic, n}]
}

// end ends the workers of partitions, and waits for their runs.
func (r *Receiver) end(ps map[string][]int32) (ended []*worker) {
	r.mu.Lock()
	for topic, ns := range ps {
		for _, n := range ns {
			if w := r.workers[partition{topic, n}]; w != nil {
				w.cancel()
				ended = append(ended, w)
				delete(r.workers, w.p)
			}
		}
	}
	r.mu.Unlock()
	for _, w := range ended {
		<-w.gone
		w.cl.ResumeFetchPartitions(map[string][]int32{w.p.topic: {w.p.n}}) // it may be assigned again
	}
	return ended
}

// Envelope returns the headers of a record.
func Envelope(rec *kgo.Record) stetmsg.Envelope {
	get := func(name string) (string, bool) {
		for _, h := range rec.Headers {
			if h.Key == name {
				return string(h.Value), true
			}
		}
		return "", false
	}
	contentType, _ := get("content-type")
	names := func() (all []string) {
		for _, h := range rec.Headers {
			all = append(all, h.Key)
		}
		return all
	}
	return stetmsg.Envelope{Header: get, Names: names, ContentType: contentType, Body: rec.Value}
}

// Part returns rec with another value, for cloudevents.Split.
func Part(rec *kgo.Record, contentType string, body []byte) *kgo.Record {
	part := *rec
	part.Value = body
	part.Headers = slices.DeleteFunc(slices.Clone(rec.Headers), func(h kgo.RecordHeader) bool { return h.Key == "content-type" })
	part.Headers = append(part.Headers, kgo.RecordHeader{Key: "content-type", Value: []byte(contentType)})
	return &part
}

func origin(rec *kgo.Record) string {
	return rec.Topic + "/" + strconv.Itoa(int(rec.Partition)) + "/" + strconv.FormatInt(rec.Offset, 10)
}
