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

// scopeLabelMark begins a Label.Ref with the label of the scope: then the label, escaped as in a query,
// a ";", and the reference as the engine stores it.
const scopeLabelMark = "scope-label:"

// WithScopeLabel adds the label of the scope, in plain text, to a stored reference. Without a
// label it returns ref.
func WithScopeLabel(label, ref string) string {
	if label == "" {
		return ref
	}
	return scopeLabelMark + url.QueryEscape(label) + ";" + ref
}

// CutScopeLabel is the reverse of WithScopeLabel.
func CutScopeLabel(stored string) (label, ref string) {
	text, ok := strings.CutPrefix(stored, scopeLabelMark)
	escaped, ref, found := strings.Cut(text, ";")
	label, err := url.QueryUnescape(escaped)
	if !ok || !found || label == "" || err != nil {
		return "", stored
	}
	return label, ref
}

// Names returns the label of the scope and the reference of an operation, for logs. An encrypted
// reference is left out.
func (l Label) Names() (scopeLabel, ref string) {
	scopeLabel, ref = CutScopeLabel(l.Ref)
	if strings.HasPrefix(ref, "sealed:") {
		return scopeLabel, ""
	}
	return scopeLabel, UnpackKept(ref).Ref
}

// The names of the fields.
const (
	keptScope = "scope"
	keptKey   = "key"
	keptRef   = "ref"
)

// keptFields are all names.
var keptFields = []string{keptScope, keptKey, keptRef}

// Kept is the content of a Label.Ref: scope and key of an operation, if its policy stores
// them, and the service's own reference. Missing parts are "". Stores do not interpret it.
type Kept struct{ Scope, Key, Ref string }

// Pack returns the stored form, before it is sealed. If each field is within its limit, the
// sealed form has at most MaxRef bytes.
func (k Kept) Pack() string {
	if k.Scope == "" && k.Key == "" && !strings.HasPrefix(k.Ref, keptMark) && !strings.HasPrefix(k.Ref, scopeLabelMark) {
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

// UnpackKept is the reverse of Pack. A text that Pack did not write is a reference. Because
// clients may be able to write references, scope and key are valid only if they make the ID of
// the record (see Digest).
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
