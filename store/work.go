package store

import (
	"context"
	"encoding/binary"
	"time"
)

// WorkStore is a Store that also holds work: operations that are accepted now and run
// later. The record is the queue: one write makes both durable.
//
// What Store says of its methods holds here too, with these additions:
//   - A record that was made by Accept is of an accepted operation, and keeps its
//     work until it is settled. Release makes it Accepted instead of Retryable,
//     due at once; Accepted already, under the same fence, is a success.
//   - Read returns Cancelling, too: a worker need not read the work for that.
//   - Claim leaves an Accepted record unchanged, and returns it.
//   - Accepted records are never forgotten.
//   - A Repeatable run may be repeated, also if it had its effect. Its record is due when
//     its lease has run out; Extend puts that off, but need not bring it forward.
//     Whatever would make it Unknown (a claim, an acceptance, a sweep) makes it
//     Accepted instead, to be taken at once; when it is due stays as it was.
//   - Notes and Cancelling stay with a record that is marked unknown, released, returned,
//     or claimed, accepted or taken again, until it is settled or forgotten.
type WorkStore interface {
	Store

	// Accept is Claim for an operation that must be run later. Where Claim
	// would have granted a run, the record becomes Accepted, with req.Owner, a
	// greater fence and work, due after that time; it counts no attempt.
	// Accepted under req.Owner is returned (the reply of an earlier, identical
	// call was lost). req.Lease is not used. The record returned is without
	// Work and Notes.
	Accept(ctx context.Context, req ClaimRequest, work []byte, after time.Duration) (Record, error)

	// Take claims an Accepted record that is due and was last owned by another owner: Running
	// under req.Owner, with a greater fence and the next attempt, and no longer due. It also
	// takes a Repeatable run with an expired lease. Running under req.Owner is returned; any
	// other Running record with an expired lease is marked unknown, and returned; everything
	// else is returned unchanged, with the state None if there is no record. A record that
	// must still wait is not taken, also if a queue delivers it; Due does not make a record
	// wait. In all cases the returned record has its Work, Notes and Cancelling.
	Take(ctx context.Context, req TakeRequest) (Record, error)

	// Return is Release of an accepted operation: Accepted, due after that
	// time. Of any other record it is ErrFenced.
	Return(ctx context.Context, c Claim, after time.Duration) error

	// Cancel settles an Accepted record that has the claim's fence with out,
	// as Failed. If it is Running under that fence, it marks it as Cancelling:
	// that is for its run to obey. Failed already under the same fence with the
	// same outcome is a success. Otherwise, as for a Running record that was
	// never accepted, ErrFenced. It returns the record, with its Work, Notes and
	// Cancelling.
	Cancel(ctx context.Context, c Claim, out Settlement, keep Retention) (Record, error)

	// Save replaces the notes of a Running record with the claim's fence, whether or not its
	// lease has expired. Otherwise it returns ErrFenced. Notes are only replaced by a greater
	// Notes.Version: the same version is a success, and a smaller one, which was delayed, is
	// ErrFenced. The same write sets whether the run is Repeatable.
	Save(ctx context.Context, c Claim, notes Notes, repeatable bool) error

	// Amend is Save for a record that is Unknown, and for no other. Before Release, it removes
	// steps from the notes that were found not to have happened. A run's own late Save of an
	// Unknown record must stay ErrFenced.
	Amend(ctx context.Context, c Claim, notes Notes) error

	// Look is Read of a record with its Work, Notes and Cancelling.
	Look(ctx context.Context, id ID) (Record, error)

	// Due returns records that wait to be run, about limit at most: Accepted, or Running
	// with a lease that has run out, of a Repeatable run. They have their Work, but
	// neither Notes nor Cancelling. It makes each of them due again after that time, so
	// no two calls return one within it. Records that cannot be read are made due
	// again, and named by a *PartialError beside the others.
	//
	// With names, which are MaxDueNames at most, it returns records with these
	// Label.Names alone, and how many there are of others costs it nothing. Of one name
	// it takes the longest waiting. Names take turns: as long as there is room, none has
	// to wait for another's backlog. Among those returned, the longest waiting come
	// first.
	Due(ctx context.Context, limit int, again time.Duration, names ...string) ([]Record, error)
}

// Notes are what the runs of an operation have stored. Those of Version 0 are none.
type Notes struct {
	// Version grows with every write, so that one which was delayed on its way does
	// not undo a later one. Save and Amend get one above 0.
	Version uint64
	// Data is what the engine stores, unchanged.
	Data []byte
}

// Progress is how far a run has come, in its own words. The engine keeps it in the notes.
type Progress struct {
	Fraction float64   // 0 to 1
	Message  string    // for people
	At       time.Time // on the clock of the writer
}

// noteVersion is how many bytes the version of packed notes has.
const noteVersion = 8

// Marshal packs notes into one value: the version in eight bytes, big-endian, and the data.
// Therefore a greater value has a greater version. For empty notes it returns nil.
func (n Notes) Marshal() []byte {
	if n.Version == 0 {
		return nil
	}
	return append(binary.BigEndian.AppendUint64(make([]byte, 0, noteVersion+len(n.Data)), n.Version), n.Data...)
}

// UnmarshalNotes undoes Marshal. Data shares b's memory. Bytes that are too few for a
// version are the data of Version 0, which no engine can read.
func UnmarshalNotes(b []byte) Notes {
	if len(b) < noteVersion {
		return Notes{Data: b}
	}
	return Notes{Version: binary.BigEndian.Uint64(b), Data: b[noteVersion:len(b):len(b)]}
}

// TakeRequest is what a worker asks a store to take.
type TakeRequest struct {
	ID    ID
	Owner Owner
	Lease time.Duration
	// Repeatable says that the run may be repeated if its lease expires: none of its effects
	// stay, or doing them twice has one effect. It applies to this run, until Save changes it.
	Repeatable bool
}

// WorkTxStore is a WorkStore with transactions of type Tx.
type WorkTxStore[Tx any] interface {
	WorkStore
	TxStore[Tx]

	// InTx runs fn once in a transaction and commits it. If fn returns an error or panics, it
	// rolls back and returns that error, or the panic continues. A store may delay the writes
	// of SettleTx until the commit: SettleTx then returns nil, and InTx its error, such as
	// ErrFenced. After any other error the commit may or may not have happened. A later write
	// to a record of the transaction waits for its end.
	InTx(ctx context.Context, fn func(ctx context.Context, tx Tx) error) error

	// AcceptTx is Accept inside the caller's own transaction. It waits for a
	// transaction that is accepting the same key. On an error the caller must
	// roll back.
	AcceptTx(ctx context.Context, tx Tx, req ClaimRequest, work []byte, after time.Duration) (Record, error)

	// SaveTx is Save inside the caller's own transaction. On an error the
	// caller must roll back.
	SaveTx(ctx context.Context, tx Tx, c Claim, notes Notes, repeatable bool) error
}
