package stet

import "time"

// Limits of what names an operation.
const (
	// MaxKey is the greatest length of a key in bytes.
	MaxKey = 1024
	// MaxScope is the greatest length of a scope in bytes.
	MaxScope = 1024
)

// Op names one intended effect and says what it asks for.
type Op struct {
	// Scope says whose key it is: a tenant, a principal, an API account.
	// 1 to MaxScope bytes. A key is never looked up without its scope.
	Scope string
	// Key is the idempotency key, 1 to MaxKey bytes, compared byte by byte.
	Key string
	// Fingerprint is a digest of what is asked for. The same key with
	// another fingerprint is refused with ErrMismatch.
	Fingerprint Fingerprint
	// Class selects a policy of Options.Classes; "" selects Options.Policy.
	Class string
	// Wait, when positive, replaces the policy's Wait for this call, up to
	// MaxWait.
	Wait time.Duration
}

// Claim is the exclusive right to run an operation. Every write compares its
// fence with the record's.
type Claim struct {
	ID    ID
	Owner Owner
	Fence int64
}

// Outcome is what an operation came to.
type Outcome struct {
	// State is Completed or Failed.
	State State
	// Result is what is handed out again, byte for byte.
	Result []byte
	// Gone marks an outcome without its result: it was too large to be kept,
	// or it has expired. The operation still never runs again.
	Gone bool
	// Outbox is what leaves once the outcome is durable: the messages that the
	// run emitted, encoded; nil for none. Only a WorkStore keeps it.
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
	State       State
	Fingerprint Fingerprint
	Owner       Owner
	Fence       int64 // grows strictly with every claim of the key
	Attempt     int   // 1 for the first claim of the key

	Result []byte // of a settled record, unless Gone
	Gone   bool   // a tombstone: settled, without its result

	// LeaseLeft is how much of the lease was left when the record was read;
	// zero or less when it has run out. Only for Running.
	LeaseLeft time.Duration
	ClaimedAt time.Time
	SettledAt time.Time // zero unless settled, released or parked
	ExpiresAt time.Time // when the result stops being replayed
	ForgetAt  time.Time // when the record is forgotten; zero for Running, Unknown and Accepted, which never are

	// What only a WorkStore keeps, and only those of its methods return that
	// say so.
	Work       []byte // of an accepted operation: what is to be run; once settled: what is to be sent yet
	Notes      []byte // what its runs have noted down
	Cancelling bool   // its cancellation was asked for while it ran
}

// Claim returns the claim that the record stands for: what to settle or release
// it with.
func (r Record) Claim() Claim { return Claim{ID: r.ID, Owner: r.Owner, Fence: r.Fence} }

// Outcome returns the outcome of a settled record.
func (r Record) Outcome() Outcome { return Outcome{State: r.State, Result: r.Result, Gone: r.Gone} }
