package proxy

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/timer"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/stetwork"
	"github.com/stet-go/stet/store"
)

// worker sends the accepted operations of a route to the service.
type worker struct {
	engine       *stet.Engine
	delivery     *delivery
	async        *Async
	availability *availability
	drain        time.Duration   // how long runs can continue when the process ends
	ending       context.Context // ends when that does
	options      Options
}

// dueAgain is how long an operation waits if a worker has read it and ended before it claimed it.
const dueAgain = 10 * time.Second

// repeatable reports whether a run may be repeated although it may have executed.
func (w *worker) repeatable() bool {
	return w.async.Repeatable || w.delivery.route.Settles == settlesService
}

func (w *worker) run(ctx context.Context) error {
	policy, _ := w.engine.Policy(w.delivery.route.class())
	worker, err := stetwork.New(w.engine, stetwork.Options{
		Concurrency: w.async.Concurrency, MaxAttempts: w.async.MaxAttempts, ErrorLog: w.options.ErrorLog,
		Drain: policy.RunTimeout + time.Minute, // after a reload
		Backoff: func(n int) time.Duration {
			return rand.N(timer.Doubled(n, w.async.minBackoff(), w.async.maxBackoff())) + 1
		},
		Await:       w.availability.await,
		Dispatch:    stetwork.DispatcherOptions{Again: dueAgain, Names: []string{w.delivery.route.class()}},
		CancelEvery: -1, // the response to a progress report says so
	})
	if err != nil {
		return err
	}
	if err := stetwork.HandleOutcome(worker, w.delivery.route.class(), w.repeatable(), w.do); err != nil {
		return err
	}
	// After a reload the runs continue; the end of the process ends them.
	defer context.AfterFunc(w.ending, func() {
		ctx, cancel := context.WithTimeout(context.Background(), w.drain)
		defer cancel()
		_ = worker.Shutdown(ctx) // Run returns the same
	})()
	return worker.Run(ctx)
}

// do sends one operation.
func (w *worker) do(ctx context.Context, run *stet.Lease) (stet.Outcome, error) {
	e, err := unpackJob(run.Work.Payload)
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
		w.availability.lost(u.why, 0)
	} else {
		w.availability.found()
	}
	if again {
		err = stetwork.Again(err, u.again)
	}
	return out, err
}

// The log reports accepted operations that this process does not run: at each scan, but each
// name at most once in unhandledRest. A worker elsewhere has unhandledAfter to begin them.
const (
	unhandledEvery = time.Minute
	unhandledRest  = 10 * time.Minute
	unhandledAfter = time.Minute
)

// unhandledWork reports accepted operations that no worker of this process sends: their
// route no longer exists, or the workers are elsewhere and have not begun them.
type unhandledWork struct {
	store    store.Browser
	log      *slog.Logger
	routes   map[string]bool      // by name: whether this process runs their operations
	reported map[string]time.Time // by name
}

// watchUnhandledWork adds the scan to the parts of a generation.
func (p *Proxy) watchUnhandledWork(g *generation) {
	b, ok := store.As[store.Browser](p.store)
	if !ok || p.o.Parts&Workers == 0 {
		return
	}
	u := &unhandledWork{store: b, log: p.o.ErrorLog, routes: map[string]bool{}, reported: map[string]time.Time{}}
	for _, r := range g.config.Routes {
		if r.Async != nil {
			u.routes[r.class()] = g.config.Worker != workerElsewhere
		}
	}
	g.parts = append(g.parts, part{"scan for unhandled work", func(ctx context.Context) error {
		for u.scan(ctx); timer.Sleep(ctx, timer.Around(unhandledEvery)); u.scan(ctx) { //nolint:revive // the scan is the step
		}
		return nil
	}})
}

// scan reads the operations that have waited longest, and logs an error for each name. A failing
// store is reported by others.
func (u *unhandledWork) scan(ctx context.Context) {
	for _, olderThan := range []time.Duration{0, unhandledAfter} {
		page, err := u.store.Browse(ctx, store.Query{States: []store.State{store.Accepted}, OlderThan: olderThan, Limit: store.MaxBrowse})
		if err != nil {
			return
		}
		maps.DeleteFunc(u.reported, func(_ string, at time.Time) bool { return time.Since(at) >= unhandledRest })
		for _, r := range page.Records {
			name := r.Label.Name
			here, known := u.routes[name]
			why := ""
			switch {
			case !u.reported[name].IsZero():
				continue
			case !known:
				why = "proxy: accepted operations have no route with async here; they stay accepted until such a route exists, or they are cancelled"
			case !here && olderThan > 0 && r.Attempt == 0:
				why = "proxy: accepted operations wait for a worker in another process: 'stet worker' must run, and reach the service"
			default:
				continue
			}
			u.reported[name] = time.Now()
			u.log.ErrorContext(ctx, why, slog.String("name", name))
		}
	}
}
