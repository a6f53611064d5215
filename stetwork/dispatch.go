package stetwork

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/misuse"
	"github.com/stet-go/stet/internal/timer"
	"github.com/stet-go/stet/store"
)

// Defaults of DispatcherOptions.
const (
	// DefaultBatch is the default of DispatcherOptions.Batch.
	DefaultBatch = 100
	// DefaultAgain is the default of DispatcherOptions.Again.
	DefaultAgain = 15 * time.Minute
)

const (
	ownAgain = time.Minute // Again without a queue: operations are taken at once

	queuePause    = 100 * time.Millisecond // after a failure of the queue, or the store
	maxQueuePause = 5 * time.Second

	// Refused items are passed again for keepFor at most, or Again. Then they wait until they
	// are due again.
	keepFor = time.Minute
	// The limit of a call with a batch, and with one item after a batch has failed. After
	// probes failures without a success no more items are tried.
	batchTimeout = 30 * time.Second
	itemTimeout  = 10 * time.Second
	probes       = 3
)

// Queue carries accepted operations to workers, which call Worker.Do. It may lose items,
// deliver them twice, late, or in another order. None of that loses an operation or runs it
// twice.
type Queue interface {
	// Enqueue passes items to the queue. After nil the queue has stored them, as durably
	// as it stores anything. After an error they are passed again, one by one. ctx ends after
	// at most 30 seconds.
	Enqueue(ctx context.Context, items []stet.Item) error
}

// QueueFunc makes a Queue of a function.
type QueueFunc func(ctx context.Context, items []stet.Item) error

// Enqueue calls f.
func (f QueueFunc) Enqueue(ctx context.Context, items []stet.Item) error { return f(ctx, items) }

// DispatcherOptions configure a Dispatcher. The zero value is usable.
type DispatcherOptions struct {
	// Batch is the maximum of items in one call, up to store.MaxBrowse. Default DefaultBatch.
	Batch int
	// Again is the time after which an operation is passed to the queue again, if no worker
	// has taken it; at most store.MaxDelay. It should be longer than the usual backlog of the
	// queue, which would otherwise hold operations twice. A refused operation waits as long.
	// Default DefaultAgain.
	Again time.Duration
	// Poll is the interval of reads while this process accepts nothing, 50 % more or less at
	// random. Default DefaultPoll.
	Poll time.Duration
	// Names are the names of the operations that the queue gets. Leave out names that its
	// consumers have no handlers for. Default: all; for a Worker without a Queue, the names of
	// its handlers, and Run then logs waiting operations without one.
	Names []string
	// ErrorLog receives errors. Default slog.Default().
	ErrorLog *slog.Logger
}

func (o DispatcherOptions) withDefaults() (DispatcherOptions, error) {
	if o.Batch < 0 || o.Batch > store.MaxBrowse || o.Again < 0 || o.Again > store.MaxDelay || o.Poll < 0 {
		return o, misuse.Errorf("stetwork: DispatcherOptions.Batch is %d, Again %v, Poll %v; Batch must be 0 to %d, Again at most %v, and none negative",
			o.Batch, o.Again, o.Poll, store.MaxBrowse, store.MaxDelay)
	}
	o.Batch = cmp.Or(o.Batch, DefaultBatch)
	o.Again = cmp.Or(o.Again, DefaultAgain)
	o.Poll = cmp.Or(o.Poll, DefaultPoll)
	o.ErrorLog = cmp.Or(o.ErrorLog, slog.Default())
	return o, nil
}

// Dispatcher passes due operations to a queue, and passes them again if the queue or a worker has
// lost them. Any number of processes may run one: each operation is passed by one of them.
// Worker.Run has its own.
type Dispatcher struct {
	engine *stet.Engine
	queue  Queue
	o      DispatcherOptions
	// room waits until the queue takes more items, and returns how many: 0 when the context
	// has ended.
	room func(context.Context) int
	// handled, if set, returns the names to read if Names are not set.
	handled func() []string
	turn    int // index of the next name, if there are many
}

// NewDispatcher returns a dispatcher. Wrong options are errors of kind
// stet.KindInvalid.
func NewDispatcher(engine *stet.Engine, queue Queue, o DispatcherOptions) (*Dispatcher, error) {
	if engine == nil || queue == nil {
		return nil, misuse.Errorf("stetwork: a dispatcher needs an engine and a queue")
	}
	if _, ok := store.As[store.WorkStore](engine.Store()); !ok {
		return nil, misuse.Errorf("stetwork: the store %T stores no work; memory, sqlite, postgres and redis do", engine.Store())
	}
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	return &Dispatcher{engine: engine, queue: queue, o: o, room: func(context.Context) int { return o.Batch }}, nil
}

// Run passes due operations to the queue until ctx ends, and returns nil. Operations that it
// then still has are due again, later.
func (d *Dispatcher) Run(ctx context.Context) error {
	pause := queuePause
	var kept []pending // that the queue has not taken yet
	for ctx.Err() == nil {
		arrived := d.engine.Arrived() // before the read, so that no operation is missed
		room := d.room(ctx)
		if room == 0 {
			break
		}
		names, any := d.names()
		n := room - len(kept)
		found, ok := 0, true
		if n > 0 && any {
			var items []stet.Item
			items, ok = d.due(ctx, n, names)
			found = len(items)
			kept = append(d.pending(items), kept...)
		}
		kept = d.pass(ctx, kept)
		if !ok || len(kept) > 0 {
			timer.Sleep(ctx, timer.Around(pause))
			pause = min(2*pause, maxQueuePause)
			continue
		}
		pause = queuePause
		if n > 0 && found >= n {
			continue
		}
		poll := time.NewTimer(timer.Around(d.o.Poll))
		select {
		case <-arrived:
		case <-poll.C:
		case <-ctx.Done():
		}
		poll.Stop()
	}
	return nil
}

// names returns the names to read, none for all; false if there is nothing to read.
func (d *Dispatcher) names() (names []string, any bool) {
	names = d.o.Names
	if d.handled != nil && names == nil {
		names = d.handled()
		if len(names) == 0 {
			return nil, false
		}
	}
	if len(names) <= store.MaxDueNames {
		return names, true
	}
	from := d.turn % len(names)
	d.turn = from + store.MaxDueNames
	return slices.Concat(names[from:], names[:from])[:store.MaxDueNames], true
}

// due reads the store; false after an error.
func (d *Dispatcher) due(ctx context.Context, n int, names []string) ([]stet.Item, bool) {
	items, err := d.engine.Due(ctx, n, d.o.Again, names...)
	if err != nil {
		d.o.ErrorLog.WarnContext(ctx, "stetwork: due operations could not be read", slog.Any("error", err))
	}
	return items, err == nil
}

// pending is an item that is passed to the queue until a time.
type pending struct {
	stet.Item
	until time.Time
}

func (d *Dispatcher) pending(items []stet.Item) []pending {
	until := time.Now().Add(min(d.o.Again, keepFor))
	kept := make([]pending, len(items))
	for i, it := range items {
		kept[i] = pending{it, until}
	}
	return kept
}

// pass passes items to the queue, together and then one by one. It returns the items to pass
// again.
func (d *Dispatcher) pass(ctx context.Context, items []pending) []pending {
	if len(items) == 0 {
		return nil
	}
	all := make([]stet.Item, len(items))
	for i, it := range items {
		all[i] = it.Item
	}
	err := d.enqueue(ctx, batchTimeout, all...)
	if err == nil {
		return nil
	}
	kept := items
	if len(items) > 1 {
		kept, err = d.oneByOne(ctx, items)
	}
	if ctx.Err() != nil || len(kept) == 0 {
		return nil
	}
	now, n := time.Now(), len(kept)
	kept = slices.DeleteFunc(slices.Clone(kept), func(it pending) bool { return !now.Before(it.until) })
	d.o.ErrorLog.WarnContext(ctx, "stetwork: the queue did not accept due operations; they are sent again", slog.Int("items", len(kept)), slog.Int("later", n-len(kept)), slog.Any("error", err))
	return kept
}

// oneByOne passes items separately, and returns the items to pass again, with the last error. An
// item that is refused while others are taken waits until it is due again. If none is taken, the
// queue may be down.
func (d *Dispatcher) oneByOne(ctx context.Context, items []pending) (kept []pending, err error) {
	began, taken := time.Now(), 0
	var failed []pending // before the first that was taken
	for ; len(items) > 0 && ctx.Err() == nil; items = items[1:] {
		if taken == 0 && len(failed) == probes || time.Since(began) > keepFor {
			break
		}
		it := items[0]
		e := d.enqueue(ctx, itemTimeout, it.Item)
		switch {
		case e == nil && taken == 0: // it is not down, or no longer
			items = append(slices.Clone(items), failed...)
			failed = nil
			taken++
		case e == nil:
		case taken == 0:
			failed, err = append(failed, it), e
		default:
			err = e
			d.o.ErrorLog.ErrorContext(ctx, "stetwork: the queue refuses an operation; it waits until it is due again", slog.Duration("after", d.o.Again),
				slog.String("name", it.Name), slog.String("id", it.ID.String()), slog.Any("error", e))
		}
	}
	return append(slices.Clone(items), failed...), err // the others are tried first, the next time
}

// enqueue calls the queue with a time limit.
func (d *Dispatcher) enqueue(ctx context.Context, within time.Duration, items ...stet.Item) error {
	ctx, cancel := context.WithTimeoutCause(ctx, min(within, d.o.Again), errQueueHangs)
	defer cancel()
	return d.queue.Enqueue(ctx, items)
}

var errQueueHangs = errors.New("stetwork: the queue has not answered in time")
