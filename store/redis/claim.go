package redis

import (
	"context"
	"time"

	"github.com/stet-go/stet/store"
)

// mayClaim returns why a claim with that label is refused, nil if it is not.
func (s *Store) mayClaim(l store.Label) error {
	if err := s.checks.refusal(); err != nil {
		return err
	}
	return fits(l)
}

// call runs the script of a step.
func (s *Store) call(ctx context.Context, step string, sc script, keys []string, args ...string) (any, error) {
	if err := s.begin(ctx); err != nil {
		return nil, err
	}
	reply, err := s.eval(ctx, sc, keys, args...)
	return reply, explain(step, err)
}

// write calls a script that returns a number, 0 for ErrFenced.
func (s *Store) write(ctx context.Context, step string, sc script, keys []string, args ...string) error {
	reply, err := s.call(ctx, step, sc, keys, args...)
	if err != nil {
		return err
	}
	n, ok := reply.(int64)
	switch {
	case !ok:
		return errReply(reply)
	case n == 0:
		return store.ErrFenced
	}
	return nil
}

// orNone returns no record with an error.
func orNone(rec store.Record, err error) (store.Record, error) {
	if err != nil {
		return store.Record{}, err
	}
	return rec, nil
}

// Claim implements store.Store.
func (s *Store) Claim(ctx context.Context, req store.ClaimRequest) (store.Record, error) {
	if err := s.mayClaim(req.Label); err != nil {
		return store.Record{}, err
	}
	k := s.keys(req.ID)
	reply, err := s.call(ctx, "claim", claimScript, []string{k.record, k.result, k.index, k.list, k.fence},
		string(req.ID[:]), string(req.Fingerprint[:]), string(req.Scope[:]), string(req.Owner[:]), micros(req.Lease), s.channel, packLabel(req.Label))
	if err != nil {
		return store.Record{}, err
	}
	rec, err := decode(req.ID, reply)
	switch {
	case err != nil:
	case rec.Fingerprint != req.Fingerprint:
		return rec, store.ErrMismatch
	case rec.State == store.Running && rec.Owner == req.Owner:
		err = s.replicated(ctx, "claim", rec.Claim(), rec.State)
	default:
		err = s.standing(ctx, "claim", rec, reply)
	}
	return orNone(rec, err)
}

// Settle implements store.Store.
func (s *Store) Settle(ctx context.Context, c store.Claim, out store.Settlement, keep store.Retention) error {
	k := s.keys(c.ID)
	sc, names := settleScript, []string{k.record, k.result, k.index, k.list, s.queues(shardOf(c.ID), toRun)}
	args := []string{string(c.ID[:]), fence(c.Fence), string([]byte{byte(out.State)}), flag(out.Gone), string(out.Result.Marshal()),
		micros(keep.Result), micros(keep.Tombstone), s.channel}
	if out.Outbox != nil {
		sc, names = outboxScript, s.queueing(c.ID, toSend, append(names, s.outbox(c.ID)))
		args = append(args, string(out.Outbox), shardName(c.ID))
	}
	if err := s.write(ctx, "settle", sc, names, args...); err != nil {
		return err
	}
	if out.Outbox != nil {
		s.schedule(ctx, toSend, "", c.ID, 0)
	}
	return s.replicated(ctx, "settle", c, out.State)
}

// flag is a truth value for a script.
func flag(is bool) string {
	if is {
		return "1"
	}
	return "0"
}

// Release implements store.Store.
func (s *Store) Release(ctx context.Context, c store.Claim, keep store.Retention) error {
	return s.release(ctx, "release", c, delay(keep.Result), 0)
}

// Expire implements store.Browser.
func (s *Store) Expire(ctx context.Context, c store.Claim) error {
	k := s.keys(c.ID)
	return s.write(ctx, "expire", expireScript, []string{k.record, k.result, k.index, k.list, s.outbox(c.ID)},
		string(c.ID[:]), fence(c.Fence), string(c.Owner[:]), micros(damagedTombstone))
}

// damagedTombstone is how long an unreadable record is remembered after an operator has
// expired it: the default of store.Retention.
const damagedTombstone = 30 * 24 * time.Hour

// Read implements store.Store.
func (s *Store) Read(ctx context.Context, id store.ID) (store.Record, error) {
	k := s.keys(id)
	reply, err := s.call(ctx, "read", readScript, []string{k.record, k.result})
	if err != nil {
		return store.Record{}, err
	}
	rec, err := decode(id, reply)
	if err == nil {
		rec.Cancelling = cancelling(reply)
		err = s.standing(ctx, "read", rec, reply)
	}
	return orNone(rec, err)
}
