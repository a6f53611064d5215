package redis

import (
	"context"
	"strconv"
	"time"

	"github.com/stet-go/stet/store"
)

// Accept implements store.WorkStore.
func (s *Store) Accept(ctx context.Context, req store.ClaimRequest, work []byte, after time.Duration) (store.Record, error) {
	if err := s.mayClaim(req.Label); err != nil {
		return store.Record{}, err
	}
	k := s.keys(req.ID)
	due := max(after, req.Queued)
	names := s.queueing(req.ID, toRun, []string{k.record, k.result, k.index, k.list, k.fence})
	reply, err := s.call(ctx, "accept", acceptScript, names, string(req.ID[:]), string(req.Fingerprint[:]), string(req.Scope[:]),
		string(req.Owner[:]), s.channel, string(work), delay(after), shardName(req.ID), packLabel(req.Label), delay(due))
	if err != nil {
		return store.Record{}, err
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
			s.schedule(ctx, toRun, rec.Label.Name, req.ID, due)
		}
		// An earlier call may have accepted it and timed out while waiting for replicas. That
		// a worker has taken it since does not prove that they have the record.
		err = s.replicated(ctx, "accept", rec.Claim(), rec.State)
	}
	return orNone(rec, err)
}

// Take implements store.WorkStore.
func (s *Store) Take(ctx context.Context, req store.TakeRequest) (store.Record, error) {
	if err := s.mayClaim(store.Label{}); err != nil {
		return store.Record{}, err
	}
	id := req.ID
	k := s.keys(id)
	names := s.queueing(id, toRun, []string{k.record, k.result, s.outbox(id), k.index, k.fence})
	reply, err := s.call(ctx, "take", takeScript, names, string(id[:]), string(req.Owner[:]), micros(req.Lease), s.channel, flag(req.Repeatable), shardName(id))
	if err != nil {
		return store.Record{}, err
	}
	rec, err := s.whole(ctx, "take", id, reply)
	if err == nil && rec.State == store.Running && rec.Owner == req.Owner {
		if s.cluster && req.Repeatable {
			s.writer.add(toRun, spot{shardOf(id), rec.Label.Name}, time.Now().Add(req.Lease)) // not waited for: a sweep does it, too
		}
		err = s.replicated(ctx, "take", rec.Claim(), rec.State)
	}
	return orNone(rec, err)
}

// Return implements store.WorkStore.
func (s *Store) Return(ctx context.Context, c store.Claim, after time.Duration) error {
	return s.release(ctx, "return", c, "", after)
}

// release is Release, or Return if keep is "".
func (s *Store) release(ctx context.Context, step string, c store.Claim, keep string, after time.Duration) error {
	k := s.keys(c.ID)
	names := s.queueing(c.ID, toRun, []string{k.record, k.result, k.index, k.list})
	reply, err := s.call(ctx, step, releaseScript, names, string(c.ID[:]), fence(c.Fence), s.channel, shardName(c.ID), keep, delay(after))
	return s.requeued(ctx, c.ID, after, reply, err)
}

// requeued handles the reply of a script that returns the name of the record's new queue, if it
// has one. The record is due there after that time.
func (s *Store) requeued(ctx context.Context, id store.ID, after time.Duration, reply any, err error) error {
	if err != nil {
		return err
	}
	switch reply := reply.(type) {
	case string:
		s.schedule(ctx, toRun, reply, id, after)
	case int64:
		if reply == 0 {
			return store.ErrFenced
		}
	default:
		return errReply(reply)
	}
	return nil
}

// Cancel implements store.WorkStore.
func (s *Store) Cancel(ctx context.Context, c store.Claim, out store.Settlement, keep store.Retention) (store.Record, error) {
	k := s.keys(c.ID)
	reply, err := s.call(ctx, "cancel", cancelScript, []string{k.record, k.result, s.outbox(c.ID), k.list, s.queues(shardOf(c.ID), toRun)},
		string(c.ID[:]), fence(c.Fence), flag(out.Gone), string(out.Result.Marshal()), micros(keep.Result), micros(keep.Tombstone))
	if err != nil {
		return store.Record{}, err
	}
	if reply == int64(0) {
		return store.Record{}, store.ErrFenced
	}
	return s.whole(ctx, "cancel", c.ID, reply)
}

// Save implements store.WorkStore.
func (s *Store) Save(ctx context.Context, c store.Claim, notes store.Notes, repeatable bool) error {
	return s.save(ctx, c, notes, store.Running, repeatable)
}

// Amend implements store.WorkStore.
func (s *Store) Amend(ctx context.Context, c store.Claim, notes store.Notes) error {
	return s.save(ctx, c, notes, store.Unknown, false)
}

// save is Save for a record in that state.
func (s *Store) save(ctx context.Context, c store.Claim, notes store.Notes, in store.State, repeatable bool) error {
	k := s.keys(c.ID)
	names := s.queueing(c.ID, toRun, []string{k.record, k.result})
	reply, err := s.call(ctx, "save", saveScript, names, fence(c.Fence), string(notes.Marshal()), string([]byte{byte(in)}), flag(repeatable), string(c.ID[:]), shardName(c.ID))
	if err := s.requeued(ctx, c.ID, 0, reply, err); err != nil {
		return err
	}
	return s.replicated(ctx, "save", c, in)
}

// Look implements store.WorkStore.
func (s *Store) Look(ctx context.Context, id store.ID) (store.Record, error) {
	k := s.keys(id)
	reply, err := s.call(ctx, "look", lookScript, []string{k.record, k.result, s.outbox(id)})
	if err != nil {
		return store.Record{}, err
	}
	return s.whole(ctx, "look", id, reply)
}

// whole decodes the reply of a script that returns a record with its work.
func (s *Store) whole(ctx context.Context, step string, id store.ID, reply any) (store.Record, error) {
	rec, err := decodeWhole(id, reply)
	if err == nil {
		err = s.standing(ctx, step, rec, reply)
	}
	return orNone(rec, err)
}

// Relayed implements store.OutboxStore.
func (s *Store) Relayed(ctx context.Context, c store.Claim, keep store.Retention) error {
	k := s.keys(c.ID)
	return s.write(ctx, "relayed", relayedScript, []string{k.record, k.result, s.outbox(c.ID), s.queues(shardOf(c.ID), toSend)},
		string(c.ID[:]), fence(c.Fence), micros(keep.Tombstone))
}

// delay is a time that may be zero, in microseconds, for a script.
func delay(d time.Duration) string {
	if d <= 0 {
		return "0"
	}
	return micros(d)
}

// shardName is the name of a record's shard in the schedule.
func shardName(id store.ID) string { return strconv.Itoa(shardOf(id)) }
