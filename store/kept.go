package store

import (
	"net/url"
	"slices"
	"strings"
)

// keptMark begins a Label.Ref that has more in it than the reference, and no other: the
// fields of keptFields as a query (application/x-www-form-urlencoded), so that any bytes
// are readable text.
const keptMark = "kept:"

// The names of the fields.
const (
	keptScope = "scope"
	keptKey   = "key"
	keptRef   = "ref"
)

// keptFields are all names.
var keptFields = []string{keptScope, keptKey, keptRef}

// Kept is what a Label.Ref can hold: the scope and the key of an operation, where its
// policy keeps them, and the service's own reference; "" for what it does not hold. A store
// does not look into it.
type Kept struct{ Scope, Key, Ref string }

// Pack returns what is stored in place of the reference, before it is sealed: at most
// MaxRef bytes when it is, if each field is within its limit.
func (k Kept) Pack() string {
	if k.Scope == "" && k.Key == "" && !strings.HasPrefix(k.Ref, keptMark) {
		return k.Ref
	}
	fields := url.Values{}
	for name, v := range map[string]string{keptScope: k.Scope, keptKey: k.Key, keptRef: k.Ref} {
		if v != "" {
			fields.Set(name, v)
		}
	}
	return keptMark + fields.Encode()
}

// UnpackKept undoes Pack. What was not packed by it is a reference. Anyone who can write a
// reference can write this: scope and key are those of a record only if they make its ID
// (see Digest).
func UnpackKept(stored string) Kept {
	text, ok := strings.CutPrefix(stored, keptMark)
	fields, err := url.ParseQuery(text)
	if !ok || err != nil {
		return Kept{Ref: stored}
	}
	for name, values := range fields {
		if len(values) != 1 || !slices.Contains(keptFields, name) {
			return Kept{Ref: stored}
		}
	}
	return Kept{fields.Get(keptScope), fields.Get(keptKey), fields.Get(keptRef)}
}
