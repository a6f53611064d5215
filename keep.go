package stet

import (
	"net/url"
	"slices"
	"strings"

	"github.com/stet-go/stet/store"
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

// kept is what a Label.Ref can hold.
type kept struct{ scope, key, ref string }

// keep returns what a policy keeps of an operation.
func (p *Policy) keep(op Op) kept {
	k := kept{ref: op.Ref}
	if p.KeepScope {
		k.scope = op.Scope
	}
	if p.KeepKey {
		k.key = op.Key
	}
	return k
}

// pack returns what is stored in place of the reference.
func (k kept) pack() string {
	if k.scope == "" && k.key == "" && !strings.HasPrefix(k.ref, keptMark) {
		return k.ref
	}
	fields := url.Values{}
	for name, v := range map[string]string{keptScope: k.scope, keptKey: k.key, keptRef: k.ref} {
		if v != "" {
			fields.Set(name, v)
		}
	}
	return keptMark + fields.Encode()
}

// unpackKept undoes pack. What was not packed by it is a reference.
func unpackKept(stored string) kept {
	text, ok := strings.CutPrefix(stored, keptMark)
	fields, err := url.ParseQuery(text)
	if !ok || err != nil {
		return kept{ref: stored}
	}
	for name, values := range fields {
		if len(values) != 1 || !slices.Contains(keptFields, name) {
			return kept{ref: stored}
		}
	}
	return kept{fields.Get(keptScope), fields.Get(keptKey), fields.Get(keptRef)}
}

// kept returns what is kept of a record's operation in its label, whose reference has
// been opened. Scope and key are left out unless they name this very record: they may be
// of an engine with another Namespace, whose verifiers know of other operations.
func (e *Engine) kept(rec store.Record, ref string) kept {
	k := unpackKept(ref)
	switch {
	case k.scope == "", store.DigestScope(e.o.Namespace, k.scope) != rec.Scope:
		k.scope, k.key = "", ""
	case k.key != "" && store.Digest(e.o.Namespace, k.scope, k.key) != rec.ID:
		k.scope, k.key = "", ""
	}
	return k
}
