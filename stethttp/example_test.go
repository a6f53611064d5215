package stethttp_test

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/store/memory"
	"github.com/stet-go/stet/store/sqlite"
)

// account is whose key it is: what authentication has established.
func account(r *http.Request) (string, error) { return r.Header.Get("X-Account"), nil }

// charge sends a payment and prints the answer.
func charge(h http.Handler, key string) {
	post(h, key, `{"amount":42}`)
}

func post(h http.Handler, key, body string) {
	r := httptest.NewRequest(http.MethodPost, "/payments", strings.NewReader(body))
	r.Header.Set("X-Account", "acct_1")
	r.Header.Set("Idempotency-Key", key)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	fmt.Println(w.Code, w.Body, "replayed:", w.Header().Get("Idempotent-Replayed") == "true")
}

func Example() {
	engine, err := stet.New(memory.New(memory.Options{}), stet.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer engine.Close()

	charges := 0
	payments := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		charges++
		w.WriteHeader(http.StatusCreated)
		_, _ = fmt.Fprintf(w, "charge %d", charges)
	})

	protected := stethttp.Must(stethttp.New(engine, stethttp.Options{Scope: account}))
	mux := http.NewServeMux()
	mux.Handle("POST /payments", protected.Handler(payments))

	charge(mux, `"8e03978e-40d5-43e8-bc93-6894a57f9324"`)
	charge(mux, `"8e03978e-40d5-43e8-bc93-6894a57f9324"`) // the retry
	// Output:
	// 201 charge 1 replayed: false
	// 201 charge 1 replayed: true
}

// A handler behind NewTx writes through the transaction that also holds the
// record: both are committed, or neither is.
func ExampleTxMiddleware_HandleTx() {
	dir, err := os.MkdirTemp("", "stet")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = os.RemoveAll(dir) }()
	store, err := sqlite.Open(context.Background(), filepath.Join(dir, "payments.db"), sqlite.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer store.Close()
	if _, err := store.DB().Exec("CREATE TABLE charges (amount INTEGER)"); err != nil {
		fmt.Println(err)
		return
	}
	engine, err := stet.New(store, stet.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer engine.Close()

	te, err := stet.WithTx(engine, store)
	if err != nil {
		fmt.Println(err)
		return
	}
	protected := stethttp.Must(stethttp.NewTx(te, stethttp.Options{Scope: account}))
	payments := protected.HandleTx(func(w http.ResponseWriter, r *http.Request, tx *sql.Tx) {
		if _, err := tx.ExecContext(r.Context(), "INSERT INTO charges (amount) VALUES (42)"); err != nil {
			http.Error(w, "try again", http.StatusInternalServerError) // rolls back
			return
		}
		w.WriteHeader(http.StatusCreated) // leaves after the commit
		_, _ = io.WriteString(w, "charged")
	})
	mux := http.NewServeMux()
	mux.Handle("POST /payments", payments)

	charge(mux, "k")
	charge(mux, "k")
	var rows int
	err = store.DB().QueryRow("SELECT count(*) FROM charges").Scan(&rows)
	fmt.Println("charges:", rows, err)
	// Output:
	// 201 charged replayed: false
	// 201 charged replayed: true
	// charges: 1 <nil>
}

// A service whose run died asks its own tables what became of it.
func ExampleOutcome() {
	verify := func(ctx context.Context, st stet.Status) (stet.Resolution, error) {
		charge, found := "charge 1", true // a query by st.Op.Key
		if !found {
			return stet.ItDidNotHappen(), nil
		}
		out, err := stethttp.Outcome(http.StatusCreated, http.Header{"Content-Type": {"text/plain"}}, []byte(charge))
		return stet.ItHappened(out), err
	}
	_ = stet.Options{Policy: stet.Policy{Verify: verify}}
}

// A handler learns its operation from its context, and says so when it knows
// that it has had no effect.
func ExampleMiddleware_Handler() {
	engine, err := stet.New(memory.New(memory.Options{}), stet.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer engine.Close()
	protected := stethttp.Must(stethttp.New(engine, stethttp.Options{Scope: stethttp.SingleTenant}))
	h := protected.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		run := stet.FromContext(r.Context())
		if run.Attempt() == 1 {
			run.Declare(stet.NotExecuted, 0)
			w.WriteHeader(http.StatusBadGateway)
		}
		_, _ = io.WriteString(w, fmt.Sprint("attempt ", run.Attempt()))
	}))
	charge(h, "k")
	charge(h, "k")
	charge(h, "k")
	// Output:
	// 502 attempt 1 replayed: false
	// 200 attempt 2 replayed: false
	// 200 attempt 2 replayed: true
}
