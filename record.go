package stet

import (
	"time"

	"github.com/stet-go/stet/store"
)

// Op names one intended effect and says what it asks for.
type Op struct {
	// Scope says whose key it is: a tenant, a principal, an API account.
	// 1 to MaxScope bytes. A key is never looked up without its scope.
	Scope string
	// Key is the idempotency key, 1 to MaxKey bytes, compared byte by byte.
	Key string
	// Fingerprint is a digest of what is asked for. The same key with
	// another fingerprint is refused with KindMismatch.
	Fingerprint store.Fingerprint
	// Class selects a policy of Options.Classes; "" selects Options.Policy.
	Class string
	// Name says what the operation is, for people and verifiers: "POST
	// /v1/payments", a queue, an RPC. At most store.MaxLabel bytes of UTF-8 without
	// control characters, stored in clear. Accepted operations have Work.Name
	// instead. Default "".
	Name string
	// Ref is the service's own reference, such as an order's ID, for people and
	// verifiers. At most store.MaxLabel bytes of UTF-8 without control characters, and not
	// beginning with "sealed:". It is stored, and encrypted if Options.Encryption
	// says so. Default "".
	Ref string
	// Wait, when positive, replaces the policy's Wait for this call: NoWait to
	// MaxWait.
	Wait time.Duration
}
