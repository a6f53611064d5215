// Command gin protects a route of a Gin router: gin.WrapH takes any
// http.Handler.
//
//	go run ./gin
//	curl -i -H 'Idempotency-Key: "k1"' -H 'Account: acct_1' -d amount=100 http://127.0.0.1:8080/payments
package main

import (
	"fmt"
	"log"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/store/memory"
)

func main() {
	engine, err := stet.New(memory.New(memory.Options{}), stet.Options{})
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

// account says whose key it is. A real service takes it from authentication.
// Without one the request is refused with 403.
func account(r *http.Request) (string, error) { return r.Header.Get("Account"), nil }

func newRouter(engine *stet.Engine) (http.Handler, error) {
	idempotent, err := stethttp.New(engine, stethttp.Options{Scope: account})
	if err != nil {
		return nil, err
	}
	gin.SetMode(gin.ReleaseMode)
	r := gin.New()
	r.Use(gin.Recovery())
	r.POST("/payments", gin.WrapH(idempotent.Handler(http.HandlerFunc(pay))))
	return r, nil
}

var payments atomic.Int64

func pay(w http.ResponseWriter, _ *http.Request) {
	w.WriteHeader(http.StatusCreated)
	fmt.Fprintf(w, "payment %d\n", payments.Add(1))
}
