// Command gin protects the routes of a Gin router.
//
//	go run ./gin
//	curl -i -H 'Idempotency-Key: "k1"' -H 'Account: acct_1' -d amount=100 http://127.0.0.1:8080/payments
package main

import (
	"log"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/contrib/stetgin"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/store/memory"
)

func main() {
	engine, err := stet.New(memory.New(memory.Options{}), stet.Options{}) // a service needs a durable store, such as store/postgres
	if err != nil {
		log.Fatal(err)
	}
	router, err := newRouter(engine)
	if err != nil {
		log.Fatal(err)
	}
	srv := &http.Server{Addr: "127.0.0.1:8080", Handler: router, ReadHeaderTimeout: 5 * time.Second}
	log.Print("listening on http://", srv.Addr)
	log.Fatal(srv.ListenAndServe())
}

func newRouter(engine *stet.Engine) (http.Handler, error) {
	idempotent, err := stethttp.New(engine, stethttp.Options{Scope: account})
	if err != nil {
		return nil, err
	}
	r := gin.New()
	r.Use(gin.Logger(), gin.Recovery(), authenticate) // around: for each request
	r.Use(stetgin.Middleware(idempotent))
	r.Use(answerErrors) // inside: its response is the outcome
	r.POST("/payments", pay)
	return r, nil
}

// authenticate stands for a real authentication.
func authenticate(c *gin.Context) { c.Set("account", c.GetHeader("Account")) }

// account says whose key it is. Without one the request is refused with 403.
func account(r *http.Request) (string, error) { return stetgin.Context(r).GetString("account"), nil }

func answerErrors(c *gin.Context) {
	c.Next()
	if len(c.Errors) > 0 && !c.Writer.Written() {
		c.JSON(http.StatusBadRequest, gin.H{"error": c.Errors.Last().Error()})
	}
}

var payments atomic.Int64

func pay(c *gin.Context) {
	var order struct {
		Amount int `form:"amount" json:"amount" binding:"required"`
	}
	if err := c.ShouldBind(&order); err != nil {
		_ = c.Error(err)
		return
	}
	c.JSON(http.StatusCreated, gin.H{"payment": payments.Add(1), "amount": order.Amount})
}
