// Command echo protects a route of an Echo router, and its errors, too.
//
//	go run ./echo
//	curl -i -H 'Idempotency-Key: "k1"' -H 'Account: acct_1' -d amount=100 http://127.0.0.1:8080/payments
package main

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"net/http"

	"github.com/labstack/echo/v4"

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
	log.Fatal(router.Start("127.0.0.1:8080"))
}

// account says whose key it is. A real service takes it from authentication.
// Without one the request is refused with 403.
func account(r *http.Request) (string, error) { return r.Header.Get("Account"), nil }

func newRouter(ctx context.Context, engine *stet.Engine, store *sqlite.Store) (*echo.Echo, error) {
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
	e := echo.New()
	e.HideBanner, e.HidePort = true, true
	e.POST("/payments", pay, protect(idempotent.Middleware))
	return e, nil
}

// protect makes the middleware one of Echo's. A handler's error becomes a response
// here, inside: Echo would answer it only after the transaction has ended.
func protect(m *stethttp.Middleware) echo.MiddlewareFunc {
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return echo.WrapMiddleware(m.Handler)(func(c echo.Context) error {
			if err := next(c); err != nil {
				c.Error(err)
			}
			return nil
		})
	}
}

func pay(c echo.Context) error {
	ctx := c.Request().Context()
	tx := stethttp.Tx[*sql.Tx](ctx)
	amount := c.FormValue("amount")
	res, err := tx.ExecContext(ctx, `INSERT INTO payments VALUES (?, ?)`, stet.FromContext(ctx).Op().Scope, amount)
	if err != nil {
		return err // 500: rolls back; a retry runs again
	}
	if amount == "0" {
		return echo.NewHTTPError(http.StatusUnprocessableEntity, "nothing to pay") // an outcome: retries get it, too
	}
	id, err := res.LastInsertId()
	if err != nil {
		return err
	}
	return c.String(http.StatusCreated, fmt.Sprintf("payment %d\n", id))
}
