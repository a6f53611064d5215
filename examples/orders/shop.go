package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/stetwork"
	"github.com/stet-go/stet/store"
)

const (
	lease        = 5 * time.Second // after a worker was killed its order waits for that long, and
	recoverEvery = 2 * time.Second // how often expired runs are looked for

	maxCopies   = 100
	operations  = "/v1/operations/"
	closeWithin = 5 * time.Second

	schema = `
CREATE TABLE IF NOT EXISTS orders (book TEXT NOT NULL, copies INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS shipments (book TEXT NOT NULL, copies INTEGER NOT NULL);`
)

//go:embed page.html
var page []byte

// order is an order, and a worker's payload.
type order struct {
	Book   string `json:"book"`
	Copies int    `json:"copies"`
}

// parcel is what becomes of it.
type parcel struct {
	Shipped string `json:"shipped"`
	Copies  int    `json:"copies"`
}

// shop is the whole service, but for what the flavours differ in. Tx is the
// transaction of the store.
type shop[Tx any] struct {
	store store.WorkTxStore[Tx]
	exec  func(ctx context.Context, tx Tx, query string, args ...any) error
	count func(ctx context.Context, table string) (n int, err error)
	// queue carries orders to workers, and carry brings them from it, until ctx
	// ends. Without them the store is the queue.
	queue stetwork.Queue
	carry func(ctx context.Context, w *stetwork.Worker) error
	// accept, if the queue is in the same database, makes what accepts an order
	// and puts it into the queue in one transaction.
	accept func(te *stet.TxEngine[Tx]) func(ctx context.Context, op stet.Op, w stet.Work) (stet.Status, error)
}

// serve accepts orders and works until ctx ends.
func (s *shop[Tx]) serve(ctx context.Context, o settings, out io.Writer) (err error) {
	engine, err := stet.New(s.store, stet.Options{Policy: stet.Policy{Lease: lease}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, engine.Close()) }()
	te, err := stet.WithTx(engine, s.store)
	if err != nil {
		return err
	}
	worker, err := stetwork.New(engine, stetwork.Options{Queue: s.queue, RecoverEvery: recoverEvery, Drain: closeWithin})
	if err != nil {
		return err
	}
	// Its steps ensure that nothing is shipped twice, so an expired run is repeated.
	err = stetwork.HandleIdempotent(worker, "ship", func(ctx context.Context, or order) (parcel, error) { return s.ship(ctx, te, or, o.pack) })
	if err != nil {
		return err
	}
	handler, async, err := s.routes(te)
	if err != nil {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", o.addr)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: closeWithin}
	server.RegisterOnShutdown(async.Close)
	fmt.Fprintf(out, "listening on http://%s, with the queue %s\n", listener.Addr(), o.queue)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	g.Go(func() error {
		<-ctx.Done()
		bound, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeWithin)
		defer cancel()
		return server.Shutdown(bound)
	})
	g.Go(func() error { return worker.Run(ctx) })
	if s.carry != nil {
		g.Go(func() error { return s.carry(ctx, worker) })
	}
	return g.Wait()
}

func (s *shop[Tx]) routes(te *stet.TxEngine[Tx]) (http.Handler, *stethttp.Async, error) {
	// Real services have a scope for each account: that of the authenticated user.
	protected, err := stethttp.NewTx(te, stethttp.Options{Scope: stethttp.SingleTenant})
	if err != nil {
		return nil, nil, err
	}
	o := stethttp.AsyncOptions{StatusURL: operations}
	if s.accept != nil {
		o.AcceptTx = s.accept(te)
	}
	async, err := stethttp.NewAsync(protected.Middleware, o)
	if err != nil {
		return nil, nil, err
	}
	mux := http.NewServeMux()
	mux.Handle("POST /v1/orders", async.Accept("ship", s.prepare))
	mux.Handle(operations, async.Status())
	mux.HandleFunc("GET /v1/orders", s.counts)
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = w.Write(page)
	})
	return mux, async, nil
}

// prepare writes the order in the transaction in which it is accepted: both become
// durable, or neither.
func (s *shop[Tx]) prepare(w http.ResponseWriter, r *http.Request) (work stet.Work, ok bool) {
	var o order
	if err := json.NewDecoder(r.Body).Decode(&o); err != nil || o.Book == "" || len(o.Book) > 200 || o.Copies < 1 || o.Copies > maxCopies {
		http.Error(w, fmt.Sprintf(`an order is like {"book": "Emma", "copies": 3}, of 1 to %d copies`, maxCopies), http.StatusUnprocessableEntity)
		return work, false
	}
	work, err := stetwork.NewWork("ship", o)
	if err == nil {
		err = s.exec(r.Context(), stethttp.Tx[Tx](r.Context()), `INSERT INTO orders VALUES ($1, $2)`, o.Book, o.Copies)
	}
	if err != nil {
		http.Error(w, "the order was not taken; try again", http.StatusInternalServerError)
		return work, false
	}
	return work, true
}

// ship packs copy by copy, and continues where an earlier attempt has ended. The
// shipment and that it was made are one commit.
func (s *shop[Tx]) ship(ctx context.Context, te *stet.TxEngine[Tx], o order, pack time.Duration) (parcel, error) {
	run := stet.FromContext(ctx)
	for i := range o.Copies {
		packed := fmt.Sprintf("packed %d of %d", i+1, o.Copies)
		if _, err := stet.Step(ctx, packed, func(ctx context.Context) (bool, error) {
			if err := sleep(ctx, pack); err != nil {
				return false, err
			}
			return true, run.Progress(ctx, float64(i+1)/float64(o.Copies+1), packed)
		}); err != nil {
			return parcel{}, err
		}
	}
	return stet.StepTx(ctx, te, "shipped", func(ctx context.Context, tx Tx) (parcel, error) {
		return parcel{o.Book, o.Copies}, s.exec(ctx, tx, `INSERT INTO shipments VALUES ($1, $2)`, o.Book, o.Copies)
	})
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// counts tells how many orders and shipments there are.
func (s *shop[Tx]) counts(w http.ResponseWriter, r *http.Request) {
	orders, err1 := s.count(r.Context(), "orders")
	shipments, err2 := s.count(r.Context(), "shipments")
	if errors.Join(err1, err2) != nil {
		http.Error(w, "the database does not answer", http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]int{"orders": orders, "shipments": shipments})
}
