package stetwork

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/timer"
	"github.com/stet-go/stet/reconcile"
	"github.com/stet-go/stet/store"
)

const (
	// gather is how long the embedded queue waits for more free slots while there is a backlog:
	// one read of the store for each operation would be slow.
	gather = 2 * time.Millisecond

	// patience is how long Shutdown waits for handlers after it has ended their contexts.
	patience = 10 * time.Second

	// sweepLimit is the maximum of records that a sweep reads.
	sweepLimit = 500

	// An operation that has waited for strayAfter, and has no handler here, is logged every
	// strayRest, of at most maxStrays names.
	strayAfter = time.Minute
	strayRest  = time.Minute
	maxStrays  = 1000
)

// Run passes due operations to their handlers, or to Options.Queue, and recovers expired runs,
// until ctx ends or Shutdown is called. Then it takes no more, waits for Options.Drain until its
// handlers have returned, ends the contexts of the others, and returns nil when all runs have
// ended. See Shutdown
// for its error. Register handlers before. A worker runs once.
func (w *Worker) Run(ctx context.Context) error {
	if !w.enter() {
		return closed(errStopped)
	}
	running, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { // ends with cancel
		select {
		case <-w.stopping:
			cancel()
		case <-running.Done():
		}
	}()
	err := w.serve(running)
	w.active.Done()
	drain, stop := context.WithTimeout(context.WithoutCancel(ctx), max(w.o.Drain, 0))
	defer stop()
	if ctx.Err() == nil && err == nil {
		drain = context.WithoutCancel(ctx) // Shutdown was called: its context ends the wait
	}
	return errors.Join(err, w.Shutdown(drain))
}

// serve returns when ctx has ended.
func (w *Worker) serve(ctx context.Context) error {
	queue := w.o.Queue
	if queue == nil {
		queue = &embedded{w: w}
	}
	d, err := NewDispatcher(w.engine, queue, w.o.Dispatch)
	if err != nil {
		return err
	}
	if own, ok := queue.(*embedded); ok {
		if d.o.Again = ownAgain; w.o.Dispatch.Again != 0 {
			d.o.Again = w.o.Dispatch.Again
		}
		d.room, d.handled = own.room, w.names
	}
	recovered := make(chan struct{})
	go func() { // ends with ctx
		defer close(recovered)
		w.recover(ctx)
	}()
	err = d.Run(ctx)
	<-recovered
	return err
}

// Shutdown stops the worker from taking operations, and waits until its runs have ended. When
// ctx ends, it ends the contexts of their handlers: a run that then ends without an effect, or
// may be repeated, is released, and any other is marked unknown. The error says that handlers
// have not returned. Their leases are renewed until they do, or the process ends.
func (w *Worker) Shutdown(ctx context.Context) error {
	w.mu.Lock()
	if !w.stopped {
		w.stopped = true
		close(w.stopping)
		go func() { // ends with the last run
			w.active.Wait()
			close(w.ended)
		}()
	}
	w.mu.Unlock()
	select {
	case <-w.ended:
		return nil
	case <-ctx.Done():
	}
	w.mu.Lock()
	w.hurry = true
	for a := range w.running {
		a.run.Cancel(errStopped)
	}
	w.mu.Unlock()
	late := time.NewTimer(patience)
	defer late.Stop()
	select {
	case <-w.ended:
		return nil
	case <-late.C:
		return errors.New("stetwork: some handlers have not returned, although their contexts have ended")
	}
}

// embedded is the queue within this process.
type embedded struct {
	w         *Worker
	full      bool // the last batch was as large as it could be
	requested int
}

// room waits until an operation can be run, and returns how many can.
func (q *embedded) room(ctx context.Context) int {
	w := q.w
	if w.o.Await != nil && w.o.Await(ctx) != nil {
		return 0
	}
	select {
	case w.slots <- struct{}{}:
		<-w.slots
	case <-ctx.Done():
		return 0
	}
	if q.full {
		timer.Sleep(ctx, gather)
	}
	q.requested = min(max(cap(w.slots)-len(w.slots), 1), store.MaxBrowse)
	return q.requested
}

// Enqueue runs items as there is room. It is called by one goroutine.
func (q *embedded) Enqueue(ctx context.Context, items []stet.Item) error {
	q.full = len(items) >= q.requested
	for _, it := range items {
		if !q.w.enter() {
			return nil // due again later
		}
		select {
		case q.w.slots <- struct{}{}:
		case <-ctx.Done():
			q.w.active.Done()
			return nil
		}
		go func() { // Shutdown waits for it
			defer q.w.active.Done()
			defer func() { <-q.w.slots }()
			if err := q.w.do(context.WithoutCancel(ctx), it); err != nil {
				q.w.o.ErrorLog.WarnContext(ctx, "stetwork: an operation could not be taken; it is tried again later",
					slog.String("name", it.Name), slog.String("id", it.ID.String()), slog.Any("error", err))
			}
		}()
	}
	return nil
}

// recover resolves expired runs until ctx ends.
func (w *Worker) recover(ctx context.Context) {
	if _, ok := store.As[store.Browser](w.engine.Store()); !ok || w.o.RecoverEvery < 0 {
		return
	}
	r, err := reconcile.New(w.engine, reconcile.Options{Verify: w.Verify, Select: w.handles, UnknownOnly: true, ErrorLog: w.o.ErrorLog})
	if err != nil {
		w.o.ErrorLog.ErrorContext(ctx, "stetwork: expired runs are not recovered", slog.Any("error", err))
		return
	}
	sweeper, sweeps := store.As[store.Sweeper](w.engine.Store())
	said := make(map[string]time.Time)
	for {
		w.findStrays(ctx, said)
		if sweeps { // marks expired runs unknown, before the engine's own sweep does
			_, _ = sweeper.Sweep(ctx, sweepLimit)
		}
		if _, err := r.Pass(ctx); err != nil && ctx.Err() == nil {
			w.o.ErrorLog.WarnContext(ctx, "stetwork: expired runs could not be recovered", slog.Any("error", err))
		}
		timer.Sleep(ctx, timer.Around(w.o.RecoverEvery))
		if ctx.Err() != nil {
			return
		}
	}
}

// findStrays logs the names of the oldest waiting operations that have no handler here:
// another process may have one, or the name is a mistake. If Dispatch.Names are set, other names
// are not for this worker. said has the time of the last log
// line of a name.
func (w *Worker) findStrays(ctx context.Context, said map[string]time.Time) {
	b, ok := store.As[store.Browser](w.engine.Store())
	if !ok || w.o.Queue != nil || len(w.o.Dispatch.Names) > 0 {
		return
	}
	page, err := b.Browse(ctx, store.Query{States: []store.State{store.Accepted}, OlderThan: strayAfter})
	if err != nil {
		return // the reconciler logs the error
	}
	for _, rec := range page.Records {
		name := rec.Label.Name
		if _, ok := w.handler(name); ok || time.Since(said[name]) < strayRest || len(said) > maxStrays {
			continue
		}
		said[name] = time.Now()
		w.o.ErrorLog.ErrorContext(ctx, "stetwork: accepted operations have no handler here; they stay accepted", slog.String("name", name))
	}
}

func (w *Worker) handles(st stet.Status) bool {
	_, ok := w.handler(st.Name)
	return ok
}

// Verify resolves expired runs of HandleTx and HandleIdempotent without an open StepOnce: they
// may run again. Of other runs it cannot know. Use it as reconcile.Options.Verify; Run already
// does.
func (w *Worker) Verify(_ context.Context, st stet.Status) (stet.Resolution, error) {
	if h, ok := w.handler(st.Name); ok && h.again && st.OpenStep == "" {
		return stet.MayRunAgain(), nil
	}
	return stet.CannotKnow(), nil
}
