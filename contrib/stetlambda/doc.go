// Package stetlambda has the functions that AWS Lambda calls, for messages of SQS and for
// requests by an HTTP API of API Gateway or a function URL. What Lambda delivers twice
// runs once.
//
//	package main
//
//	import (
//		"context"
//		"log"
//		"os"
//		"time"
//
//		"github.com/aws/aws-lambda-go/events"
//		"github.com/aws/aws-lambda-go/lambda"
//		"github.com/jackc/pgx/v5"
//
//		"github.com/stet-go/stet"
//		"github.com/stet-go/stet/contrib/stetlambda"
//		"github.com/stet-go/stet/stetmsg"
//		"github.com/stet-go/stet/store/postgres"
//	)
//
//	func main() {
//		store, err := postgres.Open(context.Background(), os.Getenv("DATABASE_URL"), postgres.Options{})
//		check(err)
//		engine, err := stet.New(store, stet.Options{Policy: stet.Policy{RunTimeout: 25 * time.Second}})
//		check(err)
//		te, err := stet.WithTx(engine, store)
//		check(err)
//		orders, err := stetlambda.SQSTx(te, stetlambda.SQSOptions{
//			Options: stetmsg.Options[events.SQSMessage]{
//				Operation: stetmsg.By(stetlambda.Envelope, stetmsg.Header("orders", "order-id")),
//			},
//			Failures: stetlambda.BatchItemFailures, // the event source mapping has ReportBatchItemFailures
//		}, func(ctx context.Context, tx pgx.Tx, m events.SQSMessage) ([]byte, error) {
//			_, err := tx.Exec(ctx, "INSERT INTO orders (body) VALUES ($1)", m.Body)
//			return nil, err
//		})
//		check(err)
//		lambda.Start(orders)
//	}
//
//	func check(err error) {
//		if err != nil {
//			log.Fatal(err)
//		}
//	}
//
// For HTTP, lambda.Start(stetlambda.HTTP(mux)) serves any http.Handler, with routes behind a
// stethttp.Middleware.
//
// # Time
//
// Lambda ends the process when the function's timeout is over, and freezes it between
// invocations. A run that is ended so is an expired run: rolled back in a transaction, else
// unknown once its lease is over. How long that operation counts as in progress is
// stet.Policy.Lease, which does not depend on the function's timeout: the lease is renewed while
// the run continues, and lapses after the process has ended. An HTTP request that begins when no
// time is left is answered with 503, and is not executed. Let stet.Policy.RunTimeout be shorter
// than the function's timeout. Functions return only when all runs have ended, so no run is frozen.
package stetlambda
