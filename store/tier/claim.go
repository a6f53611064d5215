package tier

import (
	"context"
	"errors"
	"time"

	"github.com/stet-go/stet/store"
)

// Claim implements store.Store.
func (s *Store) Claim(ctx context.Context, req store.ClaimRequest) (store.Record, error) {
	rec, err := s.front.Claim(ctx, req)
	other := errors.Is(err, store.ErrMismatch) // unless SQL has an outcome, which is returned
	switch {
	case err != nil && !other:
		return store.Record{}, err
	case rec.State == store.Running && rec.Owner == req.Owner && !other:
		return s.check(ctx, req, rec)
	case rec.State == store.Running && other:
		rec, err = s.outcome(ctx, rec)
	default:
		rec, err = s.current(ctx, rec)
	}
	if err == nil && rec.State == store.None && ctx.Err() == nil { // Redis has lost it since
		return s.Claim(ctx, req)
	}
	if err == nil && rec.Fingerprint != req.Fingerprint {
		err = store.ErrMismatch
	}
	return rec, err
}

// check reads the key of a granted claim in SQL. If SQL has a record, the claim is removed from
// Redis, which had lost that record.
func (s *Store) check(ctx context.Context, req store.ClaimRequest, rec store.Record) (store.Record, error) {
	inSQL, err := s.back.Read(ctx, req.ID)
	switch {
	case err != nil && !errors.Is(err, store.ErrDamaged):
		return store.Record{}, unconfirmed{err} // the claim is not returned, so it grants nothing
	case err == nil && inSQL.State == store.None:
		return rec, nil
	}
	// If this fails, the claim expires and becomes unknown. A later call then finds the outcome.
	_ = s.front.Release(ctx, rec.Claim(), store.Retention{})
	if err == nil && inSQL.Fingerprint != req.Fingerprint {
		err = store.ErrMismatch
	}
	return inSQL, err
}

// unconfirmed is an error of SQL after a write to Redis. The call had an effect, so the error does
// not wrap store.ErrNotDone.
type unconfirmed struct{ error }

func (u unconfirmed) Is(target error) bool {
	return target != store.ErrNotDone && errors.Is(u.error, target) //nolint:errorlint // a sentinel
}

func (u unconfirmed) As(target any) bool { return errors.As(u.error, target) }

// Read implements store.Store.
func (s *Store) Read(ctx context.Context, id store.ID) (store.Record, error) {
	rec, err := s.front.Read(ctx, id)
	if err != nil {
		return store.Record{}, err
	}
	return s.current(ctx, rec)
}

// current returns the valid record, given that of Redis. An outcome that it returns is in SQL.
func (s *Store) current(ctx context.Context, rec store.Record) (store.Record, error) {
	switch {
	case rec.State.Settled() && rec.ForgetAt.IsZero():
		inSQL, err := s.move(ctx, rec.ID)
		if err != nil {
			return store.Record{}, err
		}
		if rec, err = s.shown(ctx, rec); err == nil && !same(inSQL, rec) {
			return inSQL, nil
		}
		return rec, err
	case rec.State.Settled():
		return s.shown(ctx, rec)
	case rec.State == store.None:
		return s.back.Read(ctx, rec.ID)
	case rec.State != store.Running:
		return s.outcome(ctx, rec)
	}
	return rec, nil
}

// outcome returns the outcome in SQL of a record that is not settled in Redis, or that record if
// there is none.
func (s *Store) outcome(ctx context.Context, rec store.Record) (store.Record, error) {
	inSQL, err := s.back.Read(ctx, rec.ID)
	if err != nil || !inSQL.State.Settled() {
		return rec, err
	}
	if rec.State == store.Unknown {
		_ = s.front.Release(ctx, rec.Claim(), store.Retention{})
	}
	return inSQL, nil
}

// same reports whether two settled records have one outcome of one claim.
func same(a, b store.Record) bool {
	return a.Owner == b.Owner && a.State == b.State && a.Gone == b.Gone && a.Result.Equal(b.Result)
}

// shown is a record of Redis in the form for callers: without what only this package reads, and
// with the time at which SQL forgets it.
func (s *Store) shown(ctx context.Context, rec store.Record) (store.Record, error) {
	if !rec.State.Settled() {
		return rec, nil
	}
	if !rec.Gone {
		tombstone, err := unwrap(&rec.Result)
		rec.ForgetAt = rec.SettledAt.Add(tombstone)
		return rec, err
	}
	inSQL, err := s.back.Read(ctx, rec.ID)
	switch {
	case err != nil:
		return store.Record{}, err
	case inSQL.State.Settled() && !same(inSQL, rec):
		return inSQL, nil // rec is being removed: see drop
	case inSQL.State.Settled():
		rec.ForgetAt = rec.SettledAt.Add(inSQL.ForgetAt.Sub(inSQL.SettledAt))
	}
	return rec, nil
}

// move writes a pending outcome to SQL, and returns the record that SQL has then. If that has
// another outcome, or is of another claim, the pending outcome is removed.
func (s *Store) move(ctx context.Context, id store.ID) (store.Record, error) {
	rec, err := s.front.Look(ctx, id)
	if err != nil {
		return store.Record{}, err
	}
	if rec.Outbox == nil || !rec.State.Settled() {
		return s.back.Read(ctx, id) // another call has moved it
	}
	return s.insert(ctx, rec)
}

// insert is move for a record with its outbox.
func (s *Store) insert(ctx context.Context, rec store.Record) (store.Record, error) {
	tombstone, err := decode(rec.Outbox)
	if err != nil {
		return store.Record{}, err
	}
	out := store.Settlement{State: rec.State, Gone: rec.Gone}
	if out.Result = rec.Result; !rec.Gone {
		if _, err := unwrap(&out.Result); err != nil {
			return store.Record{}, err
		}
	}
	keep := store.Retention{Result: rec.ExpiresAt.Sub(rec.SettledAt), Tombstone: tombstone}
	req := store.ClaimRequest{ID: rec.ID, Scope: rec.Scope, Fingerprint: rec.Fingerprint, Owner: rec.Owner, Lease: store.MaxLease, Label: rec.Label}
	inSQL := store.Record{InTx: true}
	for err == nil && inSQL.InTx {
		inSQL, err = s.inserts.insert(ctx, &insertion{req: req, out: out, keep: keep})
		if err == nil && inSQL.InTx { // another call inserts it now
			err = pause(ctx)
		}
	}
	switch {
	case err != nil && !errors.Is(err, store.ErrMismatch):
		return store.Record{}, err
	case !inSQL.State.Settled():
		return store.Record{}, errors.New("tier: the outcome stays in Redis: SQL has an operation with this key that has not ended; no other program may use the key there")
	case !same(inSQL, store.Record{Owner: rec.Owner, State: out.State, Gone: out.Gone, Result: out.Result}):
		s.drop(ctx, rec.Claim())
	default:
		// If this fails, the outcome stays pending. The next call or sweep finds it in SQL.
		_ = s.front.Relayed(ctx, rec.Claim(), store.Retention{Tombstone: min(s.hot, tombstone)})
	}
	return inSQL, nil
}

// pause waits between two tries to insert.
func pause(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(2 * time.Millisecond):
		return nil
	}
}

// drop removes a pending outcome from Redis, because another one is in SQL. It removes the result
// first: Redis forgets the record a moment later, and must not return the result until then. If
// drop fails, the outcome stays pending, and no call returns it.
func (s *Store) drop(ctx context.Context, c store.Claim) {
	if s.front.Expire(ctx, c) == nil {
		_ = s.front.Relayed(ctx, c, store.Retention{})
	}
}
