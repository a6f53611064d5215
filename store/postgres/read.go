package postgres

import (
	"context"

	"github.com/stet-go/stet/store"
)

// read is a call of Read.
type read struct {
	id store.ID
	r  *row // nil if there is none
}

// Read implements store.Store. Concurrent reads share statements.
func (s *Store) Read(ctx context.Context, id store.ID) (store.Record, error) {
	if err := ctx.Err(); err != nil {
		return store.Record{}, err
	}
	o, err := s.reads.do(ctx, read{id: id})
	if err != nil {
		return store.Record{}, err
	}
	return s.readResult(ctx, &o.v)
}

func (s *Store) readResult(ctx context.Context, v *read) (store.Record, error) {
	switch r := v.r; {
	case r == nil || r.damage == nil && r.forgotten():
		return store.Record{ID: v.id}, nil
	case r.damage != nil:
		return store.Record{}, explain("read", r.damage)
	}
	if err := s.ensureReplicated(ctx, v.r, store.Owner{}); err != nil {
		return store.Record{}, err
	}
	return v.r.record(), nil
}

// runReads reads the records of a batch in one statement.
func (s *Store) runReads(ctx context.Context, batch []*op[read]) {
	ids := make([]store.ID, len(batch))
	for i, o := range batch {
		ids[i] = o.v.id
	}
	rows, err := s.readRows(ctx, ids)
	for _, o := range batch {
		o.v.r, o.err = rows[o.v.id], explain("read", err)
	}
}
