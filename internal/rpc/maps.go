package rpc

import (
	"sync"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// Maps finds out, once for each type, whether a message may have a map in it. Marshallers
// write maps in any order.
type Maps struct{ known sync.Map } // by full name

// In reports whether a message of type d may have a map in it.
func (m *Maps) In(d protoreflect.MessageDescriptor) bool {
	if has, ok := m.known.Load(d.FullName()); ok {
		return has.(bool) //nolint:forcetypeassert // stored below
	}
	has := mapIn(d, make(map[protoreflect.FullName]bool))
	m.known.Store(d.FullName(), has)
	return has
}

func mapIn(d protoreflect.MessageDescriptor, seen map[protoreflect.FullName]bool) bool {
	if seen[d.FullName()] {
		return false
	}
	seen[d.FullName()] = true
	for n := range d.Fields().Len() {
		f := d.Fields().Get(n)
		if f.IsMap() || f.Message() != nil && mapIn(f.Message(), seen) {
			return true
		}
	}
	return d.ExtensionRanges().Len() > 0 // of which there may be any
}
