// Command routers protects a route of net/http, chi, gorilla/mux or huma. The business write and
// stet's record are one transaction.
//
//	go run ./routers -router chi
//	curl -i -H 'Idempotency-Key: "k1"' -H 'Account: acct_1' -d amount=100 http://127.0.0.1:8080/payments
package main

import (
	"context"
	"database/sql"
	"flag"
	"fmt"
	"log"
	"net/http"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"
	"github.com/gorilla/mux"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/store/sqlite"
)

var routers = map[string]func(*stet.TxEngine[*sql.Tx]) (http.Handler, error){
	"nethttp": withNetHTTP, "chi": withChi, "gorilla": withGorilla, "huma": withHuma,
}

func main() {
	name := flag.String("router", "nethttp", "nethttp, chi, gorilla or huma")
	flag.Parse()
	router := routers[*name]
	if router == nil {
		log.Fatalf("there is no router %q", *name)
	}
	ctx := context.Background()
	store, err := sqlite.Open(ctx, "payments.db", sqlite.Options{})
	if err != nil {
		log.Fatal(err)
	}
	te, err := newEngine(ctx, store)
	if err != nil {
		log.Fatal(err)
	}
	handler, err := router(te)
	if err != nil {
		log.Fatal(err)
	}
	srv := &http.Server{Addr: "127.0.0.1:8080", Handler: handler, ReadHeaderTimeout: 5 * time.Second}
	log.Print("listening on http://", srv.Addr)
	log.Fatal(srv.ListenAndServe())
}

func newEngine(ctx context.Context, store *sqlite.Store) (*stet.TxEngine[*sql.Tx], error) {
	_, err := store.DB().ExecContext(ctx, `CREATE TABLE IF NOT EXISTS payments (account TEXT, amount TEXT)`)
	if err != nil {
		return nil, err
	}
	engine, err := stet.New(store, stet.Options{})
	if err != nil {
		return nil, err
	}
	return stet.WithTx(engine, store)
}

// account says whose key it is. A real service takes it from authentication.
// Without one the request is refused with 403.
func account(r *http.Request) (string, error) { return r.Header.Get("Account"), nil }

// withNetHTTP protects a route of http.ServeMux. The handler gets its transaction as an argument.
func withNetHTTP(te *stet.TxEngine[*sql.Tx]) (http.Handler, error) {
	idempotent, err := stethttp.NewTx(te, stethttp.Options{Scope: account})
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.Handle("POST /payments", idempotent.HandleTx(payTx))
	return mux, nil
}

// withChi protects a route of a chi router.
func withChi(te *stet.TxEngine[*sql.Tx]) (http.Handler, error) {
	idempotent, err := stethttp.NewTx(te, stethttp.Options{Scope: account})
	if err != nil {
		return nil, err
	}
	r := chi.NewRouter()
	r.Use(middleware.RequestID, middleware.Recoverer)
	r.With(idempotent.Handler).Post("/payments", pay)
	return r, nil
}

// withGorilla protects the routes of a gorilla/mux subrouter.
func withGorilla(te *stet.TxEngine[*sql.Tx]) (http.Handler, error) {
	idempotent, err := stethttp.NewTx(te, stethttp.Options{Scope: account})
	if err != nil {
		return nil, err
	}
	r := mux.NewRouter()
	protected := r.Methods(http.MethodPost).Subrouter()
	protected.Use(idempotent.Handler)
	protected.HandleFunc("/payments", pay)
	return r, nil
}

func pay(w http.ResponseWriter, r *http.Request) { payTx(w, r, stethttp.Tx[*sql.Tx](r.Context())) }

func payTx(w http.ResponseWriter, r *http.Request, tx *sql.Tx) {
	res, err := tx.ExecContext(r.Context(), `INSERT INTO payments VALUES (?, ?)`, stet.FromContext(r.Context()).Op().Scope, r.FormValue("amount"))
	if err != nil {
		http.Error(w, "could not pay", http.StatusInternalServerError) // rolls back; a retry runs again
		return
	}
	id, _ := res.LastInsertId()
	w.WriteHeader(http.StatusCreated)
	fmt.Fprintf(w, "payment %d\n", id)
}
