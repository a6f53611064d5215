package redis

import (
	"context"
	"strconv"
	"time"

	"github.com/stet-go/stet"
)

// Accept implements stet.WorkStore.
func (s *Store) Accept(ctx context.Context, req stet.ClaimRequest, work []byte, after time.Duration) (stet.Record, error) {
	if err := s.begin(ctx); err != nil {
		return stet.Record{}, err
	}
	if err := s.guard.refusal(); err != nil {
		return stet.Record{}, err
	}
	k := s.keys(req.ID)
	names := s.queueing(req.ID, stet.DueRun, []string{k.record, k.result, k.index, k.list})
	reply, err := s.eval(ctx, acceptScript, names, string(req.ID[:]), string(req.Fingerprint[:]), string(req.Scope[:]),
		string(req.Owner[:]), s.channel, string(work), delay(after), shardName(req.ID))
	if err != nil {
		return stet.Record{}, explain("accept", err)
	}
	rec, err := decode(req.ID, reply)
	switch {
	case err != nil:
	case rec.Fingerprint != req.Fingerprint:
		return rec, stet.ErrMismatch
	case rec.State.Settled():
		err = s.standing(ctx, "accept", rec, reply)
	default:
		if rec.State == stet.Accepted && rec.Owner == req.Owner {
			s.hint(ctx, stet.DueRun, req.ID, after)
		}
		// Whoever accepted it may have waited for the replicas in vain, also if a
		// worker has taken it since: that it runs is no word of theirs.
		err = s.replicated(ctx, "accept", rec.Claim(), rec.State)
	}
	if err != nil {
		return stet.Record{}, err
	}
	return rec, nil
}

// Take implements stet.WorkStore.
func (s *Store) Take(ctx context.Context, id stet.ID, owner stet.Owner, lease time.Duration) (stet.Record, error) {
	if err := s.begin(ctx); err != nil {
		return stet.Record{}, err
	}
	if err := s.guard.refusal(); err != nil {
		return stet.Record{}, err
	}
	k := s.keys(id)
	reply, err := s.eval(ctx, takeScript, []string{k.record, k.result, s.outbox(id), k.index, s.queue(shardOf(id), stet.DueRun)},
		string(id[:]), string(owner[:]), micros(lease), s.channel)
	if err != nil {
		return stet.Record{}, explain("take", err)
	}
	rec, err := s.whole(ctx, "take", id, reply)
	if err == nil && rec.State == stet.Running && rec.Owner == owner {
		err = s.replicated(ctx, "take", rec.Claim(), rec.State)
	}
	if err != nil {
		return stet.Record{}, err
	}
	return rec, nil
}

// Return implements stet.WorkStore.
func (s *Store) Return(ctx context.Context, c stet.Claim, after time.Duration) error {
	return s.giveBack(ctx, "return", c, "", after)
}

// giveBack is Release, or without keep Return.
func (s *Store) giveBack(ctx context.Context, step string, c stet.Claim, keep string, after time.Duration) error {
	k := s.keys(c.ID)
	names := s.queueing(c.ID, stet.DueRun, []string{k.record, k.result, k.index, k.list})
	is, err := s.write(ctx, step, releaseScript, names, string(c.ID[:]), fence(c.Fence), s.channel, shardName(c.ID), keep, delay(after))
	if err == nil && is == 2 { // it waits for a worker
		s.hint(ctx, stet.DueRun, c.ID, after)
	}
	return err
}

// Cancel implements stet.WorkStore.
func (s *Store) Cancel(ctx context.Context, c stet.Claim, out stet.Outcome, keep stet.Retention) (stet.Record, error) {
	if err := s.begin(ctx); err != nil {
		return stet.Record{}, err
	}
	k := s.keys(c.ID)
	reply, err := s.eval(ctx, cancelScript, []string{k.record, k.result, s.outbox(c.ID), k.list, s.queue(shardOf(c.ID), stet.DueRun)},
		string(c.ID[:]), fence(c.Fence), flag(out.Gone), string(out.Result), micros(keep.Result), micros(keep.Tombstone))
	if err != nil {
		return stet.Record{}, explain("cancel", err)
	}
	if reply == int64(0) {
		return stet.Record{}, stet.ErrFenced
	}
	return s.whole(ctx, "cancel", c.ID, reply)
}

// Save implements stet.WorkStore.
func (s *Store) Save(ctx context.Context, c stet.Claim, notes []byte) error {
	return s.put(ctx, "save", c, notes, stet.Running)
}

// Strike implements stet.WorkStore.
func (s *Store) Strike(ctx context.Context, c stet.Claim, notes []byte) error {
	return s.put(ctx, "strike", c, notes, stet.Unknown)
}

// put is Save for a record in that state.
func (s *Store) put(ctx context.Context, step string, c stet.Claim, notes []byte, in stet.State) error {
	k := s.keys(c.ID)
	if _, err := s.write(ctx, step, saveScript, []string{k.record, k.result}, fence(c.Fence), string(notes), string([]byte{byte(in)})); err != nil {
		return err
	}
	return s.replicated(ctx, step, c, in)
}

// Look implements stet.WorkStore.
func (s *Store) Look(ctx context.Context, id stet.ID) (stet.Record, error) {
	if err := s.begin(ctx); err != nil {
		return stet.Record{}, err
	}
	k := s.keys(id)
	reply, err := s.eval(ctx, lookScript, []string{k.record, k.result, s.outbox(id)})
	if err != nil {
		return stet.Record{}, explain("look", err)
	}
	return s.whole(ctx, "look", id, reply)
}

// whole is what is returned for the reply of a script that gives a record with its
// work.
func (s *Store) whole(ctx context.Context, step string, id stet.ID, reply any) (stet.Record, error) {
	rec, err := decodeWhole(id, reply)
	if err == nil {
		err = s.standing(ctx, step, rec, reply)
	}
	if err != nil {
		return stet.Record{}, err
	}
	return rec, nil
}

// Relayed implements stet.WorkStore.
func (s *Store) Relayed(ctx context.Context, c stet.Claim, keep stet.Retention) error {
	k := s.keys(c.ID)
	_, err := s.write(ctx, "relayed", relayedScript, []string{k.record, k.result, s.outbox(c.ID), s.queue(shardOf(c.ID), stet.DueRelay)},
		string(c.ID[:]), fence(c.Fence), micros(keep.Tombstone))
	return err
}

// delay is a time that may be none, in microseconds, for a script.
func delay(d time.Duration) string {
	if d <= 0 {
		return "0"
	}
	return micros(d)
}

// shardName is what the agenda calls the shard of a record.
func shardName(id stet.ID) string { return strconv.Itoa(shardOf(id)) }
