package async

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/child"
	"github.com/stet-go/stet/internal/fault"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/stetwork"
)

const (
	sweepEvery = 500 * time.Millisecond
	poll       = 100 * time.Millisecond

	stopFor     = 5 * lease / 2          // until somebody else has run what it ran
	afterlife   = 500 * time.Millisecond // of a process that was stopped
	cancelEvery = 200 * time.Millisecond
	atOnce      = 16 // operations that a process runs
	maxWait     = 5 * time.Second

	statusPath = "/operations/"
	orderPath  = "/orders/" // and the kind
)

// childEnv holds a child's order; without it the program is a parent.
const childEnv = "STET_ORDEAL_ASYNC_CHILD"

// order tells a child what to do.
type order struct {
	Flavour string
	Role    string
	Addr    string // to listen on
	Place   place
	Point   fault.Point // where to die; "" not at all
	Visit   int         // at which visit of it, from 1
	Stop    bool        // stop there for a while, and die later
}

// Main is called first by programs that use this package: in a child it serves or
// works until it is killed or told to end, and does not return.
func Main() {
	child.Main(childEnv, func(ctx context.Context, o order) error {
		err := serve(ctx, o)
		if err != nil { // for whoever finds that it is gone
			_ = os.WriteFile(filepath.Join(o.Place.Dir, "failed-"+strconv.Itoa(os.Getpid())), []byte(err.Error()), 0o600)
		}
		return err
	})
}

// process is what a child is.
type process struct {
	order
	flavour flavour
	shop    *shop
	site    *site
	engine  *stet.Engine
	worker  *stetwork.Worker // nil: it only serves
	log     *slog.Logger
}

// newHook makes the child die at its point, or stop there for longer than its
// leases live, go on as if nothing had been, and die soon after.
func newHook(o order, l *ledger) func(fault.Point) {
	var visits atomic.Int64
	return func(p fault.Point) {
		if p != o.Point || visits.Add(1) != int64(o.Visit) {
			return
		}
		if o.Stop {
			note(l, stopped, p)
			stop()
			time.AfterFunc(afterlife, die)
			return
		}
		note(l, died, p)
		die()
	}
}

// note leaves a line without asking who else writes.
func note(l *ledger, kind string, p fault.Point) {
	_, _ = l.file.WriteString(`{"kind":"` + kind + `","what":"` + string(p) + `"}` + "\n")
}

func die() {
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {} // the signal is on its way: not one step further
}

// stop stops this process. Another one has it go on.
func stop() {
	wake := exec.Command("/bin/sh", "-c", fmt.Sprintf("sleep %.1f; kill -CONT %d", stopFor.Seconds(), os.Getpid())) //nolint:noctx // it ends by itself
	if wake.Start() == nil {
		_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
	}
}

// serve serves and works until ctx ends.
func serve(ctx context.Context, o order) (err error) {
	ledger, err := openLedger(o.Place.Dir)
	if err != nil {
		return err
	}
	log, err := os.OpenFile(filepath.Join(o.Place.Dir, fmt.Sprintf("log-%s-%d", o.Role, os.Getpid())), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	p := &process{order: o, log: slog.New(slog.NewTextHandler(log, nil))}
	p.flavour = flavours[slices.IndexFunc(flavours, func(f flavour) bool { return f.name == o.Flavour })]
	p.shop = &shop{ledger: ledger, pass: newHook(o, ledger), dawdles: p.flavour.store != inSQLite}
	slog.SetDefault(p.log)
	if p.site, err = o.Place.open(ctx, p.flavour); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.site.close()) }()
	policy := stet.Policy{Lease: lease}
	if slices.Contains(p.flavour.kinds, outside) {
		policy.Verify = p.shop.verifier
	}
	if p.engine, err = stet.New(p.site.store, stet.Options{Policy: policy, SweepEvery: sweepEvery}); err != nil {
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
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", p.Addr)
		if err != nil {
			return err
		}
		h, err := p.handler(c)
		if err != nil {
			return errors.Join(err, l.Close())
		}
		start(func(ctx context.Context) error { return answer(ctx, l, h) })
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
		MaxAttempts: -1, // an operation that was in hand at many kills is not to blame
		Backoff:     func(int) time.Duration { return rand.N(50 * time.Millisecond) },
	})
	if err != nil {
		return nil, err
	}
	if slices.Contains(p.flavour.kinds, outside) {
		return w, stetwork.Handle(w, outside, p.shop.outside)
	}
	return w, p.site.register(p.shop, w)
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
		protect = p.site.protect
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

// answer serves h until ctx ends.
func answer(ctx context.Context, l net.Listener, h http.Handler) error {
	srv := &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second}
	stop := context.AfterFunc(ctx, func() { _ = srv.Close() })
	defer stop()
	if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
