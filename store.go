package stet

import (
	"context"
	"slices"
	"time"
)

// Store keeps records. Every method is one atomic step. Durations go in and the
// store's clock alone decides what has expired. ErrInvalid means that the store
// was used wrongly, and that nothing was done. Any error other than that,
// ErrMismatch and ErrFenced means that the call may or may not have taken
// effect; the engine repeats it with the same arguments, which must be
// harmless. A call whose context has ended already is such an error, and has no
// effect. Retention.Tombstone is never shorter than Result: callers see to
// that. Results are never modified, neither those handed in nor those
// handed out, so both sides may keep them. store/storetest holds an
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
	//   - Running with a lease that has run out: parked as Unknown, returned;
	//   - Retryable, last claimed by another owner: Running under req.Owner,
	//     with a greater fence and the next attempt. (An owner claims once: a
	//     claim that was delayed on its way must not run after its release. One
	//     that is overtaken by another owner's claim and release may be granted
	//     to nobody, and is parked; that is safe.)
	//   - anything else: the record unchanged. Past its ExpiresAt a settled
	//     record is returned as Gone, whether or not it was swept.
	//
	// The claim was granted if the returned record is Running and has
	// req.Owner.
	Claim(ctx context.Context, req ClaimRequest) (Record, error)

	// Extend renews the leases of claims, each to lease from now. A claim is
	// renewed if its record is Running and has its fence, even when the
	// lease has run out meanwhile: nobody else ran. It returns the claims
	// that are lost.
	Extend(ctx context.Context, claims []Claim, lease time.Duration) (lost []Claim, err error)

	// Settle writes the outcome and ends the claim, if the record has the
	// claim's fence and is Running or Unknown. A record settled before under
	// the same fence with the same outcome, or with one whose result has
	// gone since, is a success. Otherwise ErrFenced: nothing was written.
	Settle(ctx context.Context, c Claim, out Outcome, keep Retention) error

	// Release makes the record Retryable, stating that nothing was executed,
	// if it has the claim's fence and is Running or Unknown. Already
	// Retryable under the same fence is a success. Otherwise ErrFenced. The
	// record is forgotten after keep.Result.
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
	// lapsed Running record is parked, durably). Otherwise it calls fn once
	// with the record to be: Running, with req.Owner, its new fence and
	// attempt. If fn returns an error or panics, everything is rolled back
	// and that error is returned, or the panic goes on. Else the settled
	// record is written with fn's outcome, the transaction is committed, and
	// the record returned has req.Owner.
	//
	// A record that is returned Running under another owner is in flight
	// elsewhere; if it is in a transaction, and so has no fence yet, its
	// fence is negative. An error that wraps ErrUnknown means that the commit's fate
	// could not be found out; any other error, that nothing was committed.
	RunTx(ctx context.Context, req ClaimRequest, keep Retention,
		fn func(ctx context.Context, tx Tx, rec Record) (Outcome, error)) (Record, error)

	// SettleTx is Settle inside the caller's own transaction, but for one
	// thing: a record that is settled already is ErrFenced, even under the
	// same fence with the same outcome. An earlier transaction has committed
	// then, and what this one wrote would be there twice. On any error the
	// caller must roll back.
	SettleTx(ctx context.Context, tx Tx, c Claim, out Outcome, keep Retention) error
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
		fn func(ctx context.Context, tx Tx, i int, rec Record) (Outcome, error)) ([]Record, error)
}

// Watcher is a Store that can tell when a record changes; without it waiters
// poll.
type Watcher interface {
	// Watch returns nil when the record of id is no longer Running under
	// fence, when its lease has run out, and whenever it is worth looking
	// again; an error when it cannot tell, or ctx has ended. It changes
	// nothing.
	Watch(ctx context.Context, id ID, fence int64) error
}

// Sweeper is a Store that needs cleaning up. The engine calls it regularly;
// any number of processes may.
type Sweeper interface {
	// Sweep looks at a bounded number of records, about limit: it parks
	// Running records whose lease has run out, turns expired results into
	// tombstones, and removes records past their ForgetAt; what the store
	// does by itself is not counted. It never touches a live claim.
	Sweep(ctx context.Context, limit int) (Swept, error)
}

// Limits of Query.Limit.
const (
	// DefaultBrowse is how many records a page has when Query.Limit is 0.
	DefaultBrowse = 100
	// MaxBrowse is how many it has at most.
	MaxBrowse = 1000
)

// Browser is a Store that operators can look through.
type Browser interface {
	// Browse returns the next page of records that match q, as they are now
	// (see Store.Read) but without their results. It changes nothing. It
	// looks at a bounded number of records, so a page may have fewer than
	// q.Limit, or none, while Page.Next says that there is more to look at.
	// Over all pages, a record that exists and matches all the while comes
	// exactly once. A query that is not acceptable (see Query.Check), or a
	// cursor that the store cannot have given, is ErrInvalid.
	Browse(ctx context.Context, q Query) (Page, error)

	// Expire removes the result of a settled record now, instead of at its
	// ExpiresAt: the record becomes a tombstone, which still refuses to run
	// again until its ForgetAt. A tombstone already is a success. A record
	// that is not settled, or has another fence than c, is ErrFenced:
	// nothing was changed.
	Expire(ctx context.Context, c Claim) error
}

// Query says which records to browse. The zero Query matches all.
type Query struct {
	// Scope, unless it is zero, is the DigestScope of the only scope to show.
	Scope ID
	// States are those to show; none means all.
	States []State
	// OlderThan and NewerThan, where not zero, bound the time since the
	// record was last claimed, on the store's clock. Neither may be negative.
	OlderThan, NewerThan time.Duration
	// After is the Next of the page before; "" for the first. The other
	// fields must be the same as they were then, but for Limit and the ages.
	After string
	// Limit is how many records a page has at most: 1 to MaxBrowse; 0 stands
	// for DefaultBrowse.
	Limit int
}

// Check returns an *Error of kind ErrInvalid if a store must refuse the query.
// Whether After is acceptable only the store can tell.
func (q Query) Check() error {
	if q.Limit < 0 || q.Limit > MaxBrowse {
		return invalid("Query.Limit is %d; it must be 1 to %d, or 0 for %d", q.Limit, MaxBrowse, DefaultBrowse)
	}
	if q.OlderThan < 0 || q.NewerThan < 0 {
		return invalid("Query.OlderThan is %v, NewerThan %v; neither may be negative", q.OlderThan, q.NewerThan)
	}
	for _, s := range q.States {
		if s == None || s > Accepted {
			return invalid("Query.States has %v, in which no record is", s)
		}
	}
	return nil
}

// Match reports whether a record that is as old as age, counted from its
// ClaimedAt, is one that the query asks for.
func (q Query) Match(rec Record, age time.Duration) bool {
	return (q.Scope == ID{} || q.Scope == rec.Scope) &&
		(len(q.States) == 0 || slices.Contains(q.States, rec.State)) &&
		(q.OlderThan == 0 || age > q.OlderThan) && (q.NewerThan == 0 || age < q.NewerThan)
}

// Page is what one Browse found.
type Page struct {
	Records []Record
	Next    string // where the next page begins; "": there is nothing more to look at
}

// Swept is what one Sweep did.
type Swept struct {
	Parked  int  // running records that became unknown
	Expired int  // results that became tombstones
	Purged  int  // records that were removed
	More    bool // there is more to look at now
}
