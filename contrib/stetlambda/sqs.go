package stetlambda

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/aws/aws-lambda-go/events"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/again"
	"github.com/stet-go/stet/internal/misuse"
	"github.com/stet-go/stet/stetmsg"
)

// Failures selects how a function reports messages to deliver again.
type Failures uint8

const (
	// BatchItemFailures reports their IDs. The event source mapping must have
	// ReportBatchItemFailures in its FunctionResponseTypes. Otherwise Lambda ignores the IDs
	// and deletes all messages of the batch, also messages that were not handled.
	BatchItemFailures Failures = iota + 1
	// WholeBatch reports an error, so that all messages of the batch are delivered again. Handled
	// messages do not run again. It needs no setting, but each message counts as received again,
	// and a message that always fails takes the others with it to the dead-letter queue.
	WholeBatch
)

// MaxReserve is the greatest default of SQSOptions.Reserve.
const MaxReserve = 3 * time.Second

// SQSOptions configure a function that handles messages of SQS. Operation and Failures
// are required.
type SQSOptions struct {
	stetmsg.Options[events.SQSMessage]
	// Failures selects how messages to deliver again are reported. It must match the event
	// source mapping.
	Failures Failures
	// DeadLetter, if set, stores a message for people, for example in another queue. It
	// returns nil only if the message is durable there. Without it, a dead letter is reported
	// as a message to deliver again, does not run again, and follows the redrive policy of the
	// queue after maxReceiveCount deliveries.
	DeadLetter func(ctx context.Context, m events.SQSMessage, why stetmsg.Decision) error
	// Reserve is the time before the function's timeout at which the contexts of handlers
	// end, so that outcomes can be stored and the function returns. Default: a fifth of
	// the time that an invocation has, at most MaxReserve.
	Reserve time.Duration
	// RunTime is how long a run takes: no run begins with less time left. Messages that do not
	// begin are reported as failures. Default: Reserve.
	RunTime time.Duration
}

// SQSHandler is what lambda.Start takes.
type SQSHandler = func(context.Context, events.SQSEvent) (events.SQSEventResponse, error)

// SQS returns the function of a Lambda that gets batches of messages from SQS, for a handler
// whose effects are outside of the engine's store. Its decisions are those of stetmsg.New. Up
// to Options.Concurrency messages are handled at a time. Messages of a group of a FIFO queue
// are handled one after the other; behind a message that must be delivered again none begins,
// and they are delivered again with it.
//
// The handler's context ends before the function's time does (SQSOptions.Reserve). If the
// handler then returns the context's error, its outcome is unknown, unless it has declared
// stet.NotExecuted, or marked the error as stet.Retryable or stet.Permanent. SQS waits for
// handlers that do not return: Lambda ends the process at the timeout, so nothing continues in
// a later invocation.
//
// Wrong options are errors of kind stet.KindInvalid.
func SQS(engine *stet.Engine, o SQSOptions, handle func(ctx context.Context, m events.SQSMessage) (result []byte, err error)) (SQSHandler, error) {
	if handle == nil {
		return nil, misuse.Errorf("stetlambda: SQS needs a handler")
	}
	c, err := stetmsg.New(engine, o.Options, func(ctx context.Context, m events.SQSMessage) ([]byte, error) {
		bounded, cancel := within(ctx)
		defer cancel()
		result, err := handle(bounded, m)
		if err != nil && bounded.Err() != nil && (errors.Is(err, errTime) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)) {
			// It says nothing of the effect, unless the handler has marked it.
			marks := again.MarksOf(err)
			if run := stet.FromContext(ctx); run != nil && run.Declared() == stet.Executed && !marks.Retryable && !marks.Permanent {
				run.Declare(stet.MayHaveExecuted, 0)
			}
		}
		return result, err
	})
	if err != nil {
		return nil, err
	}
	return newBatches(c, o)
}

// SQSTx is SQS for a handler whose effects are writes to the database of te: see
// stetmsg.NewTx. An error rolls back, and the message comes again.
//
// SQS says how often a message of a queue without order was received, which
// Options.MaxAttempts counts. In FIFO queues those behind a message that fails are received
// as often as that one, without a run: there, the redrive policy alone counts.
func SQSTx[Tx any](te *stet.TxEngine[Tx], o SQSOptions, handle func(ctx context.Context, tx Tx, m events.SQSMessage) (result []byte, err error)) (SQSHandler, error) {
	if handle == nil {
		return nil, misuse.Errorf("stetlambda: SQSTx needs a handler")
	}
	c, err := stetmsg.NewTx(te, o.Options, func(ctx context.Context, tx Tx, m events.SQSMessage) ([]byte, error) {
		ctx, cancel := within(ctx)
		defer cancel()
		return handle(ctx, tx, m)
	})
	if err != nil {
		return nil, err
	}
	return newBatches(c, o)
}

type endKey struct{}

var errTime = errors.New("stetlambda: the function's time is nearly over")

// within returns the context of a handler, which ends before the function's time does.
func within(ctx context.Context) (context.Context, context.CancelFunc) {
	end, ok := ctx.Value(endKey{}).(time.Time)
	if !ok {
		return ctx, func() {}
	}
	return context.WithDeadlineCause(ctx, end, errTime)
}

// batches handles batches.
type batches struct {
	consumer *stetmsg.Consumer[events.SQSMessage]
	o        SQSOptions
}

func newBatches(c *stetmsg.Consumer[events.SQSMessage], o SQSOptions) (SQSHandler, error) {
	switch {
	case o.Failures != BatchItemFailures && o.Failures != WholeBatch:
		return nil, misuse.Errorf("stetlambda: SQSOptions.Failures is required: BatchItemFailures if the event source mapping has ReportBatchItemFailures, else WholeBatch; Lambda would delete messages that were not handled")
	case o.Reserve < 0 || o.RunTime < 0:
		return nil, misuse.Errorf("stetlambda: SQSOptions.Reserve is %v, RunTime %v; neither may be negative", o.Reserve, o.RunTime)
	}
	return (&batches{c, o}).handle, nil
}

// batch is one invocation.
type batch struct {
	*batches
	ms     []events.SQSMessage
	failed []bool    // each is of one goroutine
	end    time.Time // of handlers' contexts; zero: never
	least  time.Duration
	late   atomic.Int64 // how many were not begun
}

var errEvent = errors.New("stetlambda: the event is not one of SQS: it has no records, or records of something else")

func (b *batches) handle(ctx context.Context, e events.SQSEvent) (out events.SQSEventResponse, err error) {
	if len(e.Records) == 0 {
		return out, errEvent
	}
	for _, m := range e.Records {
		if m.EventSource != "aws:sqs" || m.MessageId == "" {
			return out, errEvent
		}
	}
	x := &batch{batches: b, ms: e.Records, failed: make([]bool, len(e.Records))}
	ctx, cancel := x.bound(ctx)
	defer cancel()
	x.run(ctx)
	for i, m := range x.ms {
		if x.failed[i] {
			out.BatchItemFailures = append(out.BatchItemFailures, events.SQSBatchItemFailure{ItemIdentifier: m.MessageId})
		}
	}
	if n := x.late.Load(); n > 0 {
		b.consumer.Log().WarnContext(ctx, "stetlambda: there was no time left to begin messages; they come again. Give the function a longer timeout, or smaller batches",
			slog.Int64("messages", n), slog.Int("batch", len(x.ms)))
	}
	if n := len(out.BatchItemFailures); n > 0 && b.o.Failures == WholeBatch {
		return events.SQSEventResponse{}, fmt.Errorf("stetlambda: %d of %d messages are to come again, and so all of them", n, len(x.ms))
	}
	return out, nil
}

// bound returns a context that ends when handlers have to.
func (x *batch) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return ctx, func() {}
	}
	reserve := cmp.Or(x.o.Reserve, min(time.Until(deadline)/5, MaxReserve))
	x.least = cmp.Or(x.o.RunTime, reserve)
	x.end = deadline.Add(-reserve)
	return context.WithDeadlineCause(context.WithValue(ctx, endKey{}, x.end), x.end, errTime)
}

// run handles the messages, those of a lane one after the other.
func (x *batch) run(ctx context.Context) {
	lanes := make(map[string][]int)
	for i, m := range x.ms {
		x.failed[i] = true // until it is handled; also if a handler calls runtime.Goexit
		lane := strconv.Itoa(i)
		if fifo(m) {
			lane = "group " + m.Attributes["MessageGroupId"]
		}
		lanes[lane] = append(lanes[lane], i)
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	slots := make(chan struct{}, x.consumer.Concurrency())
	order := slices.SortedFunc(maps.Values(lanes), func(a, b []int) int { return a[0] - b[0] })
	for _, lane := range order {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			for _, i := range lane {
				if x.failed[i] = !x.one(ctx, x.ms[i]); x.failed[i] {
					return // those behind it have to wait for it
				}
			}
		})
	}
}

// one handles a message, and reports whether it is done.
func (x *batch) one(ctx context.Context, m events.SQSMessage) (done bool) {
	if !x.end.IsZero() && time.Until(x.end) < x.least {
		x.late.Add(1)
		return false
	}
	deliveries := 0 // not known
	if !fifo(m) {
		deliveries, _ = strconv.Atoi(m.Attributes["ApproximateReceiveCount"])
	}
	d := x.consumer.Decide(ctx, m, max(deliveries, 0))
	switch {
	case d.Action == stetmsg.Ack:
		return true
	case d.Action == stetmsg.Retry, x.o.DeadLetter == nil:
		return false
	}
	if err := x.putAside(ctx, m, d); err != nil {
		x.consumer.Log().ErrorContext(ctx, "stetlambda: the message could not be put aside, and will come again", slog.String("id", d.ID.String()), slog.Any("error", err))
		return false
	}
	return true
}

// putAside calls SQSOptions.DeadLetter, which may panic as handlers may.
func (x *batch) putAside(ctx context.Context, m events.SQSMessage, d stetmsg.Decision) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("SQSOptions.DeadLetter panicked: %v", v)
		}
	}()
	return x.o.DeadLetter(ctx, m, d)
}

// fifo reports whether a message is of a FIFO queue. Those of other queues may have a group,
// too, which is no order (fair queues).
func fifo(m events.SQSMessage) bool { return strings.HasSuffix(m.EventSourceARN, ".fifo") }

// Envelope is how an identity sees a message: by its attributes, and by the system
// attributes MessageDeduplicationId, MessageGroupId and their like. An SQS MessageId is no
// identity: when a send times out, the producer sends again, and SQS gives the copy another.
func Envelope(m events.SQSMessage) stetmsg.Envelope {
	get := func(name string) (string, bool) {
		if a, ok := m.MessageAttributes[name]; ok && a.StringValue != nil {
			return *a.StringValue, true
		}
		v, ok := m.Attributes[name]
		return v, ok
	}
	contentType, _ := get("content-type")
	names := func() []string {
		return slices.AppendSeq(slices.Collect(maps.Keys(m.Attributes)), maps.Keys(m.MessageAttributes))
	}
	return stetmsg.Envelope{Header: get, Names: names, ContentType: contentType, Body: []byte(m.Body)}
}
