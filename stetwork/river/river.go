// Package river carries accepted operations through River, a job queue on
// PostgreSQL: one transaction holds the caller's writes, the acceptance and the
// job.
//
//	insert, err := river.NewClient(riverpgxv5.New(pool), &river.Config{}) // River's
//	queue, err := stetriver.New(insert, stetriver.Options{})
//	worker, err := stetwork.New(engine, stetwork.Options{Queue: queue})
//	err = stetriver.AddWorker(workers, worker) // River's workers, of the client that works
//	…
//	st, err := queue.AcceptTx(ctx, te, tx, op, work)
//
// Alternatively, accept with stet.TxEngine.Accept or Engine.Accept, and let Worker.Run, or a
// stetwork.Dispatcher in a process that only accepts, insert the jobs afterwards in batches.
// The throughput is higher (docs/speed.md), and an acceptance takes one round trip less. Call
// Engine.Wake after the commit, so that the job is inserted at once.
//
// A job contains the ID of an operation, not its payload. Attempts, backoff and outcomes are
// the worker's: a job is complete after the attempt, whatever its end, and an operation that
// must run again gets another job. Running a job twice is harmless. Therefore
// river.Config.RescueStuckJobsAfter may be minutes: after that time River gives the job of a
// killed process to another one, but not before the RunTimeout of the operation's policy and a
// minute. One process must run Worker.Run, for operations that need another job.
//
// A job in a process without a handler for its operation is snoozed for 30 seconds, so that
// another process can take it. After ten minutes it is cancelled with an error that names the
// handler, for River's ErrorHandler and in the job's row. The operation stays accepted, and
// gets another job.
package river

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/riverqueue/river"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/misuse"
	"github.com/stet-go/stet/stetwork"
	"github.com/stet-go/stet/store"
)

// Kind is the kind of the jobs.
const Kind = "stet"

const (
	storePause   = 5 * time.Second  // until a job is tried again whose operation could not be read
	unknownPause = 30 * time.Second // and for an operation without a handler in this process
	maxSnoozes   = 20               // of such a job
	margin       = time.Minute      // of a job, beyond its run: to wait for its turn, and to store its end
)

// Args are the arguments of a job: an accepted operation.
type Args struct {
	ID    string `json:"id"` // in hexadecimal
	Class string `json:"class,omitempty"`
	Name  string `json:"name"`
}

// Kind implements river.JobArgs.
func (Args) Kind() string { return Kind }

func argsOf(it stet.Item) Args { return Args{ID: it.ID.String(), Class: it.Class, Name: it.Name} }

func (a Args) item() (stet.Item, error) {
	id, err := store.ParseID(a.ID)
	if err != nil {
		return stet.Item{}, errors.New("stetwork/river: the job has no operation")
	}
	return stet.Item{ID: id, Class: a.Class, Name: a.Name}, nil
}

// AddWorker has River's workers run accepted operations with w. River's MaxWorkers
// should not be above w's Concurrency: the others would wait.
func AddWorker(workers *river.Workers, w *stetwork.Worker) error {
	if workers == nil || w == nil {
		return misuse.Errorf("stetwork/river: AddWorker needs the workers of river.NewWorkers and a worker of stetwork.New")
	}
	return river.AddWorkerSafely(workers, &worker{w: w})
}

// worker is the worker that River calls.
type worker struct {
	river.WorkerDefaults[Args]
	w *stetwork.Worker
}

// Timeout is longer than any run: the policy bounds that, and a job which ends
// earlier is released. Without a bound River would never rescue the jobs of a
// process that was killed.
func (k *worker) Timeout(job *river.Job[Args]) time.Duration {
	p, ok := k.w.Engine().Policy(job.Args.Class)
	if !ok { // no run: it is put off at once
		return margin
	}
	return p.RunTimeout + margin
}

// Work implements river.Worker.
func (k *worker) Work(ctx context.Context, job *river.Job[Args]) error {
	it, err := job.Args.item()
	if err != nil {
		return river.JobCancel(err)
	}
	switch err := k.w.Do(ctx, it); {
	case err == nil:
		return nil
	case stet.KindOf(err) == stet.KindInvalid && snoozes(job) >= maxSnoozes:
		return river.JobCancel(err)
	case stet.KindOf(err) == stet.KindInvalid: // another process may have the handler
		return river.JobSnooze(unknownPause)
	default: // nothing was tried, so no attempt is used up
		return river.JobSnooze(storePause)
	}
}

// snoozes returns how often a job was put off, which River stores in it.
func snoozes(job *river.Job[Args]) int {
	var noted struct {
		Snoozes int `json:"snoozes"`
	}
	if json.Unmarshal(job.Metadata, &noted) != nil {
		return maxSnoozes // it cannot be counted, so it must not continue permanently
	}
	return noted.Snoozes
}

// Options configure a Queue. The zero value is usable.
type Options struct {
	// Insert are the options of jobs: a queue, a priority, tags. Jobs are neither
	// unique, because an operation's next attempt needs another one, nor pending;
	// and ScheduledAt is this package's.
	Insert river.InsertOpts
	// Again is how long after AcceptTx an operation without Work.After is handed to the
	// queue another time, unless a worker has taken it by then; at most
	// store.MaxDelay. Let it be longer than jobs usually wait. Default
	// stetwork.DefaultAgain.
	Again time.Duration
}

// Queue is a stetwork.Queue that inserts jobs.
type Queue[Tx any] struct {
	client *river.Client[Tx]
	o      Options
}

// New returns a queue that inserts jobs with client, which need not run any. Wrong options are errors of kind stet.KindInvalid.
func New[Tx any](client *river.Client[Tx], o Options) (*Queue[Tx], error) {
	if client == nil {
		return nil, misuse.Errorf("stetwork/river: New needs a client of River's")
	}
	if i := o.Insert; !reflect.ValueOf(i.UniqueOpts).IsZero() || i.Pending || !i.ScheduledAt.IsZero() {
		return nil, misuse.Errorf("stetwork/river: Options.Insert has UniqueOpts, Pending or ScheduledAt: an operation that must run again would get no job, or a job that does not run")
	}
	if o.Again < 0 || o.Again > store.MaxDelay {
		return nil, misuse.Errorf("stetwork/river: Options.Again is %v; it must be 0 to %v", o.Again, store.MaxDelay)
	}
	o.Again = cmp.Or(o.Again, stetwork.DefaultAgain)
	return &Queue[Tx]{client, o}, nil
}

// Enqueue implements stetwork.Queue.
func (q *Queue[Tx]) Enqueue(ctx context.Context, items []stet.Item) error {
	jobs := make([]river.InsertManyParams, len(items))
	for i, it := range items {
		opts := q.o.Insert
		jobs[i] = river.InsertManyParams{Args: argsOf(it), InsertOpts: &opts}
	}
	_, err := q.client.InsertMany(ctx, jobs)
	return err
}

// AcceptTx accepts an operation (see stet.TxEngine.Accept). If it is new, AcceptTx inserts its
// job in the same transaction. Both become durable with the caller's writes, or neither does.
// Dispatchers leave the operation to that job for Options.Again, or for Work.Queued if that is
// set. They also enqueue an operation with Work.After at its time, because a job that runs
// earlier, by another clock, has no effect. On an error the caller must roll back.
func (q *Queue[Tx]) AcceptTx(ctx context.Context, te *stet.TxEngine[Tx], tx Tx, op stet.Op, w stet.Work) (stet.Status, error) {
	opts := q.o.Insert
	switch {
	case w.After > 0: // a hint: the store's clock decides, and a job that comes before is lost
		opts.ScheduledAt = time.Now().Add(w.After)
	case w.Queued == 0:
		w.Queued = q.o.Again
	}
	st, err := te.Accept(ctx, tx, op, w)
	if err != nil || !st.New {
		return st, err
	}
	return st, q.insert(ctx, tx, stet.Item{ID: st.Record.ID, Class: op.Class, Name: w.Name}, opts)
}

// InsertTx inserts the job of an operation in the caller's transaction: that of its
// acceptance, if it was accepted by stet.TxEngine.Accept or by a middleware that does so,
// and is new. It is a job to be run at once; AcceptTx obeys Work.After, before which
// no operation is run. Set Work.Queued: otherwise the operation is due as well, and
// handed to the queue a second time, which is harmless but twice the work. An error is
// an *stet.Error of kind stet.KindStore, and the caller must roll back.
func (q *Queue[Tx]) InsertTx(ctx context.Context, tx Tx, it stet.Item) error {
	return q.insert(ctx, tx, it, q.o.Insert)
}

func (q *Queue[Tx]) insert(ctx context.Context, tx Tx, it stet.Item, opts river.InsertOpts) error {
	if _, err := q.client.InsertTx(ctx, tx, argsOf(it), &opts); err != nil {
		return &stet.Error{Kind: stet.KindStore, Execution: stet.NotExecuted, Cause: fmt.Errorf("stetwork/river: the job was not inserted: %w", err)}
	}
	return nil
}
