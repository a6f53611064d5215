// Package storetest holds stores to what package stet asks of them. Whoever
// writes a store tests it in ten lines, from a plain go test:
//
//	func TestStore(t *testing.T) {
//		clock := new(fakeClock)
//		storetest.Run(t, storetest.Harness{
//			New: func(t testing.TB) store.Store {
//				s := mystore.New(mystore.Options{Clock: clock.Now})
//				t.Cleanup(func() { s.Close() })
//				return s
//			},
//			Advance: func(_ testing.TB, d time.Duration) { clock.Advance(d) },
//		})
//	}
//
// A whole store of the five methods over a map is toy_test.go in this folder: 200 lines
// to begin with. A store whose clock is a server's leaves Advance out, and the suite really
// waits.
//
// The suite has four parts: a table of claims, each with its reason, which is
// printed when it fails; random histories of calls, compared after every call
// with a small model and shrunk when they differ; races; and the real engine
// over the store while calls fail before or after they took effect. What only
// some stores can do (store.Watcher, store.Sweeper, store.Browser, store.WorkStore,
// store.OutboxStore, the limit of a store.Limiter) is found by store.As, as the engine finds
// it, and tested when there; store.TxStore and store.WorkTxStore are tested by RunTx. No option
// turns a rule off; what needs a hand from outside, like a record that cannot be read, is
// tested where the harness lends one.
//
// Faulty is the wrapper that makes calls fail. Services use it to test how they
// behave when their store does.
//
// Histories are drawn by pgregory.net/rapid, whose flags (-rapid.seed,
// -rapid.failfile, -rapid.shrinktime) therefore exist in test programs that
// import this package. A history that failed is kept under testdata/rapid and
// tried first the next time.
package storetest
