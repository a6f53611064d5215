package tier

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/stet-go/stet/store"
)

// Settle implements store.Store.
func (s *Store) Settle(ctx context.Context, c store.Claim, out store.Settlement, keep store.Retention) error {
	if out.Outbox != nil {
		return fmt.Errorf("tier: %w: the store has no messages; use the SQL store alone for operations that emit", store.ErrInvalid)
	}
	pending := out
	pending.Outbox = binary.BigEndian.AppendUint64(nil, uint64(keep.Tombstone))
	if !out.Gone {
		pending.Result.Head = slices.Concat(pending.Outbox, out.Result.Head)
	}
	err := s.front.Settle(ctx, c, pending, keep)
	if errors.Is(err, store.ErrFenced) { // Redis may have removed the claim after an earlier settle
		row, _, err := s.stored(ctx, c)
		if err != nil {
			return err
		}
		return s.back.Settle(ctx, row, out, keep) // only compares, because the row is settled
	}
	if err != nil {
		return err
	}
	inSQL, err := s.move(ctx, c.ID)
	if err != nil {
		return unconfirmed{err}
	}
	if !same(inSQL, store.Record{Owner: c.Owner, State: out.State, Gone: out.Gone, Result: out.Result}) {
		return store.ErrFenced // Redis had lost the record that SQL has
	}
	return nil
}

// stored returns the claim of the settled SQL row of c's operation, and the record in Redis. The
// fence of c may be that of either. If there is no such row, the error is ErrFenced.
func (s *Store) stored(ctx context.Context, c store.Claim) (row store.Claim, hot store.Record, err error) {
	if _, err = s.Read(ctx, c.ID); err != nil { // moves a pending outcome
		return row, hot, err
	}
	rec, err := s.back.Read(ctx, c.ID)
	if err != nil {
		return row, hot, err
	}
	if hot, err = s.front.Read(ctx, c.ID); err != nil {
		return row, hot, err
	}
	stale := hot.Owner == c.Owner && c.Fence != hot.Fence && c.Fence != rec.Fence
	if rec.Owner != c.Owner || !rec.State.Settled() || stale {
		return row, hot, store.ErrFenced
	}
	return rec.Claim(), hot, nil
}

// size is the length of a packed retention. It is the outbox of a pending outcome, and begins the
// head of its result.
const size = 8

// decode returns the retention of a tombstone. It ignores further bytes.
func decode(b []byte) (time.Duration, error) {
	if len(b) < size {
		return 0, fmt.Errorf("tier: Redis has an outcome that this package did not write: %w", store.ErrDamaged)
	}
	return time.Duration(binary.BigEndian.Uint64(b)), nil //nolint:gosec // see Settle
}

// unwrap removes what Settle has put before the head.
func unwrap(r *store.Result) (tombstone time.Duration, err error) {
	if tombstone, err = decode(r.Head); err != nil {
		return 0, err
	}
	if r.Head = r.Head[size:]; len(r.Head) == 0 {
		r.Head = nil
	}
	return tombstone, nil
}
