package store

import (
	"context"
	"time"
)

// Limits of a history.
const (
	// MaxHistory is how many entries the history of a record has at most.
	MaxHistory = 16
	// MaxHistoryEntry bounds HistoryEntry.Data, in bytes.
	MaxHistoryEntry = 4 << 10

	// HistoryStart is how many of the first entries stay when the history is full.
	HistoryStart = MaxHistory / 2
)

// HistoryStore is a Store that has a history beside a record: what went wrong with the
// operation. An operation without trouble has no entry. Entries are deleted with the record.
type HistoryStore interface {
	Store

	// AddHistory adds an entry to the history of id, with the time of the store's clock. If
	// there is no record, it does nothing. An entry of attempt 1 or less deletes the entries with a
	// smaller fence: they are of an earlier use of the key. If MaxHistory entries remain, the
	// one after the first HistoryStart is deleted, so that the start and the end of a history
	// stay. A repeated call may add the entry twice.
	AddHistory(ctx context.Context, id ID, e HistoryEntry) error

	// History returns the last entries of each of ids, most at most of each, oldest first.
	// They may include entries of an earlier use of the key: see HistoryOf.
	History(ctx context.Context, ids []ID, most int) ([][]HistoryEntry, error)
}

// HistoryEntry is one entry of a history.
type HistoryEntry struct {
	At      time.Time // on the store's clock; AddHistory sets it
	Fence   int64     // of the claim that it is about
	Attempt int       // of that claim
	Data    []byte    // what the engine stores, unchanged
}

// HistoryOf returns the entries that belong to a record: not those of an earlier use of its key,
// whose record was forgotten and not yet deleted when the key was claimed again. Going back from
// the record, the fence and the attempt of an entry are those of the entry after it, or both are
// smaller: an attempt may have no entry. Of two equal neighbours, one is left out.
func HistoryOf(rec Record, all []HistoryEntry) []HistoryEntry {
	if rec.State == None {
		return nil
	}
	fence, attempt, first := rec.Fence, rec.Attempt, len(all)
	for first > 0 {
		e := all[first-1]
		same := e.Fence == fence && e.Attempt == attempt
		if !same && (e.Fence >= fence || e.Attempt >= attempt && (attempt > 0 || e.Attempt > 0)) {
			break
		}
		fence, attempt = e.Fence, e.Attempt
		first--
	}
	var own []HistoryEntry
	for _, e := range all[first:] {
		if n := len(own); n > 0 && own[n-1].Fence == e.Fence && string(own[n-1].Data) == string(e.Data) {
			continue
		}
		own = append(own, e)
	}
	return own
}
