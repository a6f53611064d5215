package stethttp_test

import (
	"context"
	"database/sql"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
	"github.com/stet-go/stet/store/sqlite"
)

// lossy is a store that loses replies to commits, or the commits.
type lossy struct {
	*sqlite.Store
	mu            sync.Mutex
	before, after error
}

func (l *lossy) lose(before, after error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.before, l.after = before, after
}

func (l *lossy) InTx(ctx context.Context, fn func(context.Context, *sql.Tx) error) error {
	l.mu.Lock()
	before, after := l.before, l.after
	l.mu.Unlock()
	err := l.Store.InTx(ctx, func(ctx context.Context, tx *sql.Tx) error { return errors.Join(fn(ctx, tx), before) })
	return errors.Join(err, after)
}

// booked writes an order into the transaction, unless the request excludes it.
func booked(w http.ResponseWriter, r *http.Request) (stet.Work, bool) {
	body, _ := io.ReadAll(r.Body)
	if _, err := stethttp.Tx[*sql.Tx](r.Context()).ExecContext(r.Context(), "INSERT INTO orders (body) VALUES (?)", body); err != nil {
		panic(err)
	}
	switch r.Header.Get("Test") {
	case "refuse":
		http.Error(w, "no", http.StatusConflict)
		return stet.Work{}, false
	case "panic":
		panic(http.ErrAbortHandler)
	}
	return stet.Work{Payload: body}, true
}

// bookings is a service that books orders in the transaction of their acceptance.
type bookings struct {
	*service
	store *lossy
}

func startBookings(t *testing.T) bookings {
	t.Helper()
	return startBookingsWith(t, func(bookings) stethttp.AsyncOptions { return stethttp.AsyncOptions{} })
}

func startBookingsWith(t *testing.T, options func(bookings) stethttp.AsyncOptions) bookings {
	t.Helper()
	store, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "orders.db"), sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	if _, err := store.DB().ExecContext(t.Context(), "CREATE TABLE orders (body TEXT); CREATE TABLE jobs (id TEXT)"); err != nil {
		t.Fatal(err)
	}
	b := bookings{store: &lossy{Store: store}}
	engine := stettest.Engine(t, b.store, stet.Options{})
	log := slog.New(slog.NewTextHandler(&stettest.Log{}, nil))
	m := stethttp.Must(stethttp.NewTx(stettest.TxEngine(engine, b.store), stethttp.Options{Scope: stethttp.SingleTenant, ErrorLog: log})).Middleware
	b.service = &service{t: t, store: b.store, engine: engine}
	o := options(b)
	srv := httptest.NewServer((&setup{async: &o, prepare: booked}).accepting(m))
	t.Cleanup(srv.Close)
	b.url, b.client = srv.URL, srv.Client()
	return b
}

func (b bookings) wantOrders(n int) {
	b.t.Helper()
	var got int
	if err := b.store.DB().QueryRowContext(b.t.Context(), "SELECT count(*) FROM orders").Scan(&got); err != nil || got != n {
		b.t.Errorf("%d orders are booked (%v), want %d", got, err, n)
	}
}

func TestOrderAndAcceptanceAreOneCommit(t *testing.T) {
	b := startBookings(t)
	wantReply(t, b.order("k", `{"item":1}`, "Test", "refuse"), 409, "no\n", false)
	if r := b.order("k", `{"item":1}`, "Test", "panic"); r.err == nil {
		t.Errorf("got %d", r.status)
	}
	b.store.lose(errors.New("the disk is full"), nil)
	wantProblem(t, b.order("k", `{"item":1}`), 504, "acceptance-unknown")
	b.store.lose(nil, nil)
	b.wantOrders(0)
	b.wantNothingDue()
	first := b.order("k", `{"item":1}`)
	wantAccepted(t, first, false)
	for _, test := range []string{"", "refuse"} {
		retry := b.order("k", `{"item":1}`, "Test", test)
		wantAccepted(t, retry, true)
		wantSame(t, retry, first)
	}
	for _, test := range []string{"", "refuse"} {
		wantProblem(t, b.order("k", `{"item":2}`, "Test", test), 422, "mismatch")
	}
	b.wantOrders(1)
	b.run(store.Completed, `{"order":7}`)
	wantReply(t, b.order("k", `{"item":1}`, "Prefer", "wait=1"), 200, `{"order":7}`, true)
	b.wantNothingDue()
	b.wantOrders(1)
}

// TestAcceptanceThatOnlyWaitedForItsTransactionIsKnownNotToHaveHappened: nothing was
// done, and the client gets that answer.
func TestAcceptanceThatOnlyWaitedForItsTransactionIsKnownNotToHaveHappened(t *testing.T) {
	b := startBookings(t)
	b.store.lose(errors.Join(errors.New("timeout"), store.ErrNotDone), nil)
	r := b.order("k", `{"item":1}`)
	wantProblem(t, r, 503, "store-unavailable")
	if d := r.problem(); d.Execution != "not executed" {
		t.Errorf("%v %s", r.header, r.body)
	}
	b.wantOrders(0)
	b.wantNothingDue()
}

func TestRetryFindsTheCommit_ReplyLost(t *testing.T) {
	b := startBookings(t)
	b.store.lose(nil, errors.New("the connection is lost"))
	r := b.order("k", `{"item":1}`)
	wantProblem(t, r, 504, "acceptance-unknown")
	if d := r.problem(); d.Execution != "may have executed" || r.header.Get("Retry-After") == "" {
		t.Errorf("%v %s", r.header, r.body)
	}
	b.store.lose(nil, nil)
	wantAccepted(t, b.order("k", `{"item":1}`), true)
	b.wantOrders(1)
	b.run(store.Completed, "{}")
	b.wantNothingDue()
}

func TestTwentyFirstRequestsBookOneOrder(t *testing.T) {
	b := startBookings(t)
	wantOneAcceptance(t, b.service)
	b.wantOrders(1)
}

func TestTransactionsNeedAStoreThatKeepsWorkInThem(t *testing.T) {
	store := newTxStore()
	engine := stettest.Engine(t, store, stet.Options{})
	m := stethttp.Must(stethttp.NewTx(stettest.TxEngine(engine, store), stethttp.Options{Scope: stethttp.SingleTenant}))
	if _, err := stethttp.NewAsync(m.Middleware, stethttp.AsyncOptions{StatusURL: "/"}); err == nil || !strings.Contains(err.Error(), "WorkTxStore") {
		t.Errorf("%v", err)
	}
}

func TestWorkersAreWokenWhenAnAcceptanceIsCommitted(t *testing.T) {
	b := startBookings(t)
	arrived := b.engine.Arrived()
	wantAccepted(t, b.order("k", `{"item":1}`), false)
	select {
	case <-arrived:
	default:
		t.Error("the operation is accepted, and no worker was woken")
	}
}

func (b bookings) wantJobs(n int) {
	b.t.Helper()
	var got int
	if err := b.store.DB().QueryRowContext(b.t.Context(), "SELECT count(*) FROM jobs").Scan(&got); err != nil || got != n {
		b.t.Errorf("%d jobs are enqueued (%v), want %d", got, err, n)
	}
}

func TestJobAndAcceptanceAreOneCommit(t *testing.T) {
	var fails error
	b := startBookingsWith(t, func(b bookings) stethttp.AsyncOptions {
		return stethttp.AsyncOptions{AcceptTx: func(ctx context.Context, op stet.Op, w stet.Work) (stet.Status, error) {
			tx := stethttp.Tx[*sql.Tx](ctx)
			st, err := stettest.TxEngine(b.engine, b.store).Accept(ctx, tx, op, w)
			if err != nil || !st.New {
				return st, err
			}
			if w.Name != "orders.create" || op.Key != "k" {
				t.Errorf("accepted is %+v of %+v", w, op)
			}
			_, err = tx.ExecContext(ctx, "INSERT INTO jobs (id) VALUES (?)", st.Record.ID.String())
			return st, errors.Join(err, fails)
		}}
	})
	fails = errors.New("the queue is full")
	wantProblem(t, b.order("k", `{"item":1}`), 503, "store-unavailable")
	fails = &stet.Error{Kind: stet.KindStore, Execution: stet.MayHaveExecuted}
	wantProblem(t, b.order("k", `{"item":1}`), 504, "acceptance-unknown")
	fails = nil
	b.store.lose(errors.New("the disk is full"), nil)
	wantProblem(t, b.order("k", `{"item":1}`), 504, "acceptance-unknown")
	b.store.lose(nil, nil)
	b.wantOrders(0)
	b.wantJobs(0)
	b.wantNothingDue()
	first := b.order("k", `{"item":1}`)
	wantAccepted(t, first, false)
	wantAccepted(t, b.order("k", `{"item":1}`), true)
	b.wantOrders(1)
	b.wantJobs(1)
	b.run(store.Completed, `{"order":7}`)
}

func TestAcceptTxNeedsTransactions(t *testing.T) {
	engine := stettest.Engine(t, memory.New(memory.Options{}), stet.Options{})
	m := stethttp.Must(stethttp.New(engine, stethttp.Options{Scope: stethttp.SingleTenant}))
	_, err := stethttp.NewAsync(m, stethttp.AsyncOptions{StatusURL: "/", AcceptTx: func(context.Context, stet.Op, stet.Work) (stet.Status, error) {
		return stet.Status{}, nil
	}})
	if stet.KindOf(err) != stet.KindInvalid || !strings.Contains(err.Error(), "NewTx") {
		t.Errorf("%v", err)
	}
}
