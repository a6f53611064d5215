package demo

import (
	"context"
	crand "crypto/rand"
	"database/sql"
	"encoding/json"
	"errors"
	"flag"
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

// pay charges the payment of a request within tx.
func pay(r *http.Request, tx *sql.Tx) (c charge, err error) {
	if err := json.NewDecoder(r.Body).Decode(&c.payment); err != nil {
		return c, err
	}
	c.Receipt = crand.Text()
	res, err := tx.ExecContext(r.Context(), `INSERT INTO charges (payment, amount, receipt) VALUES (?, ?, ?)`, c.Payment, c.Amount, c.Receipt)
	if err != nil {
		return c, err
	}
	if c.ID, err = res.LastInsertId(); err != nil {
		return c, err
	}
	return c, crash.Pause(r.Context(), work)
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
	handler := http.Handler(http.HandlerFunc(s.payWithout))
	if protected {
		engine := stethttp.Must(stet.New(s.store, stet.Options{}))
		s.close = func() error { return errors.Join(engine.Close(), s.store.Close()) }
		tx := stethttp.Must(stet.WithTx(engine, s.store))
		handler = stethttp.Must(stethttp.NewTx(tx, stethttp.Options{Scope: stethttp.SingleTenant})).HandleTx(payWith)
	}
	s.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		handler.ServeHTTP(&slowWriter{w, r.Context(), lag}, r)
	})
	return s, nil
}

// payWithout is the handler without stet: it begins and commits its own transaction.
func (s *service) payWithout(w http.ResponseWriter, r *http.Request) {
	tx, err := s.store.DB().BeginTx(r.Context(), nil)
	if err != nil {
		respond(w, charge{}, err)
		return
	}
	defer func() { _ = tx.Rollback() }()
	c, err := pay(r, tx)
	if err == nil {
		err = tx.Commit()
	}
	respond(w, c, err)
}

// payWith is the handler with stet, whose commit holds the charge and the response.
func payWith(w http.ResponseWriter, r *http.Request, tx *sql.Tx) {
	c, err := pay(r, tx)
	respond(w, c, err)
}

func respond(w http.ResponseWriter, c charge, err error) {
	if err != nil {
		http.Error(w, "the payment failed; nothing was charged", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	_ = json.NewEncoder(w).Encode(c) // the client may have left
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

// readLedger returns the charges of a service, which need not run.
func readLedger(ctx context.Context, dir string) (all []charge, err error) {
	store, err := sqlite.Open(ctx, filepath.Join(dir, "payments.db"), sqlite.Options{})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	rows, err := store.DB().QueryContext(ctx, `SELECT id, payment, amount, receipt FROM charges ORDER BY id`)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var c charge
		if err := rows.Scan(&c.ID, &c.Payment, &c.Amount, &c.Receipt); err != nil {
			return nil, err
		}
		all = append(all, c)
	}
	return all, rows.Err()
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
