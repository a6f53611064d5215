package redis

import (
	"fmt"

	"github.com/stet-go/stet/store"
)

// parts reads the elements of a reply in their order. err is set at the first element that is
// missing or has another type; later reads return zero values.
type parts struct {
	rest []any
	err  error
}

func partsOf(reply any) *parts {
	list, ok := reply.([]any)
	if !ok {
		return &parts{err: errReply(reply)}
	}
	return &parts{rest: list}
}

// more reports whether there is another element to read.
func (p *parts) more() bool { return p.err == nil && len(p.rest) > 0 }

// value reads an element of any type.
func (p *parts) value() (v any) {
	switch {
	case p.err != nil:
	case len(p.rest) == 0:
		p.err = errReply(nil)
	default:
		v, p.rest = p.rest[0], p.rest[1:]
	}
	return v
}

// next reads an element of one type.
func next[T any](p *parts) (v T) {
	it := p.value()
	v, ok := it.(T)
	if !ok && p.err == nil {
		p.err = errReply(it)
	}
	return v
}

// id reads an identity.
func (p *parts) id() (id store.ID) {
	member := next[string](p)
	if p.err == nil && len(member) != len(id) {
		p.err = errReply(member)
	}
	copy(id[:], member)
	return id
}

// identities are those in a list.
func identities(list []any) (ids []store.ID, err error) {
	p := partsOf(list)
	for p.more() {
		ids = append(ids, p.id())
	}
	return ids, p.err
}

// errReply is the error of a reply that no script of this package makes.
func errReply(reply any) error {
	return fmt.Errorf("redis: the server's reply is a %T where another type is expected; is the Client an adapter that does what its documentation says?", reply)
}
