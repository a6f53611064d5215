// Package stetecho makes retries of requests to Echo (v5) safe: it runs the handler of a
// request with an Idempotency-Key once, and gives every retry the same response. It is
// stethttp in Echo's own shape: handlers keep their *echo.Context, with parameters, binding
// and errors. For Echo v4 there is stetecho4.
//
//	package main
//
//	import (
//		"log"
//		"net/http"
//
//		"github.com/labstack/echo/v5"
//		"github.com/labstack/echo/v5/middleware"
//
//		"github.com/stet-go/stet"
//		"github.com/stet-go/stet/contrib/stetecho"
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
//		e := echo.New()
//		e.Use(middleware.RequestLogger(), middleware.Recover(), stetecho.Middleware(idempotent))
//		e.POST("/payments/:account", func(c *echo.Context) error {
//			return c.JSON(http.StatusCreated, map[string]string{"paid by": c.Param("account")})
//		})
//		log.Fatal(e.Start("127.0.0.1:8080"))
//	}
//
// With a database, HandleTx gives the handler a transaction that is committed together
// with the response; see its example.
//
// # Errors
//
// An error that a handler returns is answered inside, by Echo's HTTPErrorHandler, so that
// the answer is the outcome, which is kept and replayed. The error continues to what is
// around, for its logs; by then the response is committed, so that an HTTPErrorHandler
// which is called again must return, as Echo's own does. What an HTTPErrorHandler writes
// nevertheless is dropped, and Options.ErrorLog told. Where something around has replaced
// the response (Gzip, BodyDump), the error stays inside, and Options.ErrorLog has it.
// Middleware that turns errors into others belongs inside. An error rolls its
// transaction back; a 4xx that Echo makes of it is stored after the rollback.
//
// # What is inside, and what around
//
// What is registered after Middleware runs inside. What is registered before is around: it
// sees replays and refusals, too, and runs for each request: logging, Recover, CORS,
// compression, authentication. Nothing that is around can add to a response that stands.
//
// # What differs from Echo
//
// A handler that returns nil and has written nothing has produced no outcome, where
// net/http makes it an empty 200: see stethttp.Advanced.AllowEmpty. The request's context is
// the run's: it does not end when the client leaves. Hijack is refused: see
// stethttp.Options.Skip. The operation's name (stet.Op.Name) is the method and
// echo.Context.Path.
//
// Wiring it twice around one handler is refused at the first request with 500
// (misconfigured), and nothing is executed.
package stetecho
