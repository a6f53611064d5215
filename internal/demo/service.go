package demo

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/child"
	"github.com/stet-go/stet/internal/crash"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/store/sqlite"
)

const (
	maxBody     = 4 << 10
	maxLife     = 10 * time.Minute      // of a service process, at the most
	maxLag      = 25 * time.Millisecond // of an answer on its way back
	ledgerRoute = "GET /ledger"         // all charges
	payRoute    = "POST /payments"      // one charge
	verifyPath  = "/payments/outcome"   // what became of one, for a proxy
	healthRoute = "GET /healthz"        // 200 once requests are served
	replayed    = "Idempotent-Replayed" // stethttp's default
	maxAmount   = 100_000_000
)

// shop is the payments service: the same handler with stet around it or without.
type shop struct {
	db      *sql.DB
	handler http.Handler
	close   func() error
}

// shopOptions say what a service is like.
type shopOptions struct {
	protected bool // there is stet around the handler
	async     bool // it answers 202, and charges afterwards
	// lag bounds the time that an answer to a payment takes on its way back;
	// within it the charge stands and the client does not know.
	lag time.Duration
}

// openShop opens the service over the database in dir.
func openShop(ctx context.Context, dir string, o shopOptions) (*shop, error) {
	s := &shop{}
	open := s.openPlain
	if o.protected {
		open = s.openProtected
	}
	pay, async, err := open(ctx, dir, o.async)
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	if async != nil {
		pay = async.pay
		mux.Handle(operationsPath, async.status)
		end := s.close
		s.close = func() error { return errors.Join(async.stop(), end()) }
	}
	mux.Handle(payRoute, delayed(pay, o.lag))
	mux.HandleFunc("GET "+verifyPath, s.verify)
	mux.HandleFunc(healthRoute, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc(ledgerRoute, s.ledger)
	s.handler = mux
	return s, nil
}

// openPlain opens the service without stet.
func (s *shop) openPlain(ctx context.Context, dir string, async bool) (http.Handler, *later, error) {
	db, err := openPlain(ledgerPath(dir))
	if err != nil {
		return nil, nil, err
	}
	s.db, s.close = db, db.Close
	if _, err := s.db.ExecContext(ctx, ledgerSchema); err != nil {
		return nil, nil, errors.Join(err, s.close())
	}
	if async {
		return nil, acceptInOurs(s), nil
	}
	return http.HandlerFunc(s.payInOurs), nil, nil
}

// openProtected opens the service with stet around its handler.
func (s *shop) openProtected(ctx context.Context, dir string, async bool) (http.Handler, *later, error) {
	store, err := sqlite.Open(ctx, ledgerPath(dir), sqlite.Options{})
	if err != nil {
		return nil, nil, err
	}
	o := stet.Options{}
	if async {
		o.Policy.Lease = workLease
	}
	engine, err := stet.New(store, o)
	if err != nil {
		return nil, nil, errors.Join(err, store.Close())
	}
	s.db = store.DB()
	s.close = func() error { return errors.Join(engine.Close(), store.Close()) }
	if _, err := s.db.ExecContext(ctx, ledgerSchema); err != nil {
		return nil, nil, errors.Join(err, s.close())
	}
	if async {
		l, err := acceptInTheirs(ctx, engine, store)
		if err != nil {
			err = errors.Join(err, s.close())
		}
		return nil, l, err
	}
	te, err := stet.WithTx(engine, store)
	if err != nil {
		return nil, nil, errors.Join(err, s.close())
	}
	protect, err := stethttp.NewTx(te, stethttp.Options{Scope: stethttp.SingleTenant})
	if err != nil {
		return nil, nil, errors.Join(err, s.close())
	}
	return protect.Handler(http.HandlerFunc(payInTheirs)), nil, nil
}

// payInOurs is the handler without stet: it makes its transaction itself, as
// handlers do, and gives up when its client does.
func (s *shop) payInOurs(w http.ResponseWriter, r *http.Request) {
	p, ok := readPayment(w, r)
	if !ok {
		return
	}
	a, err := attemptOf(r)
	var c charge
	if err == nil {
		c, err = s.charge(r.Context(), p, a)
	}
	if err != nil {
		fail(w, err)
		return
	}
	answer(w, http.StatusCreated, c)
}

// charge books a payment in a transaction of its own.
func (s *shop) charge(ctx context.Context, p payment, a attempt) (c charge, err error) {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return c, err
	}
	defer func() { _ = tx.Rollback() }()
	if err = a.allowed(ctx, tx); err == nil {
		c, err = book(ctx, tx, p, a.operation)
	}
	if err == nil {
		err = tx.Commit()
	}
	return c, err
}

// payInTheirs is the handler with stet: the transaction is given, and its commit
// holds the charge and the answer.
func payInTheirs(w http.ResponseWriter, r *http.Request) {
	p, ok := readPayment(w, r)
	if !ok {
		return
	}
	c, err := book(r.Context(), stethttp.Tx[*sql.Tx](r.Context()), p, "")
	if err != nil {
		fail(w, err)
		return
	}
	answer(w, http.StatusCreated, c)
}

func readPayment(w http.ResponseWriter, r *http.Request) (p payment, ok bool) {
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(&p); err != nil {
		http.Error(w, "the body must be a JSON object like {\"payment\":\"order-1\",\"amount\":4200}", http.StatusBadRequest)
		return p, false
	}
	if p.Payment == "" || len(p.Payment) > 64 || p.Amount < 1 || p.Amount > maxAmount {
		http.Error(w, fmt.Sprintf("payment must have 1 to 64 bytes, amount must be 1 to %d", maxAmount), http.StatusBadRequest)
		return p, false
	}
	return p, true
}

func fail(w http.ResponseWriter, err error) {
	slog.Debug("payment failed", "error", err)
	http.Error(w, "the payment failed; nothing was charged", http.StatusInternalServerError)
}

func answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // the client may have left
}

// ledger lists every charge.
func (s *shop) ledger(w http.ResponseWriter, r *http.Request) {
	all, err := charges(r.Context(), s.db)
	if err != nil {
		fail(w, err)
		return
	}
	answer(w, http.StatusOK, append([]charge{}, all...))
}

// delayed holds answers back for a random time of up to lag, as a network does.
func delayed(next http.Handler, lag time.Duration) http.Handler {
	if lag <= 0 {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(&slowWriter{ResponseWriter: w, ctx: r.Context(), lag: lag/5 + rand.N(lag*4/5)}, r)
	})
}

type slowWriter struct {
	http.ResponseWriter
	ctx     context.Context
	lag     time.Duration
	started bool
}

func (w *slowWriter) WriteHeader(status int) {
	if !w.started && status >= http.StatusOK {
		w.started = true
		_ = crash.Pause(w.ctx, w.lag)
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *slowWriter) Write(b []byte) (int, error) {
	if !w.started {
		w.WriteHeader(http.StatusOK)
	}
	return w.ResponseWriter.Write(b)
}

// Unwrap is for http.ResponseController.
func (w *slowWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// ServiceMain is the service process. It writes the address that it listens on
// to stdout, and ends when stdin does, which is when its parent has died
// or closed the pipe; at the latest after its -life.
func ServiceMain(ctx context.Context, args []string, stdin io.Reader, stdout io.Writer) error {
	flags := flag.NewFlagSet("service", flag.ContinueOnError)
	dir := flags.String("dir", "", "folder of the database")
	addr := flags.String("addr", "127.0.0.1:0", "address to listen on")
	protected := flags.Bool("protected", false, "put stet around the handler")
	async := flags.Bool("async", false, "answer 202, and charge afterwards")
	lag := flags.Duration("lag", maxLag, "greatest delay of an answer")
	life := flags.Duration("life", maxLife, "when to end at the latest")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *dir == "" || *life <= 0 || *life > maxLife {
		return fmt.Errorf("the service needs -dir, and a -life of at most %v", maxLife)
	}
	ctx, cancel := context.WithTimeout(ctx, *life)
	defer cancel()
	ctx, leave := child.WithParent(ctx, stdin)
	defer leave()
	s, err := openShop(ctx, *dir, shopOptions{*protected, *async, *lag})
	if err != nil {
		return err
	}
	ln, err := crash.Listen(ctx, *addr)
	if err != nil {
		return errors.Join(err, s.close())
	}
	child.Ready(stdout, ln.Addr().String())
	return errors.Join(crash.Serve(ctx, ln, s.handler), s.close())
}
