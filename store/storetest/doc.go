// Package storetest tests that a store meets the requirements of package stet. A test of a
// store has ten lines of plain go test:
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
// turns a rule off; a case that needs help from outside, such as a damaged record, runs
// if the harness provides it.
//
// Faulty is the wrapper that makes calls fail. Services use it to test how they
// behave when their store does.
//
// Histories are drawn by pgregory.net/rapid, whose flags (-rapid.seed,
// -rapid.failfile, -rapid.shrinktime) therefore exist in test programs that
// import this package. A history that failed is kept under testdata/rapid and
// tried first the next time.
package storetest
