package stetwork

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/stet-go/stet"
)

// Defaults of DispatcherOptions.
const (
	// DefaultBatch is the default of DispatcherOptions.Batch.
	DefaultBatch = 100
	// DefaultAgain is the default of DispatcherOptions.Again.
	DefaultAgain = 15 * time.Minute
)

const (
	ownAgain = time.Minute // Again of what is run here: it is taken at once

	queuePause    = 100 * time.Millisecond // after a failure of the queue, or the store
	maxQueuePause = 5 * time.Second
)

// Queue carries accepted operations to workers, which call Worker.Do. It may lose
// items, bring them twice, late, or in another order: none of that loses an
// operation or runs it twice.
type Queue interface {
	// Enqueue hands items over. nil says that the queue has them, as durably as
	// it keeps things; after an error all of them are handed over again.
	Enqueue(ctx context.Context, items []stet.Item) error
}

// QueueFunc makes a Queue of a function.
type QueueFunc func(ctx context.Context, items []stet.Item) error

// Enqueue calls f.
func (f QueueFunc) Enqueue(ctx context.Context, items []stet.Item) error { return f(ctx, items) }

// DispatcherOptions configure a Dispatcher. The zero value is usable.
type DispatcherOptions struct {
	// Batch is how many items are handed over together at most, up to
	// stet.MaxBrowse. Default DefaultBatch.
	Batch int
	// Again is how long after an operation was handed to the queue it is handed
	// over again, unless a worker has taken it by then; at most stet.MaxDelay.
	// Let it be longer than the queue usually is: a backlog that waits longer is
	// enqueued a second time. Default DefaultAgain.
	Again time.Duration
	// Poll is how often the store is asked when this process has accepted
	// nothing, half as much more or less at random. Default DefaultPoll.
	Poll time.Duration
	// ErrorLog gets what goes wrong. Default slog.Default().
	ErrorLog *slog.Logger
}

func (o DispatcherOptions) withDefaults() (DispatcherOptions, error) {
	if o.Batch < 0 || o.Batch > stet.MaxBrowse || o.Again < 0 || o.Again > stet.MaxDelay || o.Poll < 0 {
		return o, invalid("DispatcherOptions.Batch is %d, Again %v, Poll %v; Batch must be 0 to %d, Again at most %v, and none negative",
			o.Batch, o.Again, o.Poll, stet.MaxBrowse, stet.MaxDelay)
	}
	o.Batch = orDefault(o.Batch, DefaultBatch)
	o.Again = orDefault(o.Again, DefaultAgain)
	o.Poll = orDefault(o.Poll, DefaultPoll)
	o.ErrorLog = orDefault(o.ErrorLog, slog.Default())
	return o, nil
}

// Dispatcher hands accepted operations that are due to a queue, and hands them
// over again when the queue or a worker has lost them. Any number of processes may
// run one: each operation is handed over by one of them. Worker.Run has its own.
type Dispatcher struct {
	engine *stet.Engine
	queue  Queue
	o      DispatcherOptions
	// room waits until the queue takes more, and says how much: 0 when the
	// context has ended.
	room func(context.Context) int
}

// NewDispatcher returns a dispatcher. Wrong options are errors of kind
// stet.ErrInvalid.
func NewDispatcher(engine *stet.Engine, queue Queue, o DispatcherOptions) (*Dispatcher, error) {
	if engine == nil || queue == nil {
		return nil, invalid("a dispatcher needs an engine and a queue")
	}
	if _, ok := engine.Store().(stet.WorkStore); !ok {
		return nil, invalid("the store %T keeps no work; memory, sqlite, postgres and redis do", engine.Store())
	}
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	return &Dispatcher{engine: engine, queue: queue, o: o, room: func(context.Context) int { return o.Batch }}, nil
}

// Run hands over what is due until ctx ends, and returns nil. What it has in hand
// then is due again, later.
func (d *Dispatcher) Run(ctx context.Context) error {
	pause := queuePause
	for ctx.Err() == nil {
		arrived := d.engine.Arrived() // before looking, so that nothing is missed
		n := d.room(ctx)
		if n == 0 {
			break
		}
		items, ok := d.due(ctx, n)
		if !ok {
			sleep(ctx, pause/2+rand.N(pause))
			pause = min(2*pause, maxQueuePause)
			continue
		}
		pause = queuePause
		if len(items) > 0 {
			d.hand(ctx, items)
		}
		if len(items) >= n {
			continue
		}
		poll := time.NewTimer(d.o.Poll/2 + rand.N(d.o.Poll))
		select {
		case <-arrived:
		case <-poll.C:
		case <-ctx.Done():
		}
		poll.Stop()
	}
	return nil
}

// due asks the store; false if it could not.
func (d *Dispatcher) due(ctx context.Context, n int) ([]stet.Item, bool) {
	items, err := d.engine.Due(ctx, n, d.o.Again)
	if err != nil {
		d.o.ErrorLog.WarnContext(ctx, "stetwork: the store could not be asked for what is due", slog.Any("error", err))
	}
	return items, err == nil
}

// hand gives items to the queue. If it does not take them before they are due
// again, they are left to whoever asks next.
func (d *Dispatcher) hand(ctx context.Context, items []stet.Item) {
	ctx, cancel := context.WithTimeoutCause(ctx, d.o.Again, errors.New("stetwork: the items are due again by now"))
	defer cancel()
	for pause := queuePause; ctx.Err() == nil; pause = min(2*pause, maxQueuePause) {
		err := d.queue.Enqueue(ctx, items)
		if err == nil {
			return
		}
		d.o.ErrorLog.WarnContext(ctx, "stetwork: the queue did not take what is due; it is tried again", slog.Int("items", len(items)), slog.Any("error", err))
		sleep(ctx, pause/2+rand.N(pause))
	}
}
