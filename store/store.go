// Package store defines the interfaces that stores implement, like database/sql/driver for
// drivers. Services do not need it: they open one of the stores below it (store/memory,
// store/sqlite, store/postgres, store/mysql, store/redis) and pass it to stet.New.
//
// A store has one Record for each operation, and changes its state by atomic steps (State,
// Verb). Only Store is required. The other interfaces are abilities: TxStore and GroupTxStore
// put the business writes and the record into one transaction, WorkStore and WorkTxStore store
// accepted operations, OutboxStore stores messages, Watcher reports changes, Sweeper deletes
// old records, and Browser lists records for operators. A store with a limit for results is a
// Limiter.
//
// The engine queries each ability once, at its creation, by As. A store in front of another
// one has the abilities of that one if it is a Wrapper; otherwise only its own.
//
// The engine seals results, work, notes and outbox; a store saves these bytes unchanged. IDs,
// scopes and fingerprints are digests. Package storetest tests any implementation against the
// rules of this package. State.Next is the state machine, for stores to use. A small complete
// store over a map is store/storetest/toy_test.go.
//
// Errors wrap ErrInvalid, ErrMismatch, ErrFenced, ErrUnknown, ErrDamaged or ErrNotDone;
// any other error means that the call may or may not have taken effect, and the engine
// repeats it with the same arguments.
package store

import (
	"context"
	"time"
)

// Store stores records. Every method is one atomic step. Durations are parameters, and only
// the store's clock decides whether something has expired.
//
// ErrInvalid means that the store was used wrongly, and ErrDamaged that the record cannot be
// read; nothing was changed. After any other error than these, ErrMismatch and ErrFenced the
// call may or may not have taken effect. The engine repeats it with the same arguments, which
// must be harmless. An error that wraps ErrNotDone says that the call had no effect. A call
// whose context has ended before has none either.
//
// A record that cannot be read or reached must not affect others: a store that shares one
// round trip between calls returns each its own error, and a call about many records returns a
// *PartialError. Callers ensure that Retention.Tombstone is not shorter than Result. Neither
// side modifies Results, so both may retain them.
type Store interface {
	// Claim grants the right to run an operation if it is free. In one atomic step, in this
	// order:
	//
	//   - no record, or a record past its ForgetAt: a new Running record with req.Owner and a
	//     fence greater than 0 and than every earlier fence of the key;
	//   - another fingerprint: the record unchanged, and ErrMismatch, in every state;
	//   - Running under req.Owner: the record (the reply of an identical call was lost);
	//   - Running with an expired lease: marked unknown, and returned;
	//   - Retryable, last claimed by another owner: Running under req.Owner, with a greater
	//     fence and the next attempt. (An owner claims once: a claim that arrives after its own
	//     release must not run. If another owner's claim and release came first, it may be
	//     granted without a caller, and then becomes unknown, which is safe.)
	//   - otherwise: the record unchanged. Past its ExpiresAt a settled record is returned as
	//     Gone, whether or not it was swept.
	//
	// The claim was granted if the returned record is Running and has req.Owner. A grant sets
	// ClaimedAt and takes req.Label; SettledAt, ExpiresAt and ForgetAt are zero from then on,
	// and there is no result.
	Claim(ctx context.Context, req ClaimRequest) (Record, error)

	// Extend renews the leases of claims, each to lease from now. A claim is
	// renewed if its record is Running and has its fence, even when the
	// lease has run out in the meantime: no other caller ran it. It returns the claims
	// that are lost. With a *PartialError, all claims that are neither lost nor
	// named by it are renewed.
	Extend(ctx context.Context, claims []Claim, lease time.Duration) (lost []Claim, err error)

	// Settle writes the outcome and ends the claim, if the record has the claim's fence and is
	// Running or Unknown. If it was settled before under the same fence with the same outcome
	// (State, Gone and Result), that is a success. Otherwise it returns ErrFenced and writes
	// nothing.
	//
	// A result that was discarded since cannot be compared, so it is not the same. An outcome
	// that is Gone is the same as a stored outcome that was Gone from the start and is not
	// past its ExpiresAt.
	Settle(ctx context.Context, c Claim, out Settlement, keep Retention) error

	// Release makes the record Retryable, stating that nothing was executed,
	// if it has the claim's fence and is Running or Unknown. Already
	// Retryable under the same fence is a success. Otherwise ErrFenced. The
	// record is forgotten after keep.Result, at once if that is 0.
	Release(ctx context.Context, c Claim, keep Retention) error

	// Read returns the record. Its state is None if there is none or it is past its ForgetAt;
	// past its ExpiresAt it is Gone. Read changes nothing: a Running record with an expired
	// lease stays Running.
	Read(ctx context.Context, id ID) (Record, error)
}

// ClaimRequest is what the engine asks a store to claim.
type ClaimRequest struct {
	ID          ID
	Scope       ID
	Fingerprint Fingerprint
	Owner       Owner
	Lease       time.Duration
	Label       Label
	// Queued is for Accept and AcceptTx: the caller hands the operation to a queue
	// itself, so Due leaves it alone for that long, or for its delay if that is longer.
	// It can be taken in the meantime.
	Queued time.Duration
	// Outside is for Claim, on an OutsideStore: the effects of the run and its outcome are
	// one transaction outside of this process, which compares the fence. So a run that has
	// not settled had no effect, and has none once its claim has ended: when its lease has
	// run out the record is Retryable, where it would be marked unknown. Claim grants it at once.
	Outside bool
}

// OutsideStore is a Store that keeps ClaimRequest.Outside: there is a way to settle its
// records in a transaction of a service's, by nothing but a claim.
type OutsideStore interface {
	Store

	// Outside does nothing.
	Outside()
}

// Label says what an operation is, for people, verifiers and queues. A record has
// that of its last Claim, Accept or transaction; each part is UTF-8 without control
// characters, of at most MaxLabel bytes, but for the Ref as the engine stores it, with
// what a policy keeps, and encrypted: MaxRef. The engine sees to that.
type Label struct {
	// Class names the operation's policy.
	Class string
	// Name is the kind of operation: "POST /v1/payments", a queue, a handler of a worker.
	// WorkStore.Due selects accepted work by it.
	Name string
	// Ref is the service's own reference, such as an order's ID. The engine adds what
	// stet.Policy.KeepScope and KeepKey keep, after "kept:", and seals it all where it
	// encrypts, after "sealed:"; Class and Name are stored in clear.
	Ref string
}

// TxStore is a Store that can hold the business writes and the record in one
// transaction of type Tx.
type TxStore[Tx any] interface {
	Store

	// RunTx runs fn in a transaction that also holds the record, and commits
	// both or neither.
	//
	// It reads the record first and, as Claim does, answers ErrMismatch, or
	// returns a record that does not allow a run, without calling fn (a
	// lapsed Running record is marked unknown, durably). Otherwise it calls fn once
	// with the record to be: Running, with req.Owner, its new fence and
	// attempt. If fn returns an error or panics, everything is rolled back
	// and that error is returned, or the panic continues. Else the settled
	// record is written with fn's outcome, the transaction is committed, and
	// the record returned has req.Owner.
	//
	// A settled record is returned, or ErrMismatch, without waiting for what
	// other transactions hold: nothing is read before RunTx is called.
	//
	// A record that is returned Running under another owner is in flight
	// elsewhere; if it is in a transaction, and so has no fence yet, it is
	// InTx. An error that wraps ErrUnknown means that the commit's fate
	// could not be found out; any other error, that nothing was committed.
	RunTx(ctx context.Context, req ClaimRequest, keep Retention,
		fn func(ctx context.Context, tx Tx, rec Record) (Settlement, error)) (Record, error)

	// SettleTx is Settle inside the caller's own transaction, but for one
	// thing: a record that is settled already is ErrFenced, even under the
	// same fence with the same outcome. An earlier transaction has committed
	// then, and what this one wrote would be there twice. On any error the
	// caller must roll back.
	SettleTx(ctx context.Context, tx Tx, c Claim, out Settlement, keep Retention) error
}

// GroupTxStore is a TxStore that can hold many operations in one transaction.
type GroupTxStore[Tx any] interface {
	TxStore[Tx]

	// RunGroup is RunTx for many different keys in one transaction. Keys that have a record,
	// or are running elsewhere, are left out: their returned record is zero. It calls fn for
	// the others, one after the other. An error or a panic rolls all of them back. It tries
	// less than RunTx to resolve an unacknowledged commit: after an error that wraps
	// ErrUnknown all may be committed; call RunTx to find out.
	RunGroup(ctx context.Context, reqs []ClaimRequest, keep []Retention,
		fn func(ctx context.Context, tx Tx, i int, rec Record) (Settlement, error)) ([]Record, error)
}

// TxLocker is a TxStore that can exclude the transactions of a second key.
type TxLocker[Tx any] interface {
	TxStore[Tx]

	// LockTx locks id until tx has ended, without a wait. Then no other transaction of RunTx
	// runs id, and no other LockTx locks it: they return a record that is InTx, or false, or
	// wait. It returns false if such a transaction is open. A transaction that has committed
	// id before LockTx returns true is visible to a later Read. tx is of RunTx of another key.
	LockTx(ctx context.Context, tx Tx, id ID) (bool, error)
}

// Watcher is a Store that can tell when a record changes; without it waiters
// poll.
type Watcher interface {
	// Watch returns nil when the record of id is no longer Running under
	// fence, when its lease has run out, and whenever it is worth looking
	// again; an error when it cannot tell, or ctx has ended. It changes
	// nothing. The fence is 0 of a record that is InTx.
	Watch(ctx context.Context, id ID, fence int64) error
}

// Limiter is a Store whose items are small, so that it cannot keep results of up to
// MaxResultLimit bytes. stet.New refuses a policy that asks for more.
type Limiter interface {
	// MaxResult is the greatest size of a Settlement.Result (see Result.Size) that the
	// store keeps, in bytes, beside all else that it keeps of a record; 0 for no limit of
	// its own. It never changes. To settle with a greater one is ErrInvalid.
	MaxResult() int
}

// Sweeper is a Store that needs cleaning up. The engine calls it regularly;
// any number of processes may.
type Sweeper interface {
	// Sweep processes about limit records: it marks Running records with an expired lease
	// unknown, turns expired results into tombstones, and deletes records past their ForgetAt.
	// Expiry by the store itself is not counted. It does not touch live claims. It skips
	// records that cannot be read. The returned numbers are valid also with a *PartialError.
	Sweep(ctx context.Context, limit int) (Swept, error)
}

// Browser is a Store that operators can look through.
type Browser interface {
	// Browse returns the next page of records that match q, as they are now
	// (see Store.Read) but without their results. It changes nothing. It
	// looks at a bounded number of records, so a page may have fewer than
	// q.Limit, or none, while Page.Next says that there is more to look at.
	// Over all pages, a record that exists and matches all the while comes
	// exactly once. A query that is not acceptable (see Query.Check), or a
	// cursor that the store cannot have given, is ErrInvalid. A record that
	// cannot be read is on the page, too, with Record.Damage, if the query
	// names neither states nor ages.
	Browse(ctx context.Context, q Query) (Page, error)

	// Expire removes the result of a settled record now, instead of at its
	// ExpiresAt: the record becomes a tombstone, which still refuses to run
	// again until its ForgetAt. A tombstone already is a success. A record
	// that is not settled, or has another fence than c, is ErrFenced:
	// nothing was changed. A record that cannot be read is replaced by a
	// tombstone, Failed, with c's fence and owner, and is forgotten after
	// Retention's default Tombstone; c is what Browse returned.
	Expire(ctx context.Context, c Claim) error
}

// Swept is what one Sweep did.
type Swept struct {
	MarkedUnknown int  // running records that became unknown
	Expired       int  // results that became tombstones
	Purged        int  // records that were removed
	More          bool // there is more to look at now
}
