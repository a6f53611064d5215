package demo

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/stetwork"
	"github.com/stet-go/stet/store/sqlite"
)

// What becomes of an operation whose worker was killed is found out soon: the
// demonstration's clock is short.
const (
	workLease    = time.Second            // of a run
	workRecovery = 200 * time.Millisecond // between looks for dead ones
	workAgain    = time.Second            // until what was handed out and not begun is handed out again
	workBackoff  = 50 * time.Millisecond  // after a run that was rolled back, as when the machine had no time for its heartbeats
	workers      = 4

	operationsPath = "/operations/" // what became of a payment that was accepted
)

// later is a service that answers 202 and charges afterwards.
type later struct {
	pay, status http.Handler
	stop        func() error
}

// acceptInTheirs is such a service with stet: what it has accepted is durable, and
// the charge and the outcome are one commit.
func acceptInTheirs(ctx context.Context, engine *stet.Engine, store *sqlite.Store) (*later, error) {
	protect, err := stethttp.New(engine, stethttp.Options{Scope: stethttp.SingleTenant})
	if err != nil {
		return nil, err
	}
	async, err := stethttp.NewAsync(protect, stethttp.AsyncOptions{StatusURL: operationsPath})
	if err != nil {
		return nil, err
	}
	worker, err := stetwork.New(engine, stetwork.Options{Concurrency: workers, MaxAttempts: -1, RecoverEvery: workRecovery,
		Backoff: func(int) time.Duration { return workBackoff }, Dispatch: stetwork.DispatcherOptions{Again: workAgain}})
	if err != nil {
		return nil, err
	}
	te, err := stet.WithTx(engine, store)
	if err != nil {
		return nil, err
	}
	err = stetwork.HandleTx(worker, te, "charge", func(ctx context.Context, tx *sql.Tx, p payment) (charge, error) { return book(ctx, tx, p, "") })
	if err != nil {
		return nil, err
	}
	working, end := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan error, 1)
	go func() { ended <- worker.Run(working) }() // ends with stop
	return &later{
		pay: async.Accept("charge", func(w http.ResponseWriter, r *http.Request) (stet.Work, bool) {
			p, ok := readPayment(w, r)
			if !ok {
				return stet.Work{}, false
			}
			work, err := stetwork.NewWork("charge", p)
			if err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
			}
			return work, err == nil
		}),
		status: async.Status(),
		stop: func() error {
			async.Close()
			end()
			return <-ended
		},
	}, nil
}

// hasty is such a service as it is written without stet: a goroutine does the rest.
type hasty struct {
	shop *shop
	work sync.WaitGroup

	mu       sync.Mutex
	accepted map[string]*charge // nil until it is charged
}

func acceptInOurs(s *shop) *later {
	h := &hasty{shop: s, accepted: make(map[string]*charge)}
	return &later{pay: http.HandlerFunc(h.pay), status: http.HandlerFunc(h.status), stop: func() error { h.work.Wait(); return nil }}
}

func (h *hasty) pay(w http.ResponseWriter, r *http.Request) {
	p, ok := readPayment(w, r)
	if !ok {
		return
	}
	id := rand.Text()
	h.mu.Lock()
	h.accepted[id] = nil
	h.mu.Unlock()
	ctx := context.WithoutCancel(r.Context())
	h.work.Go(func() { h.charge(ctx, id, p) })
	w.Header().Set("Location", operationsPath+id)
	answer(w, http.StatusAccepted, map[string]string{"status_url": operationsPath + id})
}

func (h *hasty) charge(ctx context.Context, id string, p payment) {
	c, err := h.shop.charge(ctx, p, attempt{})
	h.mu.Lock()
	defer h.mu.Unlock()
	if err != nil {
		delete(h.accepted, id)
		return
	}
	h.accepted[id] = &c
}

func (h *hasty) status(w http.ResponseWriter, r *http.Request) {
	h.mu.Lock()
	c, known := h.accepted[r.URL.Path[len(operationsPath):]]
	h.mu.Unlock()
	switch {
	case !known: // it was another process's
		http.Error(w, "there is no such operation", http.StatusNotFound)
	case c == nil:
		answer(w, http.StatusOK, map[string]string{"state": "running"})
	default:
		result, err := json.Marshal(c)
		if err != nil {
			fail(w, fmt.Errorf("a charge as JSON: %w", err))
			return
		}
		answer(w, http.StatusOK, operation{State: "completed", Outcome: outcome{Result: result}})
	}
}
