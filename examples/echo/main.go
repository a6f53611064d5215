// Command echo protects a route of an Echo router, in a transaction.
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

	"github.com/labstack/echo/v5"
	"github.com/labstack/echo/v5/middleware"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/contrib/stetecho"
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
	e.Use(middleware.RequestLogger(), middleware.Recover(), authenticate) // around: for each request
	e.POST("/payments", stetecho.HandleTx(idempotent, pay))
	return e, nil
}

// authenticate stands for a real authentication.
func authenticate(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c *echo.Context) error {
		c.Set("account", c.Request().Header.Get("Account"))
		return next(c)
	}
}

// account says whose key it is. Without one the request is refused with 403.
func account(r *http.Request) (string, error) {
	account, _ := stetecho.Context(r).Get("account").(string)
	return account, nil
}

func pay(c *echo.Context, tx *sql.Tx) error {
	amount := c.FormValue("amount")
	if amount == "0" {
		return c.String(http.StatusUnprocessableEntity, "nothing to pay\n") // an outcome: retries get it, too
	}
	res, err := tx.ExecContext(c.Request().Context(), `INSERT INTO payments VALUES (?, ?)`, c.Get("account"), amount)
	if err != nil {
		return err // an error rolls back; a retry runs again
	}
	id, err := res.LastInsertId()
	if err != nil {
		return err
	}
	return c.String(http.StatusCreated, fmt.Sprintf("payment %d\n", id))
}
