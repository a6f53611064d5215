// Package store is what an author of a store implements, as database/sql/driver is for
// drivers. Services do not need it: they open one of the stores below it
// (store/memory, store/sqlite, store/postgres, store/redis) and give it to stet.New.
//
// A store keeps one Record for each operation, and moves it through the states of the
// state machine (State, Verb) by atomic steps. Only Store is required. The other
// interfaces are abilities: TxStore and GroupTxStore hold the business writes and the
// record in one transaction, WorkStore and WorkTxStore hold accepted operations,
// OutboxStore holds messages, Watcher tells of changes, Sweeper cleans up, Browser lets
// operators look. A store with small items says so as a Limiter.
//
// The engine asks for each ability once, when it is made, by As: a store in front of
// another one has what that one can do if it is a Wrapper, and else only what it can do
// itself.
//
// What a store gets is sealed by the engine: results, work, notes and outbox are bytes
// that it keeps as they are. IDs, scopes and fingerprints are digests. An
// implementation is held to all that is said here by package storetest, which runs
// against any store. State.Next is the state machine, for stores to use. A whole
// store over a map, to begin with, is store/storetest/toy_test.go.
//
// Errors wrap ErrInvalid, ErrMismatch, ErrFenced, ErrUnknown, ErrDamaged or ErrNotDone;
// any other error means that the call may or may not have taken effect, and the engine
// repeats it with the same arguments.
package store

import (
	"context"
	"time"
)

// Store keeps records. Every method is one atomic step. Durations go in and the store's
// clock alone decides what has expired. ErrInvalid means that the store was used wrongly,
// and that nothing was done. ErrDamaged means that the record cannot be read, and that
// nothing was done to it. Any error other than these, ErrMismatch and ErrFenced means that
// the call may or may not have taken effect; the engine repeats it with the same arguments,
// which must be harmless; one that wraps ErrNotDone says that it has had no effect. A call
// whose context has ended already has none either. A record that cannot be read or reached
// hides no other: a store that shares one round trip between calls gives each its own
// error, and a call about many records returns a *PartialError. Retention.Tombstone is
// never shorter than Result: callers see to that. Results are never modified, neither those
// handed in nor those returned, so both sides may keep them. store/storetest holds an
// implementation to all of this.
type Store interface {
	// Claim takes the right to run an operation if it is free.
	//
	// In this order, and in one atomic step:
	//   - no record, or one past its ForgetAt: a new Running record with
	//     req.Owner and a fence greater than 0 and than any the key ever had;
	//   - another fingerprint: the record unchanged, and ErrMismatch,
	//     whatever its state;
	//   - Running under req.Owner: the record (the reply of an earlier,
	//     identical call was lost);
	//   - Running with a lease that has run out: marked unknown, returned;
	//   - Retryable, last claimed by another owner: Running under req.Owner,
	//     with a greater fence and the next attempt. (An owner claims once: a
	//     claim that was delayed on its way must not run after its release. One
	//     that is overtaken by another owner's claim and release may be granted
	//     to no caller, and is marked unknown; that is safe.)
	//   - anything else: the record unchanged. Past its ExpiresAt a settled
	//     record is returned as Gone, whether or not it was swept.
	//
	// The claim was granted if the returned record is Running and has
	// req.Owner. A grant sets ClaimedAt and takes req.Label; SettledAt,
	// ExpiresAt and ForgetAt are zero from then on, and there is no result.
	Claim(ctx context.Context, req ClaimRequest) (Record, error)

	// Extend renews the leases of claims, each to lease from now. A claim is
	// renewed if its record is Running and has its fence, even when the
	// lease has run out in the meantime: no other caller ran it. It returns the claims
	// that are lost. With a *PartialError, all claims that are neither lost nor
	// named by it are renewed.
	Extend(ctx context.Context, claims []Claim, lease time.Duration) (lost []Claim, err error)

	// Settle writes the outcome and ends the claim, if the record has the
	// claim's fence and is Running or Unknown. A record settled before under
	// the same fence with the same outcome (State, Gone and Result) is a
	// success. Otherwise ErrFenced: nothing was written. A result that has gone since is no longer the
	// same: it may have been another's. An outcome that is Gone is the same
	// as one that was Gone from the start, and not past its ExpiresAt.
	Settle(ctx context.Context, c Claim, out Settlement, keep Retention) error

	// Release makes the record Retryable, stating that nothing was executed,
	// if it has the claim's fence and is Running or Unknown. Already
	// Retryable under the same fence is a success. Otherwise ErrFenced. The
	// record is forgotten after keep.Result, at once if that is 0.
	Release(ctx context.Context, c Claim, keep Retention) error

	// Read returns the record as it is now, with the state None if there is
	// none or it is past its ForgetAt, and as Gone past its ExpiresAt. It
	// changes nothing: a Running record whose lease has run out is returned
	// as such.
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
	// Name says what it is: "POST /v1/payments", a queue, a worker's handler. Of
	// accepted work it is what WorkStore.Due goes by.
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

	// RunGroup is RunTx for many keys, all different, in one transaction. Those
	// that have a record, or are being run elsewhere, are left out: their
	// record returned is zero. It calls fn for each of the others, one after
	// the other. An error or a panic rolls all of them back. It does less than
	// RunTx to find out what became of a commit: after an error that wraps
	// ErrUnknown all may be committed, and RunTx will tell.
	RunGroup(ctx context.Context, reqs []ClaimRequest, keep []Retention,
		fn func(ctx context.Context, tx Tx, i int, rec Record) (Settlement, error)) ([]Record, error)
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
	// Sweep looks at a bounded number of records, about limit: it marks unknown
	// Running records whose lease has run out, turns expired results into
	// tombstones, and removes records past their ForgetAt; what the store
	// does by itself is not counted. It never touches a live claim. A record that
	// cannot be read is left unchanged, and looked past. With a *PartialError,
	// what it returns beside it was done.
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
