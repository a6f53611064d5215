// Package stetfiber is stethttp as middleware of Fiber v3. It runs the handler of a
// request with an Idempotency-Key once, and gives every retry the same response:
//
//	package main
//
//	import (
//		"context"
//		"log"
//
//		"github.com/gofiber/fiber/v3"
//		"github.com/stet-go/stet"
//		"github.com/stet-go/stet/contrib/stetfiber"
//		"github.com/stet-go/stet/stethttp"
//		"github.com/stet-go/stet/store/sqlite"
//	)
//
//	func main() {
//		store, err := sqlite.Open(context.Background(), "payments.db", sqlite.Options{})
//		if err != nil {
//			log.Fatal(err)
//		}
//		engine, err := stet.New(store, stet.Options{})
//		if err != nil {
//			log.Fatal(err)
//		}
//		once := stetfiber.Middleware(stethttp.Must(stethttp.New(engine, stethttp.Options{Scope: stethttp.SingleTenant})))
//
//		app := fiber.New()
//		app.Post("/payments/:account", once, func(c fiber.Ctx) error {
//			return c.Status(201).JSON(fiber.Map{"paid": c.Params("account")})
//		})
//		log.Fatal(app.Listen(":8080"))
//	}
//
// The handler is Fiber's, with its parameters, binding and locals. An error that it
// returns is answered by the app's error handler before the outcome is stored, so that
// retries get that answer; a transaction is rolled back. c.Context() is the run's context:
// give that to what the handler calls, and not c, in which stet.FromContext finds nothing.
//
// A handler whose effects are writes to the database of the store is protected with
// HandleTx, and writes in the transaction that records its outcome.
//
// # What differs from net/http
//
// A response is sent when its outcome is durable, whole: what a handler streams
// (SendStream, SendStreamWriter, SendFile) is read before, up to 16 MiB, and longer
// streams are errors. So are connections that are hijacked: see stethttp.Options.Skip.
//
// A handler that returns nil and has written neither a body nor a status other than 200
// has produced no outcome, see stethttp.Advanced.AllowEmpty: Fiber cannot tell whether it
// meant an empty 200. c.SendStatus(200) writes a body.
//
// An answer of 404 or 405 because the router has found no handler, behind App.Use, is
// not stored.
//
// Where the handler panics the outcome is stored, and the panic continues: Fiber's server
// does not recover it, its middleware recover does. http.ErrAbortHandler ends the
// connection without an answer.
//
// Fiber's timeout middleware answers while the handler continues, and both use the same
// context: the outcome is then unknown. stet.Policy.RunTimeout ends c.Context() instead.
//
// c.End and c.Drop write to the connection themselves, before an outcome is durable: a
// protected handler must not call them.
package stetfiber
