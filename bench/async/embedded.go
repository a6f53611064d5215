package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/bench/internal/rounds"
	"github.com/stet-go/stet/observe"
	"github.com/stet-go/stet/stetwork"
	"github.com/stet-go/stet/store/sqlite"
)

const shipped = `INSERT INTO shipments ("order", body) VALUES (?, ?)`

// yard is an embedded store with the tables of a service in its file.
type yard struct {
	store   *sqlite.Store
	engine  *stet.Engine
	settled func() // called for each outcome; set while nothing runs
}

// embedded measures the store as its own queue.
func embedded(ctx context.Context) (err error) {
	dir, err := os.MkdirTemp("", "stet-async-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	y := &yard{}
	if y.store, err = sqlite.Open(ctx, filepath.Join(dir, "stet.db"), sqlite.Options{}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, y.store.Close()) }()
	if _, err := y.store.DB().ExecContext(ctx, `CREATE TABLE shipments (id INTEGER PRIMARY KEY, "order" INTEGER, body TEXT)`); err != nil {
		return err
	}
	y.engine, err = stet.New(y.store, stet.Options{Observer: observe.Func(func(_ context.Context, e observe.Event) {
		if e.Kind == observe.Settled {
			y.settled()
		}
	})})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, y.engine.Close()) }()
	ct := contest{p99: make(map[string][]float64)}
	ct.rates, err = rounds.Compare(*n,
		ct.round(ctx, contender{"embedded", y.accept, y.work(y.handle)}),
		ct.round(ctx, contender{"embedded tx", y.accept, y.work(y.handleTx)}),
		rounds.Contender{Name: "accept", Measure: func() (float64, error) { return y.backlog(ctx, true) }},
		rounds.Contender{Name: "run", Measure: func() (float64, error) { return y.backlog(ctx, false) }},
		rounds.Contender{Name: "commits", Measure: func() (float64, error) { return y.commits(ctx) }},
	)
	if err != nil {
		return err
	}
	rounds.Figure("async_embedded", rounds.Median(ct.rates["embedded"]), "operations/s")
	rounds.Figure("async_embedded_accept_p99", rounds.Median(ct.p99["embedded"]), "ms")
	rounds.Figure("async_embedded_tx", rounds.Median(ct.rates["embedded tx"]), "operations/s, the handler's insert and the outcome in one commit")
	rounds.Figure("async_embedded_tx_accept_p99", rounds.Median(ct.p99["embedded tx"]), "ms")
	rounds.Figure("async_embedded_accept_limit", rounds.Median(ct.rates["accept"]), "acceptances/s when nothing runs")
	rounds.Figure("async_embedded_run_limit", rounds.Median(ct.rates["run"]), "outcomes/s of a backlog when nothing is accepted")
	rounds.Figure("async_embedded_commits", rounds.Median(ct.rates["commits"]), "inserts/s, each a commit, of the same file by itself")
	return nil
}

func (y *yard) accept(ctx context.Context, order int64) error {
	work, err := stetwork.NewWork("ship", body{order, text})
	if err != nil {
		return err
	}
	_, err = y.engine.Accept(ctx, stet.Op{Scope: "bench", Key: strconv.FormatInt(order, 10)}, work)
	return err
}

func (y *yard) handle(w *stetwork.Worker) error {
	return stetwork.Handle(w, "ship", func(_ context.Context, b body) (int64, error) { return b.Order, nil })
}

func (y *yard) handleTx(w *stetwork.Worker) error {
	te, err := stet.WithTx(y.engine, y.store)
	if err != nil {
		return err
	}
	return stetwork.HandleTx(w, te, "ship", func(ctx context.Context, tx *sql.Tx, b body) (int64, error) {
		_, err := tx.ExecContext(ctx, shipped, b.Order, b.Text)
		return b.Order, err
	})
}

func (y *yard) work(register func(*stetwork.Worker) error) working {
	return func(ctx context.Context, done func()) (func() error, error) {
		y.settled = done
		worker, err := stetwork.New(y.engine, stetwork.Options{Concurrency: *workers, ErrorLog: quiet})
		if err != nil {
			return nil, err
		}
		if err := register(worker); err != nil {
			return nil, err
		}
		ended := make(chan error, 1)
		ctx, cancel := context.WithCancel(ctx)
		go func() { ended <- worker.Run(ctx) }() // ends with cancel
		return func() error {
			cancel()
			return <-ended
		}, nil
	}
}

// backlog measures how fast a backlog is accepted, or else how fast it is run
// down.
func (y *yard) backlog(ctx context.Context, accepting bool) (float64, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, errors.New("the backlog was not run down in time"))
	defer cancel()
	began := time.Now()
	if _, err := flood(ctx, y.accept); err != nil {
		return 0, err
	}
	took := time.Since(began)
	all := make(chan struct{}, *count)
	began = time.Now()
	end, err := y.work(y.handleTx)(ctx, func() { all <- struct{}{} })
	if err != nil {
		return 0, err
	}
	for range *count {
		select {
		case <-all:
		case <-ctx.Done():
			return 0, errors.Join(context.Cause(ctx), end())
		}
	}
	if !accepting {
		took = time.Since(began)
	}
	return float64(*count) / took.Seconds(), end()
}

// commits measures the file itself.
func (y *yard) commits(ctx context.Context) (float64, error) {
	began := time.Now()
	_, err := flood(ctx, func(ctx context.Context, order int64) error {
		if _, err := y.store.DB().ExecContext(ctx, shipped, order, text); err != nil {
			return fmt.Errorf("a bare insert: %w", err)
		}
		return nil
	})
	return float64(*count) / time.Since(began).Seconds(), err
}
