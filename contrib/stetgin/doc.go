// Package stetgin makes retries of requests to Gin safe: it runs the handler of a request
// with an Idempotency-Key once, and gives every retry the same response. It is stethttp in
// Gin's own shape: handlers keep their *gin.Context, with parameters, binding and errors.
//
//	package main
//
//	import (
//		"log"
//		"net/http"
//
//		"github.com/gin-gonic/gin"
//
//		"github.com/stet-go/stet"
//		"github.com/stet-go/stet/contrib/stetgin"
//		"github.com/stet-go/stet/stethttp"
//		"github.com/stet-go/stet/store/memory"
//	)
//
//	func main() {
//		engine, err := stet.New(memory.New(memory.Options{}), stet.Options{})
//		if err != nil {
//			log.Fatal(err)
//		}
//		idempotent := stethttp.Must(stethttp.New(engine, stethttp.Options{Scope: stethttp.SingleTenant}))
//
//		r := gin.Default()
//		r.Use(stetgin.Middleware(idempotent))
//		r.POST("/payments/:account", func(c *gin.Context) {
//			c.JSON(http.StatusCreated, gin.H{"paid by": c.Param("account")})
//		})
//		log.Fatal(r.Run("127.0.0.1:8080"))
//	}
//
// With a database, HandleTx gives the handler a transaction that is committed together
// with the response; see its example.
//
// # What is inside, and what around
//
// What is registered after Middleware runs inside: what it answers is the outcome, which
// is kept and replayed. What is registered before is around: it sees replays and refusals,
// too, and runs for each request. So gin.Logger, gin.Recovery, CORS, compression and
// authentication are registered before, and middleware that answers the errors of
// gin.Context.Error after. Where such a middleware is around, the response is missing when
// the outcome is stored: the answer is 500 (response-missing), and Options.ErrorLog says
// what to do. Nothing that is around can add to a response that stands.
//
// # What differs from Gin
//
// A handler that neither writes nor sets a status has produced no outcome, where Gin makes
// it an empty 200: see stethttp.Advanced.AllowEmpty. gin.Context.Status alone is a response.
// After a panic that gin.Recovery leaves unanswered, the status is 500, not 200.
// The request's context is the run's: it does not end when the client leaves, and neither
// does gin.Context.Stream. Hijack is refused: see stethttp.Options.Skip. The operation's
// name (stet.Op.Name) is the method and gin.Context.FullPath.
//
// Wiring it twice around one handler is refused at the first request with 500
// (misconfigured), and nothing is executed.
package stetgin
