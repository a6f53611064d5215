package stetgin_test

import (
	"context"
	"database/sql"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/contrib/stetgin"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/store/memory"
	"github.com/stet-go/stet/store/sqlite"
)

// charge sends a payment of an account and prints the answer.
func charge(h http.Handler, account string) {
	r := httptest.NewRequest(http.MethodPost, "/payments/"+account, strings.NewReader(`{"amount":42}`))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Idempotency-Key", "8e03978e-40d5-43e8-bc93-6894a57f9324")
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
	idempotent := stethttp.Must(stethttp.New(engine, stethttp.Options{
		Scope: func(r *http.Request) (string, error) { return stetgin.Context(r).Param("account"), nil },
	}))

	r := gin.New()
	r.Use(gin.Recovery(), stetgin.Middleware(idempotent))
	charges := 0
	r.POST("/payments/:account", func(c *gin.Context) {
		charges++
		c.JSON(http.StatusCreated, gin.H{"charge": charges, "of": c.Param("account")})
	})

	charge(r, "acct_1")
	charge(r, "acct_1") // the retry
	charge(r, "acct_2")
	// Output:
	// 201 {"charge":1,"of":"acct_1"} replayed: false
	// 201 {"charge":1,"of":"acct_1"} replayed: true
	// 201 {"charge":2,"of":"acct_2"} replayed: false
}

// The row and the response are committed together, or neither is.
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

	r := gin.New()
	r.POST("/payments/:account", stetgin.HandleTx(idempotent, func(c *gin.Context, tx *sql.Tx) {
		var order struct{ Amount int }
		if err := c.ShouldBindJSON(&order); err != nil {
			c.AbortWithStatusJSON(http.StatusBadRequest, gin.H{"error": err.Error()})
			return
		}
		if _, err := tx.ExecContext(c.Request.Context(), "INSERT INTO charges VALUES (?, ?)", c.Param("account"), order.Amount); err != nil {
			c.AbortWithStatus(http.StatusInternalServerError) // rolls back
			return
		}
		c.String(http.StatusCreated, "charged") // leaves after the commit
	}))

	charge(r, "acct_1")
	charge(r, "acct_1")
	var rows int
	err = store.DB().QueryRow("SELECT count(*) FROM charges").Scan(&rows)
	fmt.Println("charges:", rows, err)
	// Output:
	// 201 charged replayed: false
	// 201 charged replayed: true
	// charges: 1 <nil>
}
