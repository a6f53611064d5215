// Command nethttp protects a route of http.ServeMux. The business write and stet's
// record are one transaction, which the handler gets as an argument.
//
//	go run ./nethttp
//	curl -i -H 'Idempotency-Key: "k1"' -H 'Account: acct_1' -d amount=100 http://127.0.0.1:8080/payments
package main

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"net/http"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/store/sqlite"
)

func main() {
	ctx := context.Background()
	store, err := sqlite.Open(ctx, "payments.db", sqlite.Options{})
	if err != nil {
		log.Fatal(err)
	}
	engine, err := stet.New(store, stet.Options{})
	if err != nil {
		log.Fatal(err)
	}
	router, err := newRouter(ctx, engine, store)
	if err != nil {
		log.Fatal(err)
	}
	srv := &http.Server{Addr: "127.0.0.1:8080", Handler: router, ReadHeaderTimeout: 5 * time.Second}
	log.Print("listening on http://", srv.Addr)
	log.Fatal(srv.ListenAndServe())
}

// account says whose key it is. A real service takes it from authentication.
// Without one the request is refused with 403.
func account(r *http.Request) (string, error) { return r.Header.Get("Account"), nil }

func newRouter(ctx context.Context, engine *stet.Engine, store *sqlite.Store) (http.Handler, error) {
	_, err := store.DB().ExecContext(ctx, `CREATE TABLE IF NOT EXISTS payments (account TEXT, amount TEXT)`)
	if err != nil {
		return nil, err
	}
	te, err := stet.WithTx(engine, store)
	if err != nil {
		return nil, err
	}
	idempotent, err := stethttp.NewTx(te, stethttp.Options{Scope: account})
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.Handle("POST /payments", idempotent.HandleTx(pay))
	return mux, nil
}

func pay(w http.ResponseWriter, r *http.Request, tx *sql.Tx) {
	res, err := tx.ExecContext(r.Context(), `INSERT INTO payments VALUES (?, ?)`, stet.FromContext(r.Context()).Op().Scope, r.FormValue("amount"))
	if err != nil {
		http.Error(w, "could not pay", http.StatusInternalServerError) // rolls back; a retry runs again
		return
	}
	id, _ := res.LastInsertId()
	w.WriteHeader(http.StatusCreated)
	fmt.Fprintf(w, "payment %d\n", id)
}
