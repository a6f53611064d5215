package stet

import "github.com/stet-go/stet/store"

// keep returns what a policy keeps of an operation.
func (p *Policy) keep(op Op) store.Kept {
	k := store.Kept{Ref: op.Ref}
	if p.KeepScope {
		k.Scope = op.Scope
	}
	if p.KeepKey {
		k.Key = op.Key
	}
	return k
}

// kept returns what is kept of a record's operation in its label, whose reference has
// been opened. Scope and key are left out unless they name this very record: they may be
// of an engine with another Namespace, whose verifiers know of other operations.
func (e *Engine) kept(rec store.Record, ref string) store.Kept {
	k := store.UnpackKept(ref)
	switch {
	case k.Scope == "", store.DigestScope(e.o.Namespace, k.Scope) != rec.Scope:
		k.Scope, k.Key = "", ""
	case k.Key != "" && store.Digest(e.o.Namespace, k.Scope, k.Key) != rec.ID:
		k.Scope, k.Key = "", ""
	}
	return k
}
