package tier

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/stet-go/stet/store"
)

// Sweep implements store.Sweeper. It sweeps both stores, and writes pending outcomes to SQL.
func (s *Store) Sweep(ctx context.Context, limit int) (store.Swept, error) {
	swept, frontErr := s.front.Sweep(ctx, limit)
	found, moveErr := s.movePending(ctx, limit)
	back, backErr := s.back.Sweep(ctx, limit)
	return store.Swept{
		MarkedUnknown: swept.MarkedUnknown + back.MarkedUnknown,
		Expired:       swept.Expired + back.Expired,
		Purged:        swept.Purged + back.Purged,
		More:          swept.More || found >= limit || back.More,
	}, errors.Join(frontErr, moveErr, backErr)
}

// movePending writes up to about limit pending outcomes to SQL, and returns how many it found.
func (s *Store) movePending(ctx context.Context, limit int) (found int, err error) {
	pending, err := s.front.DueMessages(ctx, limit, moveAgain)
	for _, rec := range pending {
		_, moveErr := s.insert(ctx, rec)
		err = errors.Join(err, moveErr)
	}
	return len(pending), err
}

// The beginnings of a cursor: the store of the next page.
const (
	inFront = "claims:"
	inBack  = "outcomes:"
)

// Browse implements store.Browser. It lists the records in Redis that are not settled, then those
// in SQL. An outcome that is not in SQL yet is on no page.
func (s *Store) Browse(ctx context.Context, q store.Query) (store.Page, error) {
	if err := q.Check(); err != nil {
		return store.Page{}, err
	}
	if after, ok := strings.CutPrefix(q.After, inBack); ok {
		return s.browseBack(ctx, q, after)
	}
	after, ok := strings.CutPrefix(q.After, inFront)
	if !ok && q.After != "" {
		return store.Page{}, fmt.Errorf("tier: %w: the cursor %q is not of this store", store.ErrInvalid, q.After)
	}
	open := q
	open.After = after
	open.States = slices.DeleteFunc(slices.Clone(q.States), store.State.Settled)
	if len(q.States) == 0 {
		open.States = []store.State{store.Running, store.Retryable, store.Unknown}
	}
	if len(open.States) == 0 {
		return s.browseBack(ctx, q, "")
	}
	page, err := s.front.Browse(ctx, open)
	if page.Next = inFront + page.Next; page.Next == inFront {
		page.Next = inBack
	}
	return page, err
}

// browseBack returns a page of SQL. A record that Redis has, too, is shown as Read returns it.
func (s *Store) browseBack(ctx context.Context, q store.Query, after string) (store.Page, error) {
	q.After = after
	page, err := s.back.Browse(ctx, q)
	if err != nil {
		return page, err
	}
	for i, rec := range page.Records {
		if rec.Damage != "" {
			continue
		}
		now, err := s.Read(ctx, rec.ID)
		if err != nil {
			return store.Page{}, err
		}
		if now.Owner == rec.Owner {
			now.Result = store.Result{}
			page.Records[i] = now
		}
	}
	if page.Next != "" {
		page.Next = inBack + page.Next
	}
	return page, nil
}

// Expire implements store.Browser. It removes the result from both stores.
func (s *Store) Expire(ctx context.Context, c store.Claim) error {
	row, hot, err := s.stored(ctx, c)
	if errors.Is(err, store.ErrDamaged) {
		return s.expireDamaged(ctx, c)
	}
	if err != nil {
		return err
	}
	if hot.Owner == row.Owner && hot.State.Settled() {
		if err := s.front.Expire(ctx, hot.Claim()); err != nil {
			return err
		}
	}
	return s.back.Expire(ctx, row)
}

// expireDamaged is Expire of a record that one of the stores cannot read. c has the fence of that record.
func (s *Store) expireDamaged(ctx context.Context, c store.Claim) error {
	err := s.back.Expire(ctx, c)
	if errors.Is(err, store.ErrFenced) {
		return s.front.Expire(ctx, c)
	}
	if err != nil {
		return err
	}
	hot, err := s.front.Read(ctx, c.ID)
	if err != nil || !hot.State.Settled() {
		return err
	}
	return s.front.Expire(ctx, hot.Claim())
}
