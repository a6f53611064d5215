package sqlite

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"time"

	"github.com/stet-go/stet"
)

const (
	extendChunk = 256  // claims renewed in one operation of a batch
	sweepChunk  = 1000 // records looked at by one Sweep
)

// Claim implements stet.Store.
func (s *Store) Claim(ctx context.Context, req stet.ClaimRequest) (stet.Record, error) {
	return s.ask(ctx, &asked{ClaimRequest: &req})
}

func (s *Store) ask(ctx context.Context, a *asked) (stet.Record, error) {
	var rec stet.Record
	err := s.write(ctx, func(b *batch) (err error) {
		rec, err = claim(b, a, b.now, b.draw)
		return err
	})
	if err != nil && !errors.Is(err, stet.ErrMismatch) {
		return stet.Record{}, err // a batch that is late may still be writing rec
	}
	return rec, err
}

// Extend implements stet.Store.
func (s *Store) Extend(ctx context.Context, claims []stet.Claim, lease time.Duration) (lost []stet.Claim, err error) {
	for len(claims) > 0 {
		n := min(len(claims), extendChunk)
		var gone []stet.Claim
		err := s.write(ctx, func(b *batch) (err error) {
			gone, err = extend(b, claims[:n], lease, b.now)
			return err
		})
		if err != nil {
			return nil, err
		}
		lost, claims = append(lost, gone...), claims[n:]
	}
	return lost, ctx.Err()
}

// Settle implements stet.Store.
func (s *Store) Settle(ctx context.Context, c stet.Claim, out stet.Outcome, keep stet.Retention) error {
	return s.write(ctx, func(b *batch) error { return settle(b, c, out, keep, b.now) })
}

// Release implements stet.Store.
func (s *Store) Release(ctx context.Context, c stet.Claim, keep stet.Retention) error {
	return s.write(ctx, func(b *batch) error { return release(b, c, keep, b.now) })
}

// Read implements stet.Store. It never waits for a writer.
func (s *Store) Read(ctx context.Context, id stet.ID) (stet.Record, error) {
	return s.readWith(ctx, id, load)
}

func (s *Store) readWith(ctx context.Context, id stet.ID, load func(session, stet.ID) (*row, error)) (rec stet.Record, err error) {
	err = s.read(ctx, func(l *link) error {
		r, err := load(l, id)
		if err != nil {
			return err
		}
		if now := s.o.Clock().UnixMicro(); r == nil || r.forgotten(now) {
			rec = stet.Record{ID: id}
		} else {
			rec = r.at(now)
		}
		return nil
	})
	return rec, err
}

// read lends one of the connections that only read, dialled if need be. One that
// has failed is not used again.
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
	if err := do(l); err != nil {
		_ = l.close()
		l = nil
		return s.explain("read", err, s.path)
	}
	return nil
}

// Sweep implements stet.Sweeper. It looks only at records that are due, through
// an index, so that its cost does not depend on how many there are. At most
// 1,000 are looked at by one call, whatever limit says.
func (s *Store) Sweep(ctx context.Context, limit int) (stet.Swept, error) {
	if limit < 1 {
		return stet.Swept{}, ctx.Err()
	}
	limit = min(limit, sweepChunk)
	var swept stet.Swept
	err := s.write(ctx, func(b *batch) (err error) {
		swept, err = sweep(b, limit, b.now)
		return err
	})
	if err != nil {
		return stet.Swept{}, err
	}
	return swept, nil
}

// due is a record that the sweep has something to do with.
type due struct {
	stet.Claim
	state         stet.State
	lease, forget micros
}

// sweep is the body of Sweep, in a write transaction.
func sweep(s session, limit int, now micros) (swept stet.Swept, err error) {
	var found []due
	err = s.rows(qDue, func(v []driver.Value) error {
		var d due
		id, _ := v[0].([]byte)
		copy(d.ID[:], id)
		d.Fence, _ = v[1].(int64)
		state, _ := v[2].(int64)
		d.state = stet.State(state)
		d.lease, _ = v[3].(int64)
		d.forget, _ = v[4].(int64)
		found = append(found, d)
		return nil
	}, now, int64(limit))
	if err != nil {
		return swept, err
	}
	for _, d := range found {
		q, count, args := qExpire, &swept.Expired, []any{d.Fence, d.ID[:]}
		switch {
		case d.state == stet.Running:
			q, count, args = qPark, &swept.Parked, []any{now, d.Fence, d.ID[:], now}
		case d.forget != 0 && d.forget <= now:
			q, count = qPurge, &swept.Purged
		}
		n, err := s.exec(q, args...)
		if err != nil {
			return swept, err
		}
		*count += int(n)
	}
	swept.More = len(found) == limit
	return swept, nil
}
