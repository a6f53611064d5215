// Package stetecho4 makes retries of requests to Echo v4 safe: it runs the handler of a
// request with an Idempotency-Key once, and gives every retry the same response. It is
// stethttp for Echo: handlers keep their echo.Context, with parameters, binding
// and errors. For Echo v5 there is stetecho.
//
//	package main
//
//	import (
//		"log"
//		"net/http"
//
//		"github.com/labstack/echo/v4"
//		"github.com/labstack/echo/v4/middleware"
//
//		"github.com/stet-go/stet"
//		"github.com/stet-go/stet/contrib/stetecho4"
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
//		e.Use(middleware.Logger(), middleware.Recover(), stetecho4.Middleware(idempotent))
//		e.POST("/payments/:account", func(c echo.Context) error {
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
// Echo's HTTPErrorHandler responds to an error of a handler inside of the middleware. Its
// response is the outcome, which is stored and replayed. The error is then returned to outer
// middleware, for its logs. The response is committed by then: an HTTPErrorHandler that is
// called again must not write, like Echo's own. A write is dropped, and logged in
// Options.ErrorLog.
// Behind Echo's middleware Timeout, which would discard the
// response, the error is not returned; Options.ErrorLog has it.
//
// Register middleware that converts errors after stetecho4. An error rolls a transaction back. A 4xx
// that Echo makes of it is stored after the rollback.
//
// # Middleware inside and around
//
// Middleware that is registered after stetecho4's runs inside. Middleware that is registered before
// it runs around: for each request, also for replays and refusals. Examples are logging,
// Recover, CORS, compression and authentication. It cannot add to a stored response.
//
// # Differences from Echo
//
// A handler that returns nil and has written nothing has no outcome; net/http makes an empty
// 200 of it. See stethttp.Advanced.AllowEmpty. The request's context is the run's: it does not
// end when the client leaves. Hijack is refused: see stethttp.Options.Skip. The operation's name
// (stet.Op.Name) is the method and echo.Context.Path.
//
// If it is registered twice around one handler, each request gets 500 (misconfigured), and
// nothing is executed.
package stetecho4
