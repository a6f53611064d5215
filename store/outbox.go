package store

import (
	"context"
	"time"
)

// OutboxStore is a Store that also holds messages, which leave once the outcome is durable
// that they come with. The record is the outbox: one write makes both durable.
//
// What Store says of its methods holds here too, with these additions:
//   - Settle keeps Settlement.Outbox, due at once. The record is not forgotten before
//     Relayed, and purged by no sweep. A repetition is judged by state and result
//     alone, and leaves the messages as they were first written.
//   - Where a store is a TxStore, RunTx and SettleTx store the outbox too. RunGroup is
//     given none.
//   - Where it is a WorkStore, Look and Take of a settled record return its Outbox, too.
type OutboxStore interface {
	Store

	// DueMessages returns settled records with an outbox, about limit at most, the
	// longest waiting first, with their Outbox; and makes each of them due again after
	// that time, so no two calls return one within it. Records that cannot be read are
	// made due again, and named by a *PartialError beside the others.
	DueMessages(ctx context.Context, limit int, again time.Duration) ([]Record, error)

	// Relayed removes the outbox of a settled record that has the claim's
	// fence, which is forgotten after keep.Tombstone from now. Removed already
	// is a success. Otherwise ErrFenced.
	Relayed(ctx context.Context, c Claim, keep Retention) error
}
