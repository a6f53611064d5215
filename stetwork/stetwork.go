// Package stetwork runs accepted operations (see stet.Engine.Accept): it calls the handler of
// each by its name, and stores the outcome.
//
//	worker, err := stetwork.New(engine, stetwork.Options{})
//	err = stetwork.HandleTx(worker, te, "ship", func(ctx context.Context, tx *sql.Tx, p Parcel) (Receipt, error) { … })
//	err = worker.Run(ctx)
//
// The record is the queue. Run reads the due operations from the store, at once when this
// process accepts one. For more machines, Options.Queue carries operations to workers, which
// call Worker.Do. A queue may lose an operation, which is then passed again, or deliver it
// twice; it still runs once.
//
// # The end of a run
//
//	the handler                              the operation
//	returns a value                          completed; from HandleTx in one commit with its writes
//	returns stet.Permanent                   failed
//	returns stet.Retryable, or declares      runs again, with backoff
//	  stet.NotExecuted
//	any other error
//	  of HandleTx: it was rolled back        runs again, with backoff
//	  of HandleIdempotent                    runs again, with backoff
//	  of Handle                              failed: an effect may have happened before the error
//	panics
//	  of HandleTx, HandleIdempotent          runs again, with backoff
//	  of Handle                              failed: it may have executed
//	returns the error of its context, which
//	  was ended by this package
//	  (lease lost, out of time, shutdown)
//	  of HandleTx, HandleIdempotent          runs again
//	  of Handle                              unknown: it may have had its effect
//	declares MayHaveExecuted
//	  of Handle, HandleTx                    unknown
//	  of HandleIdempotent                    runs again, with backoff
//	has an open stet.StepOnce                unknown
//	is interrupted by Shutdown, or the       runs again at once, if it may run
//	  engine's Close                           again; the attempt does not count
//	has run Options.MaxAttempts times        failed, with the last error
//	returns an error after a cancellation    failed, with stet.ErrCancelled
//	crashes with its process
//	  of HandleTx, HandleIdempotent          runs again, as soon as its lease has run out
//	  of Handle                              unknown; Policy.Verify and Policy.Stale decide
//
// The outcome is that of stet.Do: the value as JSON, or the error's text as a JSON
// string. stet.Outcome.Decode reads it.
package stetwork

import (
	"cmp"
	"context"
	"encoding/json"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/misuse"
	"github.com/stet-go/stet/internal/timer"
	"github.com/stet-go/stet/store"
)

// Defaults of Options.
const (
	// DefaultConcurrency is how many operations run at a time.
	DefaultConcurrency = 16
	// DefaultMaxAttempts is how often an operation is tried: with the default
	// backoff, for about two hours.
	DefaultMaxAttempts = 25
	// MinBackoff and MaxBackoff bound the default of Options.Backoff: the first
	// attempt is followed by a wait of at most MinBackoff.
	MinBackoff = time.Second
	MaxBackoff = 15 * time.Minute // see MinBackoff
	// DefaultPoll is the default of Options.Poll.
	DefaultPoll = time.Second
	// DefaultCancelEvery is the default of Options.CancelEvery.
	DefaultCancelEvery = 2 * time.Second
	// DefaultRecoverEvery is the default of Options.RecoverEvery.
	DefaultRecoverEvery = time.Minute
	// DefaultDrain is the default of Options.Drain.
	DefaultDrain = 30 * time.Second
)

// Options configure a Worker. The zero value is usable.
type Options struct {
	// Concurrency is how many operations run at the same time in this process. Default
	// DefaultConcurrency.
	Concurrency int
	// MaxAttempts is how often an operation runs before it is settled as failed, with its last
	// error. Abandoned runs count, runs that a shutdown interrupted do not (see
	// stet.Lease.Counted). Default DefaultMaxAttempts; negative: no limit.
	MaxAttempts int
	// Backoff returns the wait after the n-th attempt that counts, from 1; at most
	// store.MaxDelay. Default: a random time up to a limit that doubles from MinBackoff to
	// MaxBackoff ("full jitter").
	Backoff func(n int) time.Duration
	// Queue, if set, receives due operations from Run, which then does not run them. Consumers
	// of the queue call Do.
	Queue Queue
	// Dispatch configures how Run reads due operations.
	Dispatch DispatcherOptions
	// Await, if set, is called before operations are taken, and returns when the dependencies
	// of the handlers are available, for example a service. No run begins before, so a crash
	// during the wait leaves none behind. It returns an error only if ctx has ended.
	Await func(ctx context.Context) error
	// CancelEvery is the interval of reads whether a running operation was cancelled. Default
	// DefaultCancelEvery; negative: never.
	CancelEvery time.Duration
	// RecoverEvery is the interval of scans for expired runs of operations that it has
	// handlers for. The store must be a store.Browser. Default DefaultRecoverEvery; negative:
	// never.
	RecoverEvery time.Duration
	// Drain is how long Run waits for handlers after its context has ended, before it ends
	// their contexts. Default DefaultDrain; negative: no wait.
	Drain time.Duration
	// ErrorLog receives failed and unknown operations and other errors, with the text of the
	// errors of handlers, never a key or a payload. Default slog.Default().
	ErrorLog *slog.Logger
}

// Worker runs the handlers of accepted operations. It is safe for concurrent use.
type Worker struct {
	engine *stet.Engine
	o      Options
	slots  chan struct{} // a token for each operation that runs

	mu       sync.Mutex
	handlers map[string]handler
	running  map[*attempt]struct{}
	hurry    bool // Shutdown has ended their contexts
	stopped  bool
	stopping chan struct{}  // closed by Shutdown
	ended    chan struct{}  // closed when the last attempt has ended after that
	active   sync.WaitGroup // attempts, and Run
}

// New returns a worker without handlers. Wrong options are errors of kind
// stet.KindInvalid.
func New(engine *stet.Engine, o Options) (*Worker, error) {
	if engine == nil {
		return nil, misuse.Errorf("stetwork: a worker needs an engine; stet.New makes one")
	}
	if _, ok := store.As[store.WorkStore](engine.Store()); !ok {
		return nil, misuse.Errorf("stetwork: the store %T stores no work; memory, sqlite, postgres and redis do", engine.Store())
	}
	if o.Concurrency < 0 {
		return nil, misuse.Errorf("stetwork: Options.Concurrency is negative: %d", o.Concurrency)
	}
	o.Concurrency = cmp.Or(o.Concurrency, DefaultConcurrency)
	o.MaxAttempts = cmp.Or(o.MaxAttempts, DefaultMaxAttempts)
	o.CancelEvery = cmp.Or(o.CancelEvery, DefaultCancelEvery)
	o.RecoverEvery = cmp.Or(o.RecoverEvery, DefaultRecoverEvery)
	o.Drain = cmp.Or(o.Drain, DefaultDrain)
	if o.Backoff == nil {
		o.Backoff = backoff
	}
	o.ErrorLog = cmp.Or(o.ErrorLog, slog.Default())
	o.Dispatch.ErrorLog = cmp.Or(o.Dispatch.ErrorLog, o.ErrorLog)
	if _, err := o.Dispatch.withDefaults(); err != nil {
		return nil, err
	}
	return &Worker{engine: engine, o: o, slots: make(chan struct{}, o.Concurrency), handlers: make(map[string]handler),
		running: make(map[*attempt]struct{}), stopping: make(chan struct{}), ended: make(chan struct{})}, nil
}

// Engine returns the engine that New was given.
func (w *Worker) Engine() *stet.Engine { return w.engine }

// Log returns Options.ErrorLog or its default. Consumers of a queue use it.
func (w *Worker) Log() *slog.Logger { return w.o.ErrorLog }

// Concurrency returns how many operations run at a time.
func (w *Worker) Concurrency() int { return w.o.Concurrency }

// NewWork returns the work for Engine.Accept, for a handler with payloads of this type. The error is of kind stet.KindInvalid: the payload is not JSON.
func NewWork(name string, payload any) (stet.Work, error) {
	b, err := json.Marshal(payload)
	if err != nil {
		return stet.Work{}, misuse.Errorf("stetwork: the payload of %.40q: %w", name, err)
	}
	return stet.Work{Name: name, Payload: b}, nil
}

func backoff(n int) time.Duration { return rand.N(timer.Doubled(n, MinBackoff, MaxBackoff)) + 1 }
