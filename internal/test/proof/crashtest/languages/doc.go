// Package languages has the crash tests of services in Python and Node, which take part by SQL: alone, behind
// the sidecar, and together with a Go service and a consumer on the same keys.
// In flow_test.go sidecars accept with 202, workers pass accepted operations, and consumers pass messages of a broker.
//
// Services kill themselves at named points of a request, or are killed at any moment; sidecars, PostgreSQL and
// a broker are killed, and processes are stopped for longer than a lease. Clients pay with a key until they
// have a definite answer. Payments go to a ledger without a unique constraint. In the end each key is asked for again,
// and the judge compares the replies with the ledger.
package languages
