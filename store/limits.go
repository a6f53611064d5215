package store

import "time"

// Limits of what names an operation.
const (
	// MaxKey is the greatest length of a key, in bytes.
	MaxKey = 1024
	// MaxScope is the greatest length of a scope, in bytes.
	MaxScope = 1024
	// MaxLabel is the greatest length of each part of a Label, in bytes.
	MaxLabel = 255
	// MaxRef bounds the stored form of a Label.Ref, in bytes: each byte of scope, key and
	// reference may take three, and sealing adds a third.
	MaxRef = 12 << 10
	// MaxName is the greatest length of the name of work, or of a step, in bytes.
	MaxName = 255
)

// Limits of what a record keeps.
const (
	// MaxWork is the greatest payload of accepted work, in bytes.
	MaxWork = 1 << 20
	// MaxNotes bounds the steps and the progress of an operation together, in bytes.
	MaxNotes = 1 << 20
	// MaxMessages is how many messages a run can emit.
	MaxMessages = 1000
	// MaxOutbox bounds the messages of a run together, in bytes.
	MaxOutbox = 1 << 20
	// MaxFields bounds the header and trailer fields, and their values, of an outcome.
	MaxFields = 4096
	// MaxStatus bounds the status of an outcome: it has three digits, as in HTTP.
	MaxStatus = 999
	// MaxResultLimit bounds stet.Policy.MaxResult, in bytes.
	MaxResultLimit = 64 << 20
)

// Limits of time.
const (
	// MinLease and MaxLease bound stet.Policy.Lease.
	MinLease = 50 * time.Millisecond
	MaxLease = 24 * time.Hour
	// MaxWait bounds stet.Policy.Wait and stet.Op.Wait.
	MaxWait = 5 * time.Minute
	// MaxRunTimeout bounds stet.Policy.RunTimeout.
	MaxRunTimeout = 7 * 24 * time.Hour
	// MaxStoreTimeout bounds stet.Options.StoreTimeout.
	MaxStoreTimeout = time.Hour
	// MaxDelay bounds stet.Work.After and what an operation waits for between two runs.
	MaxDelay = 365 * 24 * time.Hour
)

// Limits of what one call asks for.
const (
	// MaxGroup is how many operations share one transaction at most.
	MaxGroup = 1000
	// MaxDueNames is how many names WorkStore.Due is asked for at most.
	MaxDueNames = 256
)
