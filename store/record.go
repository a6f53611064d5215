package store

import "time"

// Claim is the exclusive right to run an operation. Every write compares its
// fence with the record's.
type Claim struct {
	ID    ID
	Owner Owner
	Fence int64
}

// Settlement is how an operation ended.
type Settlement struct {
	// State is Completed or Failed.
	State State
	// Result is the outcome to replay, byte for byte.
	Result Result
	// Gone marks an outcome without its result: it was too large to be kept,
	// or it has expired. The operation still never runs again.
	Gone bool
	// Outbox is what leaves once the outcome is durable: the messages that the
	// run emitted, encoded; nil for none. Only an OutboxStore keeps it.
	Outbox []byte
}

// Retention says how long a settled record is kept, counted from settling on
// the store's clock.
type Retention struct {
	// Result is how long the result is replayed. Default 24 h.
	Result time.Duration
	// Tombstone is how long the record refuses to run again. It counts from
	// settling as well and is never shorter than Result. Default 30 days.
	Tombstone time.Duration
}

// Record is what a store keeps of an operation. Times are on the store's clock.
type Record struct {
	ID          ID
	Scope       ID // digest of the scope, see DigestScope
	Label       Label
	State       State
	Fingerprint Fingerprint
	Owner       Owner
	Fence       int64 // grows strictly with every claim of the key
	Attempt     int   // 1 for the first claim of the key

	Result Result // of a settled record, unless Gone
	Gone   bool   // a tombstone: settled, without its result

	// InTx: it is Running in a transaction of another call, which has not ended, and so
	// has neither fence nor lease. Only RunTx returns such a record.
	InTx bool

	// LeaseLeft is how much of the lease was left when the record was read;
	// zero or less when it has run out. Only for Running.
	LeaseLeft time.Duration
	ClaimedAt time.Time
	SettledAt time.Time // zero unless settled, released or marked unknown
	ExpiresAt time.Time // when the result stops being replayed
	ForgetAt  time.Time // when the record is forgotten; zero for Running, Unknown and Accepted, which never are

	// Damage says why the record cannot be read. Default "": it can be. Only Browse returns
	// damaged records, with ID, Scope, Owner and Fence as far as they are readable.
	Damage string

	// What only a WorkStore keeps, and only those of its methods return that
	// say so.
	Work       []byte // of an accepted operation that has not ended: operations to run
	Notes      Notes  // what its runs have stored
	Cancelling bool   // its cancellation was asked for while it ran

	// Outbox is messages to send yet, of a settled record. Only an OutboxStore keeps
	// it, and only those methods return it that say so.
	Outbox []byte
}

// Claim returns the claim that the record stands for: what to settle or release
// it with.
func (r Record) Claim() Claim { return Claim{ID: r.ID, Owner: r.Owner, Fence: r.Fence} }

// Settlement returns the outcome of a settled record.
func (r Record) Settlement() Settlement {
	return Settlement{State: r.State, Result: r.Result, Gone: r.Gone}
}
