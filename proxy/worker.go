package proxy

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/timer"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/stetwork"
)

// worker hands the accepted operations of a route to the service.
type worker struct {
	engine   *stet.Engine
	delivery *delivery
	async    *Async
	gate     *gate
	drain    time.Duration   // how long runs may go on when the process ends
	ending   context.Context // ends when that does
	options  Options
}

// dueAgain is how long an operation waits that a worker has seen, and died before it took
// it. What is seen is taken at once, as no more is asked for than there is room for.
const dueAgain = 10 * time.Second

// repeatable reports whether a run may be repeated although it may have executed.
func (w *worker) repeatable() bool {
	return w.async.Repeatable || w.delivery.route.Settles == settlesService
}

// part is the worker as a part of a proxy.
func (w *worker) part() part { return part{"worker of " + w.delivery.route.class(), w.run} }

func (w *worker) run(ctx context.Context) error {
	policy, _ := w.engine.Policy(w.delivery.route.class())
	worker, err := stetwork.New(w.engine, stetwork.Options{
		Concurrency: w.async.Concurrency, MaxAttempts: w.async.MaxAttempts, ErrorLog: w.options.ErrorLog, NoStrays: true,
		Drain: policy.RunTimeout + time.Minute, // after a reload; see hurry
		Backoff: func(n int) time.Duration {
			return rand.N(timer.Doubled(n, w.async.minBackoff(), w.async.maxBackoff())) + 1
		},
		Await:       w.gate.await,
		Dispatch:    stetwork.DispatcherOptions{Again: dueAgain},
		CancelEvery: -1, // the service learns it with its progress: an answer that is cut off stops nothing
	})
	if err != nil {
		return err
	}
	if err := stetwork.HandleOutcome(worker, w.delivery.route.class(), w.repeatable(), w.do); err != nil {
		return err
	}
	defer w.hurry(worker)()
	return worker.Run(ctx)
}

// hurry has runs end soon when the process ends, until it is told to stop. A configuration
// that was replaced lets them end.
func (w *worker) hurry(worker *stetwork.Worker) (stop func()) {
	var active sync.WaitGroup
	ended := make(chan struct{})
	active.Go(func() {
		select {
		case <-ended:
			return
		case <-w.ending.Done():
		}
		ctx, cancel := context.WithTimeout(context.Background(), w.drain)
		defer cancel()
		_ = worker.Shutdown(ctx) // Run returns the same
	})
	return func() {
		close(ended)
		active.Wait()
	}
}

// do hands one operation over.
func (w *worker) do(ctx context.Context, run *stet.Lease) (stet.Outcome, error) {
	e, err := unpackErrand(run.Work.Payload)
	if err != nil {
		return stet.Outcome{}, stet.Permanent(err)
	}
	own := http.Header{stethttp.HeaderProgress: {stethttp.ProgressToken(run.Claim, w.repeatable())}, HeaderStatusPage: {w.async.status() + run.ID().String()}}
	if w.delivery.route.Settles == settlesService {
		own[HeaderClaim] = []string{run.Claim.String()}
	}
	out, err := w.delivery.send(ctx, e, own, w.repeatable())
	u, again := errors.AsType[*undone](err)
	if again && u.uncounted {
		w.gate.lost(u.why, 0)
	} else {
		w.gate.found()
	}
	if again {
		err = stetwork.Again(err, u.again)
	}
	return out, err
}
