package stet

import "github.com/stet-go/stet/store"

// What a store keeps and does is declared in package store.
type (
	// ID is that of package store.
	ID = store.ID
	// Owner is that of package store.
	Owner = store.Owner
	// Fingerprint is that of package store.
	Fingerprint = store.Fingerprint
	// Claim is that of package store.
	Claim = store.Claim
	// Retention is that of package store.
	Retention = store.Retention
	// Record is that of package store.
	Record = store.Record
	// ClaimRequest is that of package store.
	ClaimRequest = store.ClaimRequest
	// Store is that of package store.
	Store = store.Store
	// Watcher is that of package store.
	Watcher = store.Watcher
	// Sweeper is that of package store.
	Sweeper = store.Sweeper
	// Swept is that of package store.
	Swept = store.Swept
	// Browser is that of package store.
	Browser = store.Browser
	// Query is that of package store.
	Query = store.Query
	// Page is that of package store.
	Page = store.Page
	// WorkStore is that of package store.
	WorkStore = store.WorkStore
	// Due is that of package store.
	Due = store.Due
	// State is that of package store.
	State = store.State
	// Verb is that of package store.
	Verb = store.Verb
	// PartialError is that of package store.
	PartialError = store.PartialError
	// TxStore is that of package store.
	TxStore[Tx any] = store.TxStore[Tx]
	// GroupTxStore is that of package store.
	GroupTxStore[Tx any] = store.GroupTxStore[Tx]
	// WorkTxStore is that of package store.
	WorkTxStore[Tx any] = store.WorkTxStore[Tx]
)

// States, verbs and limits of package store.
const (
	DefaultBrowse     = store.DefaultBrowse     // of package store
	MaxBrowse         = store.MaxBrowse         // of package store
	DueRun            = store.DueRun            // of package store
	DueRelay          = store.DueRelay          // of package store
	None              = store.None              // of package store
	Running           = store.Running           // of package store
	Completed         = store.Completed         // of package store
	Failed            = store.Failed            // of package store
	Retryable         = store.Retryable         // of package store
	Unknown           = store.Unknown           // of package store
	Accepted          = store.Accepted          // of package store
	VerbClaim         = store.VerbClaim         // of package store
	VerbComplete      = store.VerbComplete      // of package store
	VerbFail          = store.VerbFail          // of package store
	VerbRelease       = store.VerbRelease       // of package store
	VerbPark          = store.VerbPark          // of package store
	VerbCommit        = store.VerbCommit        // of package store
	VerbCommitFailure = store.VerbCommitFailure // of package store
	VerbAccept        = store.VerbAccept        // of package store
	VerbTake          = store.VerbTake          // of package store
	VerbReturn        = store.VerbReturn        // of package store
	VerbCancel        = store.VerbCancel        // of package store
)

// ErrNotDone is that of package store.
var ErrNotDone = store.ErrNotDone

// Digests and identities of package store.
var (
	ParseID     = store.ParseID     // of package store
	NewOwner    = store.NewOwner    // of package store
	Digest      = store.Digest      // of package store
	ScopeRange  = store.ScopeRange  // of package store
	DigestScope = store.DigestScope // of package store
)
