package redis

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/stet-go/stet/store"
)

// replyTime is how long the reply to WAIT may take beyond WAIT's own timeout.
const replyTime = 5 * time.Second

// errChanged is the error after a failover to a master that lacks a write. If the caller repeats
// the call, it is written there.
var errChanged = errors.New("the record is not as it was just written; has there been a failover, or has its lease or retention run out?")

// checkReplicas refuses wrong settings of Replicas and ReplicaTimeout.
func (o *Options) checkReplicas(client Client) error {
	if o.Replicas < 0 || o.ReplicaTimeout < 0 || o.ReplicaTimeout > maxReplicaTimeout {
		return fmt.Errorf("redis: Options.Replicas is %d, ReplicaTimeout %v; neither may be negative, nor ReplicaTimeout above %v", o.Replicas, o.ReplicaTimeout, maxReplicaTimeout)
	}
	if _, ok := client.(Pipeliner); !ok && o.Replicas > 0 {
		return fmt.Errorf("redis: Options.Replicas needs a client that is a Pipeliner, and a %T is not: WAIT counts the writes of its own connection only", client)
	}
	if o.ReplicaTimeout == 0 {
		o.ReplicaTimeout = defaultReplicaTimeout
	}
	return nil
}

// replicated returns nil once Options.Replicas replicas have a record in that state. WAIT counts
// the writes of its own connection only, so an unchanged record is written again on that
// connection. Replicas apply writes in order: a replica with the second write has the first.
func (s *Store) replicated(ctx context.Context, step string, c store.Claim, state store.State) error {
	if s.o.Replicas == 0 {
		return nil
	}
	wait := s.o.ReplicaTimeout
	if end, ok := ctx.Deadline(); ok {
		wait = min(wait, time.Until(end)/2) // the rest is for the answer
	}
	wait = max(wait, time.Millisecond) // 0 has no limit
	ctx, cancel := context.WithTimeout(ctx, wait+replyTime)
	defer cancel()
	replies, err := s.pipeline(ctx, s.keys(c.ID).record, touchScript, []string{fence(c.Fence), string([]byte{byte(state)}), "0"},
		"WAIT", strconv.Itoa(s.o.Replicas), strconv.FormatInt(wait.Milliseconds(), 10))
	if err != nil {
		return unconfirmed(step, err)
	}
	p := partsOf(replies)
	written, have := next[int64](p), next[int64](p)
	switch {
	case p.err != nil:
		return p.err
	case written == 0:
		return unconfirmed(step, errChanged)
	case have < int64(s.o.Replicas):
		return unconfirmed(step, fmt.Errorf("%d of %d replicas have acknowledged it within %v; check the replicas, or lower Options.Replicas",
			have, s.o.Replicas, wait.Round(time.Millisecond)))
	}
	return nil
}

// unconfirmed is the error of a step that the master has executed.
func unconfirmed(step string, err error) error {
	return fmt.Errorf("redis: %s: written, but whether it outlasts a failover is unknown: %w", step, err)
}

// standing returns nil if rec is not settled, or once enough replicas have the outcome, because
// its settle may have failed to wait for them. It then writes that they have it, so only one
// caller waits. An error wraps store.ErrUnknown: the operation ran, and a failover may undo its
// record.
func (s *Store) standing(ctx context.Context, step string, rec store.Record, reply any) error {
	if s.o.Replicas == 0 || !rec.State.Settled() || holders(reply) >= int64(s.o.Replicas) {
		return nil
	}
	if err := s.replicated(ctx, step, rec.Claim(), rec.State); err != nil {
		return fmt.Errorf("%w: %w", store.ErrUnknown, err)
	}
	// Without the note, the next caller waits again.
	_, _ = s.eval(ctx, touchScript, []string{s.keys(rec.ID).record}, fence(rec.Fence), string([]byte{byte(rec.State)}), strconv.Itoa(s.o.Replicas))
	return nil
}

// holders is how many replicas are known to have a settled record that decode could read.
func holders(reply any) int64 {
	packed := reply.([]any)[1].(string)
	return int64(binary.BigEndian.Uint64([]byte(packed[104:112]))) //nolint:gosec // a script wrote it
}

// pipeline runs a script of one key and then a command on the same connection, and
// returns both replies. It follows the redirections of a cluster.
func (s *Store) pipeline(ctx context.Context, key string, sc script, args []string, command ...string) (replies []any, err error) {
	first := append([]string{"EVALSHA", sc.digest, "1", key}, args...)
	client := s.client.(Pipeliner) // New has seen to that
	var asking [][]string
	for range 2 {
		err = s.patiently(ctx, func() error {
			got, err := client.Pipeline(ctx, key, append(asking, first, command)...)
			if err != nil {
				return err
			}
			if len(got) != len(asking)+2 {
				return errReply(got)
			}
			for _, reply := range got {
				if e, ok := reply.(ReplyError); ok {
					if client, asking, err = s.redirected(ctx, e); err != nil {
						return err
					}
					return e
				}
			}
			replies = got[len(asking):]
			return nil
		})
		if code(err) != "NOSCRIPT" {
			break
		}
		first[0], first[1] = "EVAL", sc.source
	}
	return replies, err
}

// redirected returns a client of the server that an error names, or the store's, and the
// commands that must precede the next one.
func (s *Store) redirected(ctx context.Context, e ReplyError) (to Pipeliner, before [][]string, err error) {
	to = s.client.(Pipeliner)
	if code(e) != "ASK" && code(e) != "MOVED" {
		return to, nil, nil
	}
	all, _ := servers(ctx, s.client)
	named := all[string(e[strings.LastIndexByte(string(e), ' ')+1:])]
	if named == nil {
		return to, nil, nil // which follows by itself, as far as it can
	}
	to, ok := named.(Pipeliner)
	if !ok {
		return nil, nil, fmt.Errorf("the clients of the cluster's servers must be Pipeliners, like the store's own; a %T is not", named)
	}
	if code(e) == "ASK" {
		before = [][]string{{"ASKING"}}
	}
	return to, before, nil
}
