package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stet-go/stet/stetmsg/internal/receiver"
)

// Kafka does not count deliveries, and in a transaction an expired run leaves no trace. Attempts
// are therefore counted in the metadata of the group's committed offset, but only if the
// previous member did not end in order, and for the records that may have been in flight: those
// behind the committed offset. A record is stored before it is handled, so that the next process
// can read it after a crash.

const (
	// uncommitted is how many records are done at most until their offsets are
	// committed, and so how many may be unknown.
	uncommitted = 1000
	// ended is the note of a member that has ended in order.
	ended = "stet ended"
)

// note is the metadata of a committed offset.
type note struct {
	ended    bool
	offset   int64 // of a record that was begun
	attempts int   // how often it was
}

func (n note) String() string {
	if n.ended {
		return ended
	}
	return fmt.Sprintf("stet began %d %d", n.offset, n.attempts)
}

// parseNote reads a note. Metadata of another program is ignored.
func parseNote(s *string) note {
	var n note
	if s == nil || *s == ended {
		return note{ended: s != nil}
	}
	if _, err := fmt.Sscanf(*s, "stet began %d %d", &n.offset, &n.attempts); err != nil || n.offset < 0 || n.attempts < 0 {
		return note{}
	}
	return n
}

// fetched reads the notes of earlier members, when partitions were assigned.
func (r *Receiver) fetched(resp *kmsg.OffsetFetchResponse) {
	r.mu.Lock()
	defer r.mu.Unlock()
	tell := func(topic string, n int32, metadata *string) {
		if w := r.workers[partition{topic, n}]; w != nil {
			w.mu.Lock()
			w.before = parseNote(metadata)
			w.mu.Unlock()
		}
	}
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			tell(t.Topic, p.Partition, p.Metadata)
		}
	}
	for _, g := range resp.Groups {
		for _, t := range g.Topics {
			for _, p := range t.Partitions {
				tell(t.Topic, p.Partition, p.Metadata)
			}
		}
	}
}

// farewell is the last commit of a member that ends in order.
type farewell struct {
	at   kgo.EpochOffset // the first record that is not done
	note note
}

// attempts returns how often a record has begun before, 0 if no earlier member can have begun
// it, and stores that it begins now. The first record is always stored, so that the offset no
// longer records that the previous member ended in order. It returns false if the worker must
// end.
func (w *worker) attempts(rec *kgo.Record) (n int, ok bool) {
	w.mu.Lock()
	before, handled := w.before, w.handled
	w.mu.Unlock()
	if before.ended && handled > 0 || handled > uncommitted {
		return 0, true
	}
	bye := farewell{kgo.EpochOffset{Epoch: rec.LeaderEpoch, Offset: rec.Offset}, note{ended: true}}
	if before.offset == rec.Offset && before.attempts > 0 {
		n = before.attempts
		bye.note = before // crashed attempts count, this one does not
	}
	w.mu.Lock()
	w.farewell = &bye
	w.mu.Unlock()
	var pause receiver.Pause
	for w.ctx.Err() == nil {
		err := w.commit(w.ctx, bye.at, note{offset: rec.Offset, attempts: n + 1})
		if err == nil {
			return n, true
		}
		pause.Wait(w.ctx, w.r.consumer.Log(), fmt.Errorf("stetmsg/kafka: the start of a record cannot be committed: %w", err))
	}
	return 0, false
}

// marked says that a record is done, and has that committed before too much would be
// unknown; else the client does it each second.
func (w *worker) marked(rec *kgo.Record) {
	w.cl.MarkCommitRecords(rec)
	w.mu.Lock()
	w.handled++
	next := kgo.EpochOffset{Epoch: rec.LeaderEpoch, Offset: rec.Offset + 1}
	w.farewell = &farewell{next, note{ended: true}}
	w.mu.Unlock()
	if w.pending++; w.pending < uncommitted {
		return
	}
	if err := w.commit(w.ctx, next, note{offset: next.Offset}); err == nil {
		w.pending = 0
	} // else it is tried after the next record
}

// leave commits what workers have done, with the note that this member has ended in
// order. A worker that has begun nothing leaves the note that it found. If the
// brokers do not answer, records are delivered again, and their outcomes are in the store.
func leave(ctx context.Context, ws []*worker) {
	ctx, cancel := context.WithTimeout(ctx, commitWait) // for all of them
	defer cancel()
	for _, w := range ws {
		w.mu.Lock()
		bye := w.farewell
		w.mu.Unlock()
		if bye == nil {
			continue
		}
		if err := w.commit(ctx, bye.at, bye.note); err != nil {
			w.r.consumer.Log().WarnContext(ctx, "stetmsg/kafka: offsets were not committed; records will be delivered again", slog.Any("error", err))
		}
	}
}

// commit commits an offset of the partition with a note.
func (w *worker) commit(ctx context.Context, at kgo.EpochOffset, n note) (err error) {
	text := n.String()
	ctx = kgo.PreCommitFnContext(ctx, func(req *kmsg.OffsetCommitRequest) error {
		for _, t := range req.Topics {
			for i := range t.Partitions {
				t.Partitions[i].Metadata = &text
			}
		}
		return nil
	})
	err = errors.New("the client gave no result")
	w.cl.CommitOffsetsSync(ctx, map[string]map[int32]kgo.EpochOffset{w.p.topic: {w.p.n: at}},
		func(_ *kgo.Client, _ *kmsg.OffsetCommitRequest, resp *kmsg.OffsetCommitResponse, failed error) {
			if err = failed; err != nil {
				return
			}
			for _, t := range resp.Topics {
				for _, p := range t.Partitions {
					err = cmp.Or(err, kerr.ErrorForCode(p.ErrorCode))
				}
			}
		})
	return err
}
