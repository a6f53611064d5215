package redis

import (
	"context"
	"strconv"
	"time"

	"github.com/stet-go/stet/store"
)

// Accept implements store.WorkStore.
func (s *Store) Accept(ctx context.Context, req store.ClaimRequest, work []byte, after time.Duration) (store.Record, error) {
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
	names := s.queueing(req.ID, toRun, []string{k.record, k.result, k.index, k.list, k.fence})
	reply, err := s.eval(ctx, acceptScript, names, string(req.ID[:]), string(req.Fingerprint[:]), string(req.Scope[:]),
		string(req.Owner[:]), s.channel, string(work), delay(after), shardName(req.ID), packLabel(req.Label), delay(max(after, req.Queued)))
	if err != nil {
		return store.Record{}, explain("accept", err)
	}
	rec, err := decode(req.ID, reply)
	switch {
	case err != nil:
	case rec.Fingerprint != req.Fingerprint:
		return rec, store.ErrMismatch
	case rec.State.Settled():
		err = s.standing(ctx, "accept", rec, reply)
	default:
		if rec.State == store.Accepted && rec.Owner == req.Owner {
			s.hint(ctx, toRun, rec.Label.Name, req.ID, max(after, req.Queued))
		}
		// The caller that accepted it may have waited for the replicas in vain, also if a
		// worker has taken it since: a run does not prove that they have the record.
		err = s.replicated(ctx, "accept", rec.Claim(), rec.State)
	}
	if err != nil {
		return store.Record{}, err
	}
	return rec, nil
}

// Take implements store.WorkStore.
func (s *Store) Take(ctx context.Context, req store.TakeRequest) (store.Record, error) {
	if err := s.begin(ctx); err != nil {
		return store.Record{}, err
	}
	if err := s.guard.refusal(); err != nil {
		return store.Record{}, err
	}
	id := req.ID
	k := s.keys(id)
	names := s.queueing(id, toRun, []string{k.record, k.result, s.outbox(id), k.index, k.fence})
	reply, err := s.eval(ctx, takeScript, names, string(id[:]), string(req.Owner[:]), micros(req.Lease), s.channel, flag(req.Repeatable), shardName(id))
	if err != nil {
		return store.Record{}, explain("take", err)
	}
	rec, err := s.whole(ctx, "take", id, reply)
	if err == nil && rec.State == store.Running && rec.Owner == req.Owner {
		if s.cluster && req.Repeatable {
			s.hints.add(toRun, spot{shardOf(id), rec.Label.Name}, time.Now().Add(req.Lease)) // it need not wait: the sweep does it, too
		}
		err = s.replicated(ctx, "take", rec.Claim(), rec.State)
	}
	if err != nil {
		return store.Record{}, err
	}
	return rec, nil
}

// Return implements store.WorkStore.
func (s *Store) Return(ctx context.Context, c store.Claim, after time.Duration) error {
	return s.giveBack(ctx, "return", c, "", after)
}

// giveBack is Release, or without keep Return.
func (s *Store) giveBack(ctx context.Context, step string, c store.Claim, keep string, after time.Duration) error {
	k := s.keys(c.ID)
	names := s.queueing(c.ID, toRun, []string{k.record, k.result, k.index, k.list})
	return s.requeue(ctx, step, c.ID, after, releaseScript, names, string(c.ID[:]), fence(c.Fence), s.channel, shardName(c.ID), keep, delay(after))
}

// requeue is write with a script that returns the name of a record that is in a queue
// from then on, where it is due after that time.
func (s *Store) requeue(ctx context.Context, step string, id store.ID, after time.Duration, sc script, keys []string, args ...string) error {
	if err := s.begin(ctx); err != nil {
		return err
	}
	reply, err := s.eval(ctx, sc, keys, args...)
	if err != nil {
		return explain(step, err)
	}
	name, waits := reply.(string)
	n, ok := reply.(int64)
	switch {
	case waits:
		s.hint(ctx, toRun, name, id, after)
	case !ok:
		return errReply(reply)
	case n == 0:
		return store.ErrFenced
	}
	return nil
}

// Cancel implements store.WorkStore.
func (s *Store) Cancel(ctx context.Context, c store.Claim, out store.Settlement, keep store.Retention) (store.Record, error) {
	if err := s.begin(ctx); err != nil {
		return store.Record{}, err
	}
	k := s.keys(c.ID)
	reply, err := s.eval(ctx, cancelScript, []string{k.record, k.result, s.outbox(c.ID), k.list, s.queues(shardOf(c.ID), toRun)},
		string(c.ID[:]), fence(c.Fence), flag(out.Gone), string(out.Result.Marshal()), micros(keep.Result), micros(keep.Tombstone))
	if err != nil {
		return store.Record{}, explain("cancel", err)
	}
	if reply == int64(0) {
		return store.Record{}, store.ErrFenced
	}
	return s.whole(ctx, "cancel", c.ID, reply)
}

// Save implements store.WorkStore.
func (s *Store) Save(ctx context.Context, c store.Claim, notes store.Notes, repeatable bool) error {
	return s.put(ctx, "save", c, notes, store.Running, repeatable)
}

// Strike implements store.WorkStore.
func (s *Store) Strike(ctx context.Context, c store.Claim, notes store.Notes) error {
	return s.put(ctx, "strike", c, notes, store.Unknown, false)
}

// put is Save for a record in that state.
func (s *Store) put(ctx context.Context, step string, c store.Claim, notes store.Notes, in store.State, repeatable bool) error {
	k := s.keys(c.ID)
	names := s.queueing(c.ID, toRun, []string{k.record, k.result})
	err := s.requeue(ctx, step, c.ID, 0, saveScript, names, fence(c.Fence), string(notes.Marshal()), string([]byte{byte(in)}), flag(repeatable), string(c.ID[:]), shardName(c.ID))
	if err != nil {
		return err
	}
	return s.replicated(ctx, step, c, in)
}

// Look implements store.WorkStore.
func (s *Store) Look(ctx context.Context, id store.ID) (store.Record, error) {
	if err := s.begin(ctx); err != nil {
		return store.Record{}, err
	}
	k := s.keys(id)
	reply, err := s.eval(ctx, lookScript, []string{k.record, k.result, s.outbox(id)})
	if err != nil {
		return store.Record{}, explain("look", err)
	}
	return s.whole(ctx, "look", id, reply)
}

// whole is what is returned for the reply of a script that gives a record with its
// work.
func (s *Store) whole(ctx context.Context, step string, id store.ID, reply any) (store.Record, error) {
	rec, err := decodeWhole(id, reply)
	if err == nil {
		err = s.standing(ctx, step, rec, reply)
	}
	if err != nil {
		return store.Record{}, err
	}
	return rec, nil
}

// Relayed implements store.OutboxStore.
func (s *Store) Relayed(ctx context.Context, c store.Claim, keep store.Retention) error {
	k := s.keys(c.ID)
	_, err := s.write(ctx, "relayed", relayedScript, []string{k.record, k.result, s.outbox(c.ID), s.queues(shardOf(c.ID), toSend)},
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
func shardName(id store.ID) string { return strconv.Itoa(shardOf(id)) }
