// Package stetgin makes retries of requests to Gin safe: it runs the handler of a request
// with an Idempotency-Key once, and gives every retry the same response. It is stethttp for
// Gin: handlers keep their *gin.Context, with parameters, binding and errors.
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
// # Middleware inside and around
//
// Middleware that is registered after stetgin's runs inside: its response is the outcome, which
// is stored and replayed. Middleware that is registered before it runs around: for each
// request, also for replays and refusals. Register gin.Logger, gin.Recovery, CORS, compression
// and authentication before it, and middleware that responds to gin.Context.Error after it. If
// such middleware is around, the response is missing when the outcome is stored: the client
// gets 500 (response-missing), and the reason is in Options.ErrorLog. Middleware around cannot
// add to a stored response.
//
// # Differences from Gin
//
// A handler that neither writes nor sets a status has no outcome; Gin makes an empty 200 of it.
// See stethttp.Advanced.AllowEmpty. gin.Context.Status alone is a response. After a panic for
// which gin.Recovery writes no response, the status is 500, not 200. The request's context is
// the run's: it does not end when the client leaves, and neither does gin.Context.Stream.
// Hijack is refused: see stethttp.Options.Skip. The operation's name (stet.Op.Name) is the
// method and gin.Context.FullPath.
//
// If it is registered twice around one handler, each request gets 500 (misconfigured), and
// nothing is executed.
package stetgin
