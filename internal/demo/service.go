package demo

import (
	"context"
	crand "crypto/rand"
	"database/sql"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/child"
	"github.com/stet-go/stet/internal/crash"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/store/sqlite"
)

const (
	work   = time.Millisecond      // between the INSERT and the COMMIT
	maxLag = 25 * time.Millisecond // of a response; within it the client does not know of its charge

	// The ledger has no unique constraint on the payment, as a card processor has none.
	ledgerSchema = `CREATE TABLE IF NOT EXISTS charges (
	id      INTEGER PRIMARY KEY AUTOINCREMENT,
	payment TEXT NOT NULL,
	amount  INTEGER NOT NULL,
	receipt TEXT NOT NULL
)`
)

// payment is the body of a request.
type payment struct {
	Payment string `json:"payment"`
	Amount  int64  `json:"amount"` // in cents
}

// charge is a row of the ledger, and the body of a response.
type charge struct {
	ID int64 `json:"charge"`
	payment
	Receipt string `json:"receipt"` // random, so that the responses of two charges differ
}

// insert charges p within tx.
func insert(ctx context.Context, tx *sql.Tx, p payment) (c charge, err error) {
	c = charge{payment: p, Receipt: crand.Text()}
	res, err := tx.ExecContext(ctx, `INSERT INTO charges (payment, amount, receipt) VALUES (?, ?, ?)`, p.Payment, p.Amount, c.Receipt)
	if err != nil {
		return c, err
	}
	if c.ID, err = res.LastInsertId(); err != nil {
		return c, err
	}
	return c, crash.Pause(ctx, work)
}

// service is the payments service, with stet or without.
type service struct {
	store *sqlite.Store
	http.Handler
	close func() error
}

func openService(ctx context.Context, dir string, protected bool, lag time.Duration) (s *service, err error) {
	s = &service{}
	if s.store, err = sqlite.Open(ctx, filepath.Join(dir, "payments.db"), sqlite.Options{}); err != nil {
		return nil, err
	}
	s.close = s.store.Close
	if _, err := s.store.DB().ExecContext(ctx, ledgerSchema); err != nil {
		return nil, errors.Join(err, s.close())
	}
	pay := http.Handler(http.HandlerFunc(s.payWithout))
	if protected {
		engine := stethttp.Must(stet.New(s.store, stet.Options{}))
		s.close = func() error { return errors.Join(engine.Close(), s.store.Close()) }
		tx := stethttp.Must(stet.WithTx(engine, s.store))
		pay = stethttp.Must(stethttp.NewTx(tx, stethttp.Options{Scope: stethttp.SingleTenant})).HandleTx(payWith)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /payments", func(w http.ResponseWriter, r *http.Request) {
		pay.ServeHTTP(&slowWriter{w, r.Context(), lag}, r)
	})
	mux.HandleFunc("GET /ledger", func(w http.ResponseWriter, r *http.Request) {
		all, err := charges(r.Context(), s.store.DB())
		respond(w, http.StatusOK, all, err)
	})
	s.Handler = mux
	return s, nil
}

// payWithout is the handler without stet: it begins and commits its own transaction.
func (s *service) payWithout(w http.ResponseWriter, r *http.Request) {
	tx, err := s.store.DB().BeginTx(r.Context(), nil)
	if err != nil {
		respond(w, 0, nil, err)
		return
	}
	defer func() { _ = tx.Rollback() }()
	var p payment
	var c charge
	if err = json.NewDecoder(r.Body).Decode(&p); err == nil {
		if c, err = insert(r.Context(), tx, p); err == nil {
			err = tx.Commit()
		}
	}
	respond(w, http.StatusCreated, c, err)
}

// payWith is the handler with stet, whose commit holds the charge and the response.
func payWith(w http.ResponseWriter, r *http.Request, tx *sql.Tx) {
	var p payment
	var c charge
	err := json.NewDecoder(r.Body).Decode(&p)
	if err == nil {
		c, err = insert(r.Context(), tx, p)
	}
	respond(w, http.StatusCreated, c, err)
}

func respond(w http.ResponseWriter, status int, v any, err error) {
	if err != nil {
		http.Error(w, "the payment failed; nothing was charged", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // the client may have left
}

// slowWriter delays a response for up to lag, as a network does.
type slowWriter struct {
	http.ResponseWriter
	ctx context.Context
	lag time.Duration
}

func (w *slowWriter) WriteHeader(status int) {
	if w.lag > 0 {
		_ = crash.Pause(w.ctx, w.lag/5+rand.N(w.lag*4/5))
	}
	w.ResponseWriter.WriteHeader(status)
}

func charges(ctx context.Context, db *sql.DB) (all []charge, err error) {
	rows, err := db.QueryContext(ctx, `SELECT id, payment, amount, receipt FROM charges ORDER BY id`)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for all = []charge{}; rows.Next(); {
		var c charge
		if err := rows.Scan(&c.ID, &c.Payment, &c.Amount, &c.Receipt); err != nil {
			return nil, err
		}
		all = append(all, c)
	}
	return all, rows.Err()
}

// readLedger returns the charges of a service that does not run.
func readLedger(ctx context.Context, dir string) (all []charge, err error) {
	store, err := sqlite.Open(ctx, filepath.Join(dir, "payments.db"), sqlite.Options{})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	return charges(ctx, store.DB())
}

// ServiceMain is the process of the service. It writes its address to stdout, and ends with
// stdin, so that it does not outlive its parent.
func ServiceMain(ctx context.Context, args []string, stdin io.Reader, stdout io.Writer) error {
	flags := flag.NewFlagSet("service", flag.ContinueOnError)
	dir := flags.String("dir", "", "folder of the database")
	addr := flags.String("addr", "127.0.0.1:0", "address to listen on")
	protected := flags.Bool("protected", false, "put stet around the handler")
	lag := flags.Duration("lag", maxLag, "greatest delay of a response")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *dir == "" {
		return errors.New("the service needs -dir")
	}
	ctx, leave := child.WithParent(ctx, stdin)
	defer leave()
	s, err := openService(ctx, *dir, *protected, *lag)
	if err != nil {
		return err
	}
	ln, err := crash.Listen(ctx, *addr)
	if err != nil {
		return errors.Join(err, s.close())
	}
	child.Ready(stdout, ln.Addr().String())
	return errors.Join(crash.Serve(ctx, ln, s), s.close())
}

// instructions are what a user can try with a service.
const instructions = `A payments service protected by stet listens on http://%[1]s (Ctrl-C ends it).

# 1. A payment: 201.
curl -i http://%[1]s/payments -H 'Idempotency-Key: "%[2]s"' -d '{"payment":"order-1","amount":4200}'

# 2. The same again: the same response, marked Idempotent-Replayed: true. Nothing is charged.
curl -i http://%[1]s/payments -H 'Idempotency-Key: "%[2]s"' -d '{"payment":"order-1","amount":4200}'

# 3. The same key for another amount: 422.
curl -i http://%[1]s/payments -H 'Idempotency-Key: "%[2]s"' -d '{"payment":"order-1","amount":9900}'

# 4. No key: 400.
curl -i http://%[1]s/payments -d '{"payment":"order-1","amount":4200}'

# The ledger: one charge.
curl http://%[1]s/ledger
`

// Serve serves the protected service on addr until ctx ends, and writes to w what to try.
func Serve(ctx context.Context, addr, dir string, w io.Writer) error {
	ln, err := crash.Listen(ctx, addr)
	if err != nil {
		return fmt.Errorf("--addr %s: cannot listen; give a free address like 127.0.0.1:0: %w", addr, err)
	}
	defer func() { _ = ln.Close() }() // crash.Serve closes it, too
	s, err := openService(ctx, dir, true, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	if _, err := fmt.Fprintf(w, instructions, ln.Addr(), stet.NewKey()); err != nil {
		return err
	}
	return crash.Serve(ctx, ln, s)
}
