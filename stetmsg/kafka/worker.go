package kafka

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/stet-go/stet/internal/timer"
	"github.com/stet-go/stet/stetmsg"
)

// worker handles the records of an assigned partition.
type worker struct {
	r      *Receiver
	cl     *kgo.Client
	p      partition
	ctx    context.Context
	cancel context.CancelFunc
	gone   chan struct{}
	wake   chan struct{}

	pending int       // records that are done since the last commit of run's
	current *delivery // of run

	mu sync.Mutex
	backlog
	progress
}

// backlog is the records that wait.
type backlog struct {
	queue  []*kgo.Record
	bytes  int // of them
	paused bool
}

// progress is what the next member of the group must know.
type progress struct {
	before   note      // of the previous member
	handled  int       // records that are done
	farewell *farewell // nil before the first record
}

// push adds records; when many are waiting, no more are fetched. A nil worker,
// of a partition that is gone, releases them.
func (w *worker) push(recs []*kgo.Record) {
	if w == nil || len(recs) == 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.queue = append(w.queue, recs...)
	for _, rec := range recs {
		w.bytes += size(rec)
	}
	if (len(w.queue) >= pollRecords || w.bytes >= pollBytes) && !w.paused {
		w.paused = true
		w.cl.PauseFetchPartitions(map[string][]int32{w.p.topic: {w.p.n}})
	}
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// pop returns the next record, or nil when the worker must end.
func (w *worker) pop() *kgo.Record {
	for w.ctx.Err() == nil {
		if rec := w.first(); rec != nil {
			return rec
		}
		select {
		case <-w.wake:
		case <-w.ctx.Done():
		}
	}
	return nil
}

// first takes the first record that waits; nil if there is none.
func (w *worker) first() *kgo.Record {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.queue) == 0 {
		return nil
	}
	rec := w.queue[0]
	w.queue[0] = nil
	w.queue = w.queue[1:]
	w.bytes -= size(rec)
	if len(w.queue) < pollRecords/2 && w.bytes < pollBytes/2 && w.paused {
		w.paused = false
		w.cl.ResumeFetchPartitions(map[string][]int32{w.p.topic: {w.p.n}})
	}
	return rec
}

// size is the approximate number of bytes of a record.
func size(rec *kgo.Record) int {
	n := len(rec.Key) + len(rec.Value)
	for _, h := range rec.Headers {
		n += len(h.Key) + len(h.Value)
	}
	return n
}

// run handles one record after the other, and each until it is done: marked, and
// with the next commit never seen again. Where a handler ends its goroutine, with
// runtime.Goexit, another one continues.
func (w *worker) run() {
	ended := false
	defer func() {
		if ended {
			close(w.gone)
		} else {
			go w.run()
		}
	}()
	for w.take() && w.current.handled() {
		w.marked(w.current.rec)
		w.current = nil
	}
	ended = true
}

// take takes the next record, unless one is in flight. It returns false if the
// worker is to end.
func (w *worker) take() bool {
	if w.current != nil {
		return true
	}
	rec := w.pop()
	if rec == nil {
		return false
	}
	died, ok := w.attempts(rec)
	w.current = &delivery{w: w, rec: rec, n: died}
	return ok
}

// delivery is the record in flight.
type delivery struct {
	w       *worker
	rec     *kgo.Record
	n       int
	tried   bool
	after   time.Duration
	settled bool
}

// handled handles the record until it is done, or the worker must end.
func (d *delivery) handled() bool {
	for !d.settled {
		if d.tried && !timer.Sleep(d.w.ctx, d.after) {
			return false
		}
		d.tried, d.after = true, brokerWait // after an error of the broker
		d.n++
		_, _ = d.w.r.consumer.Handle(d.w.ctx, d.rec, d) // Handle has logged the error
	}
	return true
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
	patience, stop := d.w.patience(ctx)
	defer stop()
	dead := d.w.r.dead
	select {
	case dead <- struct{}{}:
		defer func() { <-dead }()
	case <-patience.Done():
		return context.Cause(patience)
	}
	said := []kgo.RecordHeader{{Key: OriginHeader, Value: []byte(origin(d.rec))}, {Key: ReasonHeader, Value: []byte(why.Reason)}}
	text := kgo.RecordHeader{Key: ErrorHeader, Value: []byte(why.Text())}
	omitted := kgo.RecordHeader{Key: OmittedHeader, Value: []byte("value")}
	var err error
	for _, rec := range []kgo.Record{
		{Key: d.rec.Key, Value: d.rec.Value, Headers: append(slices.Clone(d.rec.Headers), append(said, text)...)},
		{Key: d.rec.Key, Value: d.rec.Value, Headers: append(slices.Clone(d.rec.Headers), said...)},
		{Key: d.rec.Key, Headers: append(slices.Clone(d.rec.Headers), append(said, omitted)...)},
		{Key: d.rec.Key, Headers: append(said, omitted)},
		{Headers: append(said, kgo.RecordHeader{Key: OmittedHeader, Value: []byte("key, value")})},
	} {
		rec.Topic = d.w.r.o.DeadLetterTopic
		if err = produce(ctx, patience, d.w.cl, &rec); err == nil {
			d.settled = true
			return nil
		}
		if !errors.Is(err, kerr.MessageTooLarge) && !errors.Is(err, kerr.RecordListTooLarge) {
			break
		}
	}
	return err
}

// patience returns a context that ends when the worker has had to end for commitWait.
func (w *worker) patience(ctx context.Context) (patience context.Context, stop func()) {
	patience, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	unwatch := context.AfterFunc(w.ctx, func() {
		timer.Sleep(patience, commitWait)
		cancel(errUnconfirmed)
	})
	return patience, func() {
		cancel(nil)
		unwatch()
	}
}

var errUnconfirmed = errors.New("stetmsg/kafka: the partition was revoked before a broker confirmed the dead letter; its record will be delivered again")
