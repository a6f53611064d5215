// Command quickstart is the program of README.md: payments in SQLite, each made once.
package main

import (
	"context"
	"database/sql"
	"log"
	"net/http"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/store/sqlite"
)

func main() {
	store := stethttp.Must(sqlite.Open(context.Background(), "shop.db", sqlite.Options{}))
	stethttp.Must(store.DB().Exec("CREATE TABLE IF NOT EXISTS payments (amount INT)"))
	engine := stethttp.Must(stet.New(store, stet.Options{}))
	tx := stethttp.Must(stet.WithTx(engine, store))
	once := stethttp.Must(stethttp.NewTx(tx, stethttp.Options{Scope: stethttp.SingleTenant}))
	http.Handle("POST /payments", once.HandleTx(pay))
	log.Fatal(http.ListenAndServe("127.0.0.1:8080", nil))
}

func pay(w http.ResponseWriter, r *http.Request, tx *sql.Tx) {
	if _, err := tx.ExecContext(r.Context(), "INSERT INTO payments VALUES (?)", r.FormValue("amount")); err != nil {
		http.Error(w, "the payment failed", http.StatusInternalServerError) // rolls back; a retry runs again
		return
	}
	w.WriteHeader(http.StatusCreated) // sent after the commit
}
