package store

import (
	"slices"
	"time"
)

// Limits of Query.Limit.
const (
	// DefaultBrowse is how many records a page has when Query.Limit is 0.
	DefaultBrowse = 100
	// MaxBrowse is how many it has at most.
	MaxBrowse = 1000
)

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

// Check returns an error that wraps ErrInvalid if a store must refuse the query.
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

// Match reports whether the query selects a record with that age since its ClaimedAt.
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
