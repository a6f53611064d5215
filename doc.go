// Package stet makes retries safe: it stores the first outcome of an operation and returns
// it to every retry.
//
// An operation is one intended effect, such as a payment. A scope and an idempotency key
// name it. The scope is the owner of the key, such as a tenant. A fingerprint is a digest of
// the request's content. The same key with another fingerprint is refused. A claim is the
// exclusive right to run an operation. An outcome is the result or the failure of an
// operation. A retry receives the stored outcome, and the operation does not run again.
//
// # Two modes
//
// In transactional mode, one database transaction holds the business writes and the
// outcome. Both commit, or neither does, so a crash leaves nothing behind. Use this mode if
// the effect is a write to the database that also stores the records. See WithTx.
//
// In lease mode, the engine stores the claim, renews its lease while the operation runs, and
// then stores the outcome. Use this mode for other effects, such as a call to a payment
// provider. If the process dies midway, the outcome is unknown. The operation does not run
// again until a verifier, an operator or the policy decides.
//
// # Which call do I use?
//
//   - For an HTTP handler: package stethttp. For a consumer of messages: package stetmsg.
//   - For a function: Do, or DoTx in a transaction.
//   - For a job that runs later: Engine.Accept or TxEngine.Accept, and package stetwork.
//   - For a part of a job that must not be repeated once it is done: Step, StepOnce and StepTx.
//   - For many small operations in one commit: TxEngine.RunGroup.
//   - For the key, fence or attempt of the running operation: FromContext.
//   - For the state of an operation: Engine.Status and Engine.Await. For operators, without a
//     scope: Engine.Lookup.
//   - To resolve an operation whose outcome is unknown: Policy.Verify and Engine.Resolve.
//     Package reconcile calls the verifier without waiting for a retry.
//   - For an adapter to another protocol: Engine.Begin and Lease.Do. See the example.
//
// # Errors
//
// Errors are of type *Error. ExecutionOf answers "did it execute?". KindOf returns the kind:
//
//   - KindInvalid: the operation or the configuration is invalid.
//   - KindMismatch: the key was used for another request.
//   - KindInFlight: the operation is running now; retry later.
//   - KindUnknown: the operation may have executed. It does not run again until it is resolved.
//   - KindRetryable: the run ended without an effect; retry with the same key.
//   - KindFailed: the operation failed, and every retry gets the same failure.
//   - KindExpired: the operation has ended, and its result was discarded.
//   - KindForeign: the operation executed, but its outcome cannot be converted to this form.
//   - KindDamaged: the stored record cannot be read.
//   - KindFenced: the record has a newer claim, or already an outcome.
//   - KindStore: the store failed.
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
