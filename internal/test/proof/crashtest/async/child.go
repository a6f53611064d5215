package async

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/child"
	"github.com/stet-go/stet/internal/crash"
	"github.com/stet-go/stet/internal/fault"
	"github.com/stet-go/stet/internal/test/proof/crashtest"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/stetwork"
)

const (
	sweepEvery = 500 * time.Millisecond
	poll       = 100 * time.Millisecond

	stopFor     = 5 * lease / 2 // until another process has run its operation
	cancelEvery = 200 * time.Millisecond
	atOnce      = 16 // operations that a process runs
	maxWait     = 5 * time.Second

	statusPath = "/operations/"
	orderPath  = "/orders/" // and the kind
)

// childEnv holds a child's order; without it the program is a parent.
const childEnv = "STET_CRASHTEST_ASYNC"

// order tells a child what to do.
type order struct {
	Flavour string
	Role    string
	Addr    string // to listen on
	Place   crashtest.Place
	Broker  string // URL
	Visit   crashtest.Visit
}

// Main is called first by programs that use this package: in a child it serves or
// works until it is killed or told to end, and does not return.
func Main() { child.Main(childEnv, serve) }

// process is what a child is.
type process struct {
	order
	flavour flavour
	shop    *shop
	site    *crashtest.Site
	engine  *stet.Engine
	worker  *stetwork.Worker // nil: it only serves
	log     *slog.Logger
}

// serve serves and works until ctx ends.
func serve(ctx context.Context, o order) (err error) {
	ledger, err := crashtest.OpenLedger(o.Place.Dir)
	if err != nil {
		return err
	}
	log, err := os.OpenFile(filepath.Join(o.Place.Dir, fmt.Sprintf("log-%s-%d", o.Role, os.Getpid())), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	p := &process{order: o, log: slog.New(slog.NewTextHandler(log, nil))}
	p.flavour = flavours[slices.IndexFunc(flavours, func(f flavour) bool { return f.name == o.Flavour })]
	p.shop = &shop{ledger: ledger, pass: o.Visit.Mortal(nil).Pass, dawdles: p.flavour.store != crashtest.SQLite}
	slog.SetDefault(p.log)
	if p.site, err = o.Place.Open(ctx, nil); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.site.Close()) }()
	policy := stet.Policy{Lease: lease}
	if slices.Contains(p.flavour.kinds, outside) {
		policy.Verify = p.shop.verifier
	}
	if p.engine, err = stet.New(p.site.Store, stet.Options{Policy: policy, SweepEvery: sweepEvery}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.engine.Close()) }()
	c, err := p.connect(ctx)
	if err != nil {
		return err
	}
	defer c.close()
	fault.Set(p.shop.pass)
	return p.run(ctx, c)
}

// run has everything run that the role asks for. The first that ends, ends all.
func (p *process) run(ctx context.Context, c *carrier) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var all sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	start := func(f func(context.Context) error) {
		all.Go(func() {
			err := f(ctx)
			cancel()
			mu.Lock()
			defer mu.Unlock()
			errs = append(errs, err)
		})
	}
	if p.Role != works {
		l, err := crash.Listen(ctx, p.Addr)
		if err != nil {
			return err
		}
		h, err := p.handler(c)
		if err != nil {
			return errors.Join(err, l.Close())
		}
		start(func(ctx context.Context) error { return crash.Serve(ctx, l, h) })
		p.Addr = l.Addr().String()
	}
	if p.worker != nil {
		start(p.worker.Run)
	}
	for _, f := range c.runs {
		start(f)
	}
	child.Ready(os.Stdout, p.Addr)
	all.Wait()
	return errors.Join(errs...)
}

// newWorker returns a worker with all handlers.
func (p *process) newWorker(queue stetwork.Queue) (*stetwork.Worker, error) {
	w, err := stetwork.New(p.engine, stetwork.Options{
		Queue: queue, Concurrency: atOnce, RecoverEvery: recoverEvery, ErrorLog: p.log, Dispatch: p.dispatch(), CancelEvery: cancelEvery,
		MaxAttempts: -1, // an operation that was running at many kills is not to blame
		Backoff:     func(int) time.Duration { return rand.N(50 * time.Millisecond) },
	})
	if err != nil {
		return nil, err
	}
	if slices.Contains(p.flavour.kinds, outside) {
		return w, stetwork.Handle(w, outside, p.shop.outside)
	}
	return w, p.shop.handlers(w, p.engine, p.site)
}

func (p *process) dispatch() stetwork.DispatcherOptions {
	return stetwork.DispatcherOptions{Poll: poll, Again: again, ErrorLog: p.log}
}

// queue is a queue with places to die in.
func (p *process) queue(q stetwork.Queue) stetwork.Queue {
	return stetwork.QueueFunc(func(ctx context.Context, items []stet.Item) error {
		p.shop.pass(enqueueBefore)
		err := q.Enqueue(ctx, items)
		p.shop.pass(enqueueAfter)
		return err
	})
}

// handler is the service.
func (p *process) handler(c *carrier) (http.Handler, error) {
	protect := stethttp.New
	if p.flavour.acceptsInTx() {
		protect = p.site.Protect
	}
	m, err := protect(p.engine, stethttp.Options{Scope: stethttp.SingleTenant, MaxWait: maxWait, ErrorLog: p.log})
	if err != nil {
		return nil, err
	}
	async, err := stethttp.NewAsync(m, stethttp.AsyncOptions{StatusURL: statusPath})
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	for _, kind := range p.flavour.kinds {
		mux.Handle("POST "+orderPath+kind, async.Accept(kind, c.prepare))
	}
	mux.Handle(statusPath, async.Status())
	return mux, nil
}
