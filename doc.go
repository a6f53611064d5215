// Package stet makes retries safe: the first outcome of an operation stands, and every
// retry gets that same outcome.
//
// An operation is one intended effect, such as a payment. Its caller names it by a scope
// (whose key it is) and an idempotency key. A fingerprint is a digest of what is asked
// for: the same key with another fingerprint is refused. A claim is the exclusive right to
// run an operation. An outcome is its result or its failure; it is stored, and a retry is
// told the outcome instead of running the operation again.
//
// # Two modes
//
// In transactional mode one database transaction holds the business writes and the
// outcome. Both are committed, or neither is: a crash leaves nothing behind. Use it where
// the effect is a write to the database that also keeps the records (WithTx).
//
// In lease mode the claim is stored first, the operation runs while a lease is kept alive,
// and the outcome is stored after it. Use it for effects elsewhere, such as a call of a
// payment provider. A process that dies in the middle leaves an operation whose outcome is
// unknown. It does not run again until a verifier, an operator or the policy decides.
//
// # Which call do I use?
//
//   - An HTTP handler: package stethttp; consumers of messages: package stetmsg.
//   - A function: Do, or in a transaction DoTx.
//   - Work that is to be done later: Engine.Accept or TxEngine.Accept, and package stetwork.
//   - A part of such work that is not repeated once it is done: Step, StepOnce and StepTx.
//   - Many small operations in one commit: TxEngine.RunGroup.
//   - The key, fence or attempt of the operation that runs: FromContext.
//   - What became of an operation: Engine.Status and Engine.Await; of any scope: Engine.Lookup.
//   - A decision about an operation whose outcome is unknown: Policy.Verify, and package
//     reconcile, which does not wait for a retry to ask it; Engine.Resolve.
//   - An adapter of your own, for another protocol: Engine.Begin and Lease.Do; see the example.
//
// # Errors
//
// Errors are of type *Error. ExecutionOf answers "did it execute?", and KindOf tells the
// kind:
//
//   - KindInvalid: the operation or the configuration is not acceptable.
//   - KindMismatch: the key was used for another request.
//   - KindInFlight: the operation is running now; retry later.
//   - KindUnknown: it may have been executed, and is not run again until that is known.
//   - KindRetryable: the run ended without an effect; retry with the same key.
//   - KindFailed: the operation failed, and every retry is told so.
//   - KindExpired: the operation has ended, and its result is no longer kept.
//   - KindForeign: it was executed, and its outcome cannot be told in this form.
//   - KindDamaged: what is stored cannot be read.
//   - KindFenced: another claim or outcome stands.
//   - KindStore: the store could not be used.
//   - KindClosed: the engine was closed.
//
// # A whole program
//
//	package main
//
//	import (
//		"context"
//		"fmt"
//		"log"
//		"net/http"
//
//		"github.com/stet-go/stet"
//		"github.com/stet-go/stet/stethttp"
//		"github.com/stet-go/stet/store/sqlite"
//	)
//
//	func main() {
//		store, err := sqlite.Open(context.Background(), "stet.db", sqlite.Options{})
//		if err != nil {
//			log.Fatal(err)
//		}
//		defer store.Close()
//		engine, err := stet.New(store, stet.Options{})
//		if err != nil {
//			log.Fatal(err)
//		}
//		defer engine.Close()
//		idempotent, err := stethttp.New(engine, stethttp.Options{Scope: stethttp.SingleTenant})
//		if err != nil {
//			log.Fatal(err)
//		}
//		http.Handle("POST /payments", idempotent.Handler(http.HandlerFunc(pay)))
//		log.Fatal(http.ListenAndServe("127.0.0.1:8080", nil))
//	}
//
//	func pay(w http.ResponseWriter, r *http.Request) {
//		// Charge the card here. It happens once for each Idempotency-Key.
//		w.WriteHeader(http.StatusCreated)
//		fmt.Fprintln(w, "paid")
//	}
package stet
