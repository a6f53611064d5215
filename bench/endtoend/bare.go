package main

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"strings"

	"github.com/jackc/pgx/v5"
)

const path = "/payments"

// payment is the request; its JSON has about 1 KB.
type payment struct {
	Account string   `json:"account"`
	Amount  int      `json:"amount"`
	Lines   []string `json:"lines"`
}

// receipt is the response, of about 1 KB too.
type receipt struct {
	ID int64 `json:"id"`
	payment
}

// body is what all callers send.
var body = func() []byte {
	b, err := json.Marshal(payment{Account: "acct_1", Amount: 100, Lines: strings.SplitAfter(strings.Repeat("one line of the order ", 40), "order ")})
	if err != nil {
		panic(err)
	}
	return b
}()

// decode reads a payment, or refuses the request.
func decode(w http.ResponseWriter, r *http.Request) (*payment, bool) {
	p := new(payment)
	if err := json.NewDecoder(r.Body).Decode(p); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return nil, false
	}
	return p, true
}

// respond sends a receipt, or says that there is none.
func respond(w http.ResponseWriter, receipt receipt, err error) {
	var b []byte
	if err == nil {
		b, err = json.Marshal(receipt)
	}
	if err != nil {
		failed(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	_, _ = w.Write(b)
}

func failed(w http.ResponseWriter, err error) {
	slog.Error("a payment failed", "error", err)
	http.Error(w, "the payment failed", http.StatusInternalServerError)
}

// handle pays: in a transaction, or by one statement.
func (s *service) handle(inTx bool) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		p, ok := decode(w, r)
		if !ok {
			return
		}
		var paid receipt
		var err error
		key := r.Header.Get("Idempotency-Key")
		if inTx {
			err = pgx.BeginFunc(r.Context(), s.pool, func(tx pgx.Tx) (err error) {
				paid, err = s.insert(r.Context(), tx, key, p)
				return err
			})
		} else {
			paid, err = s.insert(r.Context(), s.pool, key, p)
		}
		respond(w, paid, err)
	}
}

// serveBare is the service without anything: a key that comes twice is paid twice.
func serveBare(inTx bool) func(context.Context, *service) (handler, error) {
	return func(_ context.Context, s *service) (handler, error) { return serveHTTP(s.handle(inTx)), nil }
}
