package rpc

import (
	"sync"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// Maps finds out, once for each descriptor, whether a message may have a map in it. Marshallers
// write maps in any order. A full name is not enough: two files can declare it.
type Maps struct{ known sync.Map } // by descriptor

// In reports whether a message of type d may have a map in it.
func (m *Maps) In(d protoreflect.MessageDescriptor) bool {
	if has, ok := m.known.Load(d); ok {
		return has.(bool) //nolint:forcetypeassert // stored below
	}
	has := mapIn(d, make(map[protoreflect.MessageDescriptor]bool))
	m.known.Store(d, has)
	return has
}

func mapIn(d protoreflect.MessageDescriptor, seen map[protoreflect.MessageDescriptor]bool) bool {
	if seen[d] {
		return false
	}
	seen[d] = true
	for n := range d.Fields().Len() {
		f := d.Fields().Get(n)
		if f.IsMap() || f.Message() != nil && mapIn(f.Message(), seen) {
			return true
		}
	}
	return d.ExtensionRanges().Len() > 0 // of which there may be any
}
