package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/bench/internal/rounds"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/stetwork"
)

// contender is a way from a request to the outcome.
type contender struct {
	name  string
	url   string
	tally *tally
	mu    sync.Mutex
	keys  map[string]bool // of all operations whose outcome was told
	end   func() error
}

var next atomic.Int64 // key

// rates compares the sidecar with the same in Go, on one kind of store.
func rates(ctx context.Context, p *place, kind string) (err error) {
	var all []*contender
	defer func() {
		for _, c := range all {
			err = errors.Join(err, c.end())
		}
	}()
	for _, begin := range []func(context.Context, *place, string) (*contender, error){throughSidecar, inGo} {
		c, err := begin(ctx, p, kind)
		if err != nil {
			return err
		}
		all = append(all, c)
	}
	var measured []rounds.Contender
	for _, callers := range callersOf {
		for _, c := range all {
			measured = append(measured, rounds.Contender{Name: name(c, callers), Measure: func() (float64, error) { return c.load(ctx, callers) }})
		}
	}
	fmt.Println("operations from acceptance to outcome, the caller waiting for it;", kind)
	found, err := rounds.Compare(*n, measured...)
	if err != nil {
		return err
	}
	for _, c := range all {
		if err := c.tally.check(kind+", "+c.name, c.keys); err != nil {
			return err
		}
	}
	for _, callers := range callersOf {
		through, in := found[name(all[0], callers)], found[name(all[1], callers)]
		figure := "flow_" + kind + "_" + strconv.Itoa(callers)
		rounds.Figure(figure+"_ratio", rounds.Ratio(through, in), "of the same in Go")
		rounds.Figure(figure, rounds.Median(through), "operations/s through the sidecar")
		rounds.Figure(figure+"_go", rounds.Median(in), "operations/s in Go")
	}
	return nil
}

func name(c *contender, callers int) string { return c.name + ", " + strconv.Itoa(callers) }

// throughSidecar is a service behind stet proxy.
func throughSidecar(ctx context.Context, p *place, kind string) (*contender, error) {
	url, err := p.store(ctx, kind)
	if err != nil {
		return nil, err
	}
	c := &contender{name: "sidecar", tally: newTally(), keys: make(map[string]bool)}
	upstream, stop, err := serve(ctx, c.tally)
	if err != nil {
		return nil, err
	}
	s, err := start(ctx, p.program, p.dir, config{store: url, upstream: upstream, worker: "inside", at: *workers})
	if err != nil {
		return nil, errors.Join(err, stop())
	}
	c.url = s.url
	c.end = func() error { return errors.Join(s.stop(), stop()) }
	return c, nil
}

// inGo is the same service in this process, without a sidecar.
func inGo(ctx context.Context, p *place, kind string) (_ *contender, err error) {
	var closing []func() error
	c := &contender{name: "Go", tally: newTally(), keys: make(map[string]bool)}
	c.end = func() (err error) {
		for i := len(closing) - 1; i >= 0; i-- {
			err = errors.Join(err, closing[i]())
		}
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.end())
		}
	}()
	url, err := p.store(ctx, kind)
	if err != nil {
		return nil, err
	}
	st, err := open(ctx, kind, url)
	if err != nil {
		return nil, err
	}
	closing = append(closing, st.Close)
	engine, err := stet.New(st, stet.Options{})
	if err != nil {
		return nil, err
	}
	closing = append(closing, engine.Close)
	handler, work, err := c.service(engine)
	if err != nil {
		return nil, err
	}
	closing = append(closing, work(ctx))
	var stop func() error
	if c.url, stop, err = serve(ctx, handler); err != nil {
		return nil, err
	}
	closing = append(closing, stop)
	return c, nil
}

// service is an HTTP service that accepts orders, and a worker that ships them, which
// work starts; end ends it.
func (c *contender) service(engine *stet.Engine) (h http.Handler, work func(context.Context) (end func() error), err error) {
	m, err := stethttp.New(engine, stethttp.Options{Scope: func(*http.Request) (string, error) { return "single-tenant", nil }, MaxWait: longest})
	if err != nil {
		return nil, nil, err
	}
	async, err := stethttp.NewAsync(m, stethttp.AsyncOptions{StatusURL: "/operations/"})
	if err != nil {
		return nil, nil, err
	}
	mux := http.NewServeMux()
	mux.Handle("POST /orders", async.Accept("ship", nil))
	mux.Handle("/operations/", async.Status())
	worker, err := stetwork.New(engine, stetwork.Options{Concurrency: *workers, ErrorLog: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, nil, err
	}
	err = stetwork.Handle(worker, "ship", func(ctx context.Context, _ json.RawMessage) (json.RawMessage, error) {
		c.tally.execute(stet.FromContext(ctx).Op().Key)
		return answer, nil
	})
	return mux, func(ctx context.Context) func() error {
		ctx, cancel := context.WithCancel(ctx)
		ended := make(chan error, 1)
		go func() { ended <- worker.Run(ctx) }() // ends with cancel
		return func() error {
			cancel()
			return <-ended
		}
	}, err
}

// load has so many callers order, each as soon as it has the outcome of its last order.
func (c *contender) load(ctx context.Context, callers int) (float64, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, errors.New("the operations were not done in time"))
	defer cancel()
	cl := newClient(c.url, callers)
	defer cl.close()
	errs := make([]error, callers)
	done := make([][]string, callers)
	var wg sync.WaitGroup
	began := time.Now()
	for i := range callers {
		wg.Go(func() {
			for time.Since(began) < *each && errs[i] == nil {
				key := strconv.FormatInt(next.Add(1), 10)
				var told bool
				told, errs[i] = cl.poll(ctx, key)
				if errs[i] == nil && !told {
					errs[i] = fmt.Errorf("there was no outcome within %v", longest)
				}
				done[i] = append(done[i], key)
			}
		})
	}
	wg.Wait()
	took, all := time.Since(began), 0
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, keys := range done {
		all += len(keys)
		for _, key := range keys {
			c.keys[key] = true
		}
	}
	return float64(all) / took.Seconds(), errors.Join(errs...)
}
