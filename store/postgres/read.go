package postgres

import (
	"bytes"
	"context"
	"slices"
	"sync"

	"github.com/stet-go/stet/store"
)

// read is a call of Read.
type read struct {
	id    store.ID
	found bool
	r     row // if there is one
}

// readings are calls of Read that have ended, whose memory is used again.
var readings = sync.Pool{New: func() any { return new(op[read]) }}

// Read implements store.Store. Concurrent reads share statements.
func (s *Store) Read(ctx context.Context, id store.ID) (store.Record, error) {
	if err := ctx.Err(); err != nil {
		return store.Record{}, err
	}
	o := readings.Get().(*op[read])
	o.v.id = id
	if err := s.reads.deal(ctx, o); err != nil {
		return store.Record{}, err // o may be in use still
	}
	rec, err := s.wasRead(ctx, &o.v)
	*o = op[read]{done: o.done}
	readings.Put(o)
	return rec, err
}

func (s *Store) wasRead(ctx context.Context, v *read) (store.Record, error) {
	r := &v.r
	switch {
	case !v.found:
		return store.Record{ID: v.id}, nil
	case r.damage != nil:
		return store.Record{}, explain("read", r.damage)
	case r.forgotten():
		return store.Record{ID: v.id}, nil
	}
	if err := s.firm(ctx, r, store.Owner{}); err != nil {
		return store.Record{}, err
	}
	return r.record(), nil
}

// runReads reads each record into the call that has asked for it. Sorted by ID, as the server mostly
// returns them, they need no index.
func (s *Store) runReads(ctx context.Context, batch []*op[read]) {
	byID := func(o *op[read], id []byte) int { return bytes.Compare(o.v.id[:], id) }
	slices.SortFunc(batch, func(a, b *op[read]) int { return byID(a, b.v.id[:]) })
	err := s.exec(ctx, func() []call {
		next := 0
		c := call{statement: s.sql.read, row: func(values [][]byte) error {
			for next < len(batch) && byID(batch[next], values[0]) < 0 {
				next++
			}
			at, ok := next, next < len(batch) && byID(batch[next], values[0]) == 0
			if !ok {
				at, ok = slices.BinarySearchFunc(batch, values[0], byID)
			}
			if !ok {
				return errDamaged
			}
			first := &batch[at].v
			_ = first.r.scan(values) // it is r.damage, too, and hides no other
			first.found = true
			return nil
		}}
		for _, o := range batch {
			o.v.found, o.v.r = false, row{}
		}
		c.params = idsOf(len(batch), func(i int) *store.ID { return &batch[i].v.id })
		return []call{c}
	})
	for i, o := range batch {
		if i > 0 && o.v.id == batch[i-1].v.id { // of the same record, only the first was filled
			o.v.found, o.v.r = batch[i-1].v.found, batch[i-1].v.r
		}
		o.err = explain("read", err)
	}
}
