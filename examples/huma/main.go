// Command huma protects the operations of a huma API: its router is behind the middleware,
// so that what huma answers is kept, too, its own refusals and errors among it. The
// business write and stet's record are one transaction.
//
//	go run ./huma
//	curl -i -H 'Idempotency-Key: "k1"' -H 'Account: acct_1' -d amount=100 http://127.0.0.1:8080/payments
package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/url"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

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
	idempotent, err := stethttp.NewTx(te, stethttp.Options{
		Scope: account,
		// What huma refuses by its schema (422) is not stored: a corrected request may
		// use the key.
		Responses: stethttp.StoreExecuted,
	})
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	api := humago.New(mux, huma.DefaultConfig("Payments", "1.0.0"))
	huma.Register(api, huma.Operation{OperationID: "pay", Method: http.MethodPost, Path: "/payments", DefaultStatus: http.StatusCreated}, inTx(pay))
	return idempotent.Handler(mux), nil
}

// inTx passes an operation its transaction, and its error to stet: an error rolls back.
// Without this call the response that huma makes of a 409 would commit.
func inTx[I, O any](op func(context.Context, *sql.Tx, *I) (*O, error)) func(context.Context, *I) (*O, error) {
	return func(ctx context.Context, in *I) (*O, error) {
		out, err := op(ctx, stethttp.Tx[*sql.Tx](ctx), in)
		stethttp.Returned(ctx, err)
		return out, err
	}
}

type payment struct {
	RawBody []byte `contentType:"application/x-www-form-urlencoded"`
}

type receipt struct {
	ContentType string `header:"Content-Type"`
	Body        []byte
}

func pay(ctx context.Context, tx *sql.Tx, in *payment) (*receipt, error) {
	form, err := url.ParseQuery(string(in.RawBody))
	if err != nil || form.Get("amount") == "" {
		return nil, huma.Error422UnprocessableEntity("there is no amount")
	}
	res, err := tx.ExecContext(ctx, `INSERT INTO payments VALUES (?, ?)`, stet.FromContext(ctx).Op().Scope, form.Get("amount"))
	if err != nil {
		return nil, errors.New("could not pay") // 500
	}
	if form.Get("amount") == "1000000" {
		return nil, huma.Error409Conflict("that is more than there is") // the writes are rolled back
	}
	id, err := res.LastInsertId()
	if err != nil {
		return nil, err
	}
	return &receipt{ContentType: "text/plain", Body: fmt.Appendf(nil, "payment %d\n", id)}, nil
}
