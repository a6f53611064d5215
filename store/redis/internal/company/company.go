// Package company has what calls that are sent to a server together need, in pipelines and
// in shared scripts.
package company

import (
	"context"
	"time"
)

// Longest is how long calls that are sent together wait for their answers at most.
const Longest = time.Minute

// Latest is when the last of some calls may be answered: at the latest of their deadlines,
// and after Longest at the latest, so that no caller's patience costs the others a lane.
func Latest[T any](calls []T, contextOf func(T) context.Context) (end time.Time) {
	longest := time.Now().Add(Longest)
	for _, c := range calls {
		at, ok := contextOf(c).Deadline()
		if !ok || at.After(longest) {
			return longest
		}
		if at.After(end) {
			end = at
		}
	}
	return end
}

// SizeOf is about how many bytes a reply had.
func SizeOf(reply any) (n int) {
	switch reply := reply.(type) {
	case string:
		return len(reply)
	case []any:
		for _, part := range reply {
			n += SizeOf(part)
		}
	}
	return n
}
