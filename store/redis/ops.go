package redis

import (
	"context"
	"time"

	"github.com/stet-go/stet"
)

// Claim implements stet.Store.
func (s *Store) Claim(ctx context.Context, req stet.ClaimRequest) (stet.Record, error) {
	if err := s.begin(ctx); err != nil {
		return stet.Record{}, err
	}
	if err := s.guard.refusal(); err != nil {
		return stet.Record{}, err
	}
	k := s.keys(req.ID)
	reply, err := s.eval(ctx, claimScript, []string{k.record, k.result, k.index, k.list},
		string(req.ID[:]), string(req.Fingerprint[:]), string(req.Scope[:]), string(req.Owner[:]), micros(req.Lease), s.channel)
	if err != nil {
		return stet.Record{}, explain("claim", err)
	}
	rec, err := decode(req.ID, reply)
	switch {
	case err != nil:
	case rec.Fingerprint != req.Fingerprint:
		return rec, stet.ErrMismatch
	case rec.State == stet.Running && rec.Owner == req.Owner:
		err = s.replicated(ctx, "claim", rec.Claim(), rec.State)
	default:
		err = s.standing(ctx, "claim", rec, reply)
	}
	if err != nil {
		return stet.Record{}, err
	}
	return rec, nil
}

// Settle implements stet.Store.
func (s *Store) Settle(ctx context.Context, c stet.Claim, out stet.Outcome, keep stet.Retention) error {
	k := s.keys(c.ID)
	sc, names := settleScript, []string{k.record, k.result, k.index, k.list}
	args := []string{string(c.ID[:]), fence(c.Fence), string([]byte{byte(out.State)}), flag(out.Gone), string(out.Result),
		micros(keep.Result), micros(keep.Tombstone), s.channel}
	if out.Outbox != nil {
		sc, names = outboxScript, s.queueing(c.ID, stet.DueRelay, append(names, s.outbox(c.ID)))
		args = append(args, string(out.Outbox), shardName(c.ID))
	}
	if _, err := s.write(ctx, "settle", sc, names, args...); err != nil {
		return err
	}
	if out.Outbox != nil {
		s.hint(ctx, stet.DueRelay, c.ID, 0)
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

// Release implements stet.Store.
func (s *Store) Release(ctx context.Context, c stet.Claim, keep stet.Retention) error {
	return s.giveBack(ctx, "release", c, micros(keep.Result), 0)
}

// Expire implements stet.Browser.
func (s *Store) Expire(ctx context.Context, c stet.Claim) error {
	k := s.keys(c.ID)
	_, err := s.write(ctx, "expire", expireScript, []string{k.record, k.result}, fence(c.Fence))
	return err
}

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
		return 0, stet.ErrFenced
	}
	return n, nil
}

// Read implements stet.Store.
func (s *Store) Read(ctx context.Context, id stet.ID) (stet.Record, error) {
	if err := s.begin(ctx); err != nil {
		return stet.Record{}, err
	}
	k := s.keys(id)
	// A settled record, which is what is read most, needs no clock: what has
	// expired is not there. One command reads both keys at one moment.
	reply, err := s.send(ctx, k.record, "MGET", k.record, k.result)
	if err != nil {
		return stet.Record{}, explain("read", err)
	}
	pair, ok := reply.([]any)
	if !ok || len(pair) != 2 {
		return stet.Record{}, errReply(reply)
	}
	if packed, _ := pair[0].(string); len(packed) < 2 || stet.State(packed[1]) != stet.Running {
		return s.found(ctx, id, []any{int64(0), pair[0], pair[1]})
	}
	if reply, err = s.eval(ctx, readScript, []string{k.record, k.result}); err != nil {
		return stet.Record{}, explain("read", err)
	}
	return s.found(ctx, id, reply)
}

// found is what Read returns for the reply of a script or its like.
func (s *Store) found(ctx context.Context, id stet.ID, reply any) (stet.Record, error) {
	rec, err := decode(id, reply)
	if err == nil {
		err = s.standing(ctx, "read", rec, reply)
	}
	if err != nil {
		return stet.Record{}, err
	}
	return rec, nil
}

// Extend implements stet.Store.
func (s *Store) Extend(ctx context.Context, claims []stet.Claim, lease time.Duration) ([]stet.Claim, error) {
	if err := s.begin(ctx); err != nil {
		return nil, err
	}
	groups := s.group(len(claims), func(i int) stet.ID { return claims[i].ID })
	lost := make([][]stet.Claim, len(groups))
	err := concurrently(len(groups), func(g int) error {
		var names []string
		args := []string{micros(lease)}
		for _, i := range groups[g] {
			k := s.keys(claims[i].ID)
			names = append(names, k.record, k.index)
			args = append(args, string(claims[i].ID[:]), fence(claims[i].Fence))
		}
		reply, err := s.eval(ctx, extendScript, names, args...)
		if err != nil {
			return explain("extend", err)
		}
		places, ok := reply.([]any)
		if !ok {
			return errReply(reply)
		}
		for _, place := range places {
			n, ok := place.(int64)
			if !ok || n < 1 || int(n) > len(groups[g]) {
				return errReply(place)
			}
			lost[g] = append(lost[g], claims[groups[g][n-1]])
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	var all []stet.Claim
	for _, l := range lost {
		all = append(all, l...)
	}
	return all, nil
}
