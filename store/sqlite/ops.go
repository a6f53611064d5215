package sqlite

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"time"

	"github.com/stet-go/stet/store"
)

const (
	extendChunk = 256  // claims renewed in one operation of a batch
	sweepChunk  = 1000 // records looked at by one Sweep
)

// Claim implements store.Store.
func (s *Store) Claim(ctx context.Context, req store.ClaimRequest) (store.Record, error) {
	return s.ask(ctx, &asked{ClaimRequest: &req})
}

func (s *Store) ask(ctx context.Context, a *asked) (store.Record, error) {
	var rec store.Record
	err := s.write(ctx, func(b *batch) (err error) {
		rec, err = claim(b, a, b.now, b.draw)
		return err
	})
	if err != nil && !errors.Is(err, store.ErrMismatch) {
		return store.Record{}, err // a batch that is late may still be writing rec
	}
	return rec, err
}

// Extend implements store.Store.
func (s *Store) Extend(ctx context.Context, claims []store.Claim, lease time.Duration) (lost []store.Claim, err error) {
	if len(claims) == 0 {
		return nil, ctx.Err()
	}
	var all hurt
	for rest := claims; len(rest) > 0; {
		chunk := rest[:min(len(rest), extendChunk)]
		var gone []store.Claim
		var bad hurt
		err := s.write(ctx, func(b *batch) (err error) {
			gone, bad, err = extend(b, chunk, lease, b.now)
			return err
		})
		switch {
		case err != nil && len(rest) == len(claims):
			return nil, err
		case err != nil: // those before it are renewed
			for _, c := range rest {
				all.add(c, err)
			}
			return lost, all.err()
		}
		for _, c := range bad.claims {
			all.add(c, bad.cause)
		}
		lost, rest = append(lost, gone...), rest[len(chunk):]
	}
	return lost, all.err()
}

// Settle implements store.Store.
func (s *Store) Settle(ctx context.Context, c store.Claim, out store.Settlement, keep store.Retention) error {
	return s.write(ctx, func(b *batch) error { return settle(b, c, out, keep, b.now) })
}

// Release implements store.Store.
func (s *Store) Release(ctx context.Context, c store.Claim, keep store.Retention) error {
	return s.write(ctx, func(b *batch) error { return release(b, c, keep, b.now) })
}

// Read implements store.Store. It never waits for a writer.
func (s *Store) Read(ctx context.Context, id store.ID) (store.Record, error) {
	return s.readWith(ctx, id, glance)
}

func (s *Store) readWith(ctx context.Context, id store.ID, load func(session, store.ID) (*row, error)) (rec store.Record, err error) {
	err = s.read(ctx, func(l *link) error {
		r, err := load(l, id)
		if err != nil {
			return err
		}
		if now := s.o.Clock().UnixMicro(); r == nil || r.forgotten(now) {
			rec = store.Record{ID: id}
		} else {
			rec = r.at(now)
		}
		return nil
	})
	return rec, err
}

// read calls do with one of the read-only connections, and opens it if necessary. A connection
// that failed is not used again.
func (s *Store) read(ctx context.Context, do func(*link) error) (err error) {
	if err := ctx.Err(); err != nil {
		return err
	}
	if s.closed.Load() {
		return errClosed
	}
	var l *link
	select {
	case l = <-s.readers:
	case <-ctx.Done():
		return fmt.Errorf("sqlite: while waiting to read: %w", context.Cause(ctx))
	}
	defer func() { s.readers <- l }()
	if s.closed.Load() {
		return errClosed
	}
	if l == nil {
		if l, err = dial(s.background, s.shared); err != nil {
			return s.explain("read", err, s.path)
		}
	}
	if err := do(l); errors.Is(err, store.ErrDamaged) {
		return err
	} else if err != nil {
		_ = l.close()
		l = nil
		return s.explain("read", err, s.path)
	}
	return nil
}

// Sweep implements store.Sweeper. It looks only at records that are due, through
// an index, so that its cost does not depend on how many there are. At most
// 1,000 are looked at by one call, even if limit is larger.
func (s *Store) Sweep(ctx context.Context, limit int) (store.Swept, error) {
	if limit < 1 {
		return store.Swept{}, ctx.Err()
	}
	limit = min(limit, sweepChunk)
	var swept store.Swept
	var h hurt
	err := s.write(ctx, func(b *batch) (err error) {
		swept, h, err = sweep(b, limit, b.now)
		return err
	})
	if err != nil {
		return store.Swept{}, err
	}
	return swept, h.err()
}

// due is a record that the sweep has something to do with.
type due struct {
	row
	unread error
}

// sweep is the body of Sweep, in a write transaction. It leaves unreadable records unchanged
// until later, so that they do not block the sweep.
func sweep(s session, limit int, now micros) (swept store.Swept, h hurt, err error) {
	var found []due
	err = s.rows(qDue, func(v []driver.Value) error {
		var d due
		id, err := rowID(v[keptFrom])
		d.unread = errors.Join(err, d.scan(id, v[:keptFrom]))
		found = append(found, d)
		return nil
	}, now, int64(limit))
	if err != nil {
		return swept, h, err
	}
	for _, d := range found {
		n := int64(0)
		switch count, q, args := d.step(&swept, now); {
		case d.unread != nil:
		case count == nil:
			d.unread = unreadable(d.ID, fmt.Sprintf("it is %v, and there is nothing to do with it", d.State))
		default:
			if n, err = s.exec(q, args...); err != nil {
				return swept, h, err
			}
			*count += int(n)
		}
		if n == 0 {
			h.add(d.Claim(), d.unread)
			if _, err := s.exec(qPutOff, now+span(putOff), d.Fence); err != nil {
				return swept, h, err
			}
		}
	}
	swept.More = len(found) == limit
	return swept, h, nil
}

// step returns what the sweep does to the record, and what counts it; nil if it
// has no business with it.
func (d *due) step(swept *store.Swept, now micros) (count *int, q query, args []any) {
	switch {
	case d.lapsed(now):
		if count = &swept.MarkedUnknown; d.repeatable {
			count = new(int) // it is not unknown
		}
		return count, qPark, []any{now, now, d.Fence, d.ID[:], now}
	case d.forgotten(now) && (d.State.Settled() || d.State == store.Retryable):
		return &swept.Purged, qPurge, []any{d.Fence, d.ID[:]}
	case d.State.Settled():
		return &swept.Expired, qExpire, []any{now, d.Fence, d.ID[:]}
	}
	return nil, 0, nil
}
