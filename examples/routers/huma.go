package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"net/url"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stethttp"
)

// withHuma protects the operations of a huma API. Its router is inside the middleware, so huma's
// own refusals and errors are stored, too. With StoreExecuted a request that huma refuses by its
// schema (422) is not stored: a corrected request may use the key.
func withHuma(te *stet.TxEngine[*sql.Tx]) (http.Handler, error) {
	idempotent, err := stethttp.NewTx(te, stethttp.Options{Scope: account, Responses: stethttp.StoreExecuted})
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	api := humago.New(mux, huma.DefaultConfig("Payments", "1.0.0"))
	huma.Register(api, huma.Operation{OperationID: "pay", Method: http.MethodPost, Path: "/payments", DefaultStatus: http.StatusCreated}, inTx(payHuma))
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

func payHuma(ctx context.Context, tx *sql.Tx, in *payment) (*receipt, error) {
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
