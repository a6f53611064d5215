package kafka

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/stet-go/stet/stetmsg"
	"github.com/stet-go/stet/stetmsg/internal/receiver"
)

// worker handles the records of a partition for as long as it is assigned.
type worker struct {
	r      *Receiver
	cl     *kgo.Client
	p      partition
	ctx    context.Context
	cancel context.CancelFunc
	done   chan struct{}
	wake   chan struct{}

	mu     sync.Mutex
	queue  []*kgo.Record
	paused bool
}

// push adds records; when many are waiting, no more are fetched. A nil worker,
// of a partition that is gone, lets go of them.
func (w *worker) push(recs []*kgo.Record) {
	if w == nil || len(recs) == 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.queue = append(w.queue, recs...)
	if len(w.queue) >= pollRecords && !w.paused {
		w.paused = true
		w.cl.PauseFetchPartitions(map[string][]int32{w.p.topic: {w.p.n}})
	}
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// pop returns the next record, or nil when the worker is to end.
func (w *worker) pop() *kgo.Record {
	for w.ctx.Err() == nil {
		if rec := w.take(); rec != nil {
			return rec
		}
		select {
		case <-w.wake:
		case <-w.ctx.Done():
		}
	}
	return nil
}

func (w *worker) take() *kgo.Record {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.queue) == 0 {
		return nil
	}
	rec := w.queue[0]
	w.queue[0] = nil
	w.queue = w.queue[1:]
	if len(w.queue) < pollRecords/2 && w.paused {
		w.paused = false
		w.cl.ResumeFetchPartitions(map[string][]int32{w.p.topic: {w.p.n}})
	}
	return rec
}

// run handles one record after the other, and each until it is done: marked, and
// with the next commit never seen again.
func (w *worker) run() {
	defer close(w.done)
	for {
		rec := w.pop()
		if rec == nil {
			return
		}
		d := &delivery{w: w, rec: rec}
		for !d.settled {
			d.after = brokerWait // after an error of the broker
			d.n++
			_, _ = w.r.consumer.Handle(w.ctx, rec, d) // Handle has logged the error
			if d.settled {
				break
			}
			receiver.Sleep(w.ctx, d.after)
			if w.ctx.Err() != nil {
				return
			}
		}
		w.cl.MarkCommitRecords(rec)
	}
}

// delivery is the record in hand.
type delivery struct {
	w       *worker
	rec     *kgo.Record
	n       int
	after   time.Duration
	settled bool
}

// Deliveries implements stetmsg.Delivery.
func (d *delivery) Deliveries() int { return d.n }

// Ack implements stetmsg.Delivery.
func (d *delivery) Ack(context.Context) error {
	d.settled = true
	return nil
}

// Retry implements stetmsg.Delivery: the partition waits.
func (d *delivery) Retry(_ context.Context, after time.Duration) error {
	d.after = after
	return nil
}

// DeadLetter implements stetmsg.Delivery.
func (d *delivery) DeadLetter(ctx context.Context, why stetmsg.Decision) error {
	dead := &kgo.Record{Topic: d.w.r.o.DeadLetterTopic, Key: d.rec.Key, Value: d.rec.Value, Headers: append(slices.Clone(d.rec.Headers),
		kgo.RecordHeader{Key: ReasonHeader, Value: []byte(why.Reason)},
		kgo.RecordHeader{Key: ErrorHeader, Value: []byte(why.Text())},
		kgo.RecordHeader{Key: OriginHeader, Value: []byte(origin(d.rec))})}
	if err := d.w.cl.ProduceSync(ctx, dead).FirstErr(); err != nil {
		return err
	}
	d.settled = true
	return nil
}
