package stetecho_test

import (
	"context"
	"database/sql"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"

	"github.com/labstack/echo/v5"
	"github.com/labstack/echo/v5/middleware"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/contrib/stetecho"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/store/memory"
	"github.com/stet-go/stet/store/sqlite"
)

// charge sends a payment of an account and prints the answer.
func charge(h http.Handler, account, amount string) {
	r := httptest.NewRequest(http.MethodPost, "/payments/"+account, strings.NewReader(`{"amount":`+amount+`}`))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Idempotency-Key", "8e03978e-40d5-43e8-bc93-"+account)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	fmt.Println(w.Code, strings.TrimSpace(w.Body.String()), "replayed:", w.Header().Get("Idempotent-Replayed") == "true")
}

func Example() {
	engine, err := stet.New(memory.New(memory.Options{}), stet.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer engine.Close()
	idempotent := stethttp.Must(stethttp.New(engine, stethttp.Options{
		Scope: func(r *http.Request) (string, error) { return stetecho.Context(r).Param("account"), nil },
	}))

	e := echo.New()
	e.Use(middleware.Recover(), stetecho.Middleware(idempotent))
	charges := 0
	e.POST("/payments/:account", func(c *echo.Context) error {
		if c.Param("account") == "closed" {
			return echo.NewHTTPError(http.StatusConflict, "the account is closed")
		}
		charges++
		return c.JSON(http.StatusCreated, map[string]any{"charge": charges, "of": c.Param("account")})
	})

	charge(e, "acct_1", "42")
	charge(e, "acct_1", "42") // the retry
	charge(e, "closed", "42")
	charge(e, "closed", "42")
	// Output:
	// 201 {"charge":1,"of":"acct_1"} replayed: false
	// 201 {"charge":1,"of":"acct_1"} replayed: true
	// 409 {"message":"the account is closed"} replayed: false
	// 409 {"message":"the account is closed"} replayed: true
}

// The row and the response are committed together. An error rolls back, so that a retry
// runs again.
func ExampleHandleTx() {
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
	if _, err := store.DB().Exec("CREATE TABLE charges (account TEXT, amount INTEGER)"); err != nil {
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
	idempotent := stethttp.Must(stethttp.NewTx(te, stethttp.Options{Scope: stethttp.SingleTenant}))

	e := echo.New()
	e.POST("/payments/:account", stetecho.HandleTx(idempotent, func(c *echo.Context, tx *sql.Tx) error {
		var order struct{ Amount int }
		if err := c.Bind(&order); err != nil {
			return err
		}
		if _, err := tx.ExecContext(c.Request().Context(), "INSERT INTO charges VALUES (?, ?)", c.Param("account"), order.Amount); err != nil {
			return err
		}
		if order.Amount > 100 {
			return echo.NewHTTPError(http.StatusConflict, "over the limit") // rolls back
		}
		return c.String(http.StatusCreated, "charged") // leaves after the commit
	}))

	charge(e, "acct_1", "42")
	charge(e, "acct_1", "42")
	charge(e, "acct_2", "420")
	var rows int
	err = store.DB().QueryRow("SELECT count(*) FROM charges").Scan(&rows)
	fmt.Println("charges:", rows, err)
	// Output:
	// 201 charged replayed: false
	// 201 charged replayed: true
	// 409 {"message":"over the limit"} replayed: false
	// charges: 1 <nil>
}
