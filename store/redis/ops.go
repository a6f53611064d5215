package redis

import (
	"context"
	"time"

	"github.com/stet-go/stet/store"
)

// Claim implements store.Store.
func (s *Store) Claim(ctx context.Context, req store.ClaimRequest) (store.Record, error) {
	if err := s.begin(ctx); err != nil {
		return store.Record{}, err
	}
	if err := s.guard.refusal(); err != nil {
		return store.Record{}, err
	}
	if err := fits(req.Label); err != nil {
		return store.Record{}, err
	}
	k := s.keys(req.ID)
	reply, err := s.eval(ctx, claimScript, []string{k.record, k.result, k.index, k.list, k.fence},
		string(req.ID[:]), string(req.Fingerprint[:]), string(req.Scope[:]), string(req.Owner[:]), micros(req.Lease), s.channel, packLabel(req.Label))
	if err != nil {
		return store.Record{}, explain("claim", err)
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
	if err != nil {
		return store.Record{}, err
	}
	return rec, nil
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
	if _, err := s.write(ctx, "settle", sc, names, args...); err != nil {
		return err
	}
	if out.Outbox != nil {
		s.hint(ctx, toSend, "", c.ID, 0)
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
	return s.giveBack(ctx, "release", c, delay(keep.Result), 0)
}

// Expire implements store.Browser.
func (s *Store) Expire(ctx context.Context, c store.Claim) error {
	k := s.keys(c.ID)
	names := []string{k.record, k.result, k.index, k.list, s.outbox(c.ID)}
	_, err := s.write(ctx, "expire", expireScript, names, string(c.ID[:]), fence(c.Fence), string(c.Owner[:]), micros(damagedTombstone))
	return err
}

// damagedTombstone is how long a record that could not be read is remembered once an
// operator has expired it: the default of store.Retention.
const damagedTombstone = 30 * 24 * time.Hour

// write runs a script that returns a number, or 0 for ErrFenced.
func (s *Store) write(ctx context.Context, step string, sc script, keys []string, args ...string) (int64, error) {
	if err := s.begin(ctx); err != nil {
		return 0, err
	}
	reply, err := s.eval(ctx, sc, keys, args...)
	if err != nil {
		return 0, explain(step, err)
	}
	n, ok := reply.(int64)
	switch {
	case !ok:
		return 0, errReply(reply)
	case n == 0:
		return 0, store.ErrFenced
	}
	return n, nil
}

// Read implements store.Store.
func (s *Store) Read(ctx context.Context, id store.ID) (store.Record, error) {
	if err := s.begin(ctx); err != nil {
		return store.Record{}, err
	}
	k := s.keys(id)
	// A settled record, which is what is read most, needs no clock: what has
	// expired is not there. One command reads both keys at one moment.
	reply, err := s.send(ctx, k.record, "MGET", k.record, k.result)
	if err != nil {
		return store.Record{}, explain("read", err)
	}
	pair, ok := reply.([]any)
	if !ok || len(pair) != 2 {
		return store.Record{}, errReply(reply)
	}
	// To MGET, a key of another type is none; a script tells.
	if packed, _ := pair[0].(string); len(packed) >= recordSize && store.State(packed[1]) != store.Running {
		return s.found(ctx, id, []any{int64(0), pair[0], pair[1]})
	}
	if reply, err = s.eval(ctx, readScript, []string{k.record, k.result}); err != nil {
		return store.Record{}, explain("read", err)
	}
	return s.found(ctx, id, reply)
}

// found is what Read returns for the reply of a script or its like.
func (s *Store) found(ctx context.Context, id store.ID, reply any) (store.Record, error) {
	rec, err := decode(id, reply)
	if err == nil {
		rec.Cancelling = cancelling(reply)
		err = s.standing(ctx, "read", rec, reply)
	}
	if err != nil {
		return store.Record{}, err
	}
	return rec, nil
}
