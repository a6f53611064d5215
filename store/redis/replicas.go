package redis

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/stet-go/stet"
)

// replyTime is how long the answer to WAIT may take beyond the time that WAIT was
// given.
const replyTime = 5 * time.Second

// errChanged is what a failover leads to, whose new master lacks a write. The
// call is to be made again, and then writes it there.
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

// replicated returns nil once Options.Replicas replicas have what a record has
// become. WAIT counts the writes of its own connection, and the record may have
// been written on any, by anyone: so the record, if it is still what it was, is
// written again on the connection of the WAIT. Replicas take writes in the order
// of the master, so one that has the second has the first.
func (s *Store) replicated(ctx context.Context, step string, c stet.Claim, state stet.State) error {
	if s.o.Replicas == 0 {
		return nil
	}
	wait := s.o.ReplicaTimeout
	if end, ok := ctx.Deadline(); ok {
		wait = min(wait, time.Until(end)/2) // the rest is for the answer
	}
	wait = max(wait, time.Millisecond) // 0 is for ever
	ctx, cancel := context.WithTimeout(ctx, wait+replyTime)
	defer cancel()
	replies, err := s.pipeline(ctx, s.keys(c.ID).record, touchScript, []string{fence(c.Fence), string([]byte{byte(state)}), "0"},
		"WAIT", strconv.Itoa(s.o.Replicas), strconv.FormatInt(wait.Milliseconds(), 10))
	if err != nil {
		return explain(step+", waiting for replicas", err)
	}
	switch replies[0] {
	case int64(1):
	case int64(0):
		return explain(step+", waiting for replicas", errChanged)
	default:
		return errReply(replies[0])
	}
	have, ok := replies[1].(int64)
	if !ok {
		return errReply(replies[1])
	}
	if have < int64(s.o.Replicas) {
		return fmt.Errorf("redis: %s: %d of %d replicas have acknowledged it within %v; whether it outlasts a failover is unknown: look after the replicas, or lower Options.Replicas",
			step, have, s.o.Replicas, wait.Round(time.Millisecond))
	}
	return nil
}

// standing returns nil if nobody has been settled in rec, or once enough replicas
// have the outcome: whoever settled it may have waited for them in vain. That they
// have it is noted, so that it is waited for only once.
func (s *Store) standing(ctx context.Context, step string, rec stet.Record, reply any) error {
	if s.o.Replicas == 0 || !rec.State.Settled() || holders(reply) >= int64(s.o.Replicas) {
		return nil
	}
	if err := s.replicated(ctx, step, rec.Claim(), rec.State); err != nil {
		return err
	}
	// Without the note, the next caller waits again.
	_, _ = s.eval(ctx, touchScript, []string{s.keys(rec.ID).record}, fence(rec.Fence), string([]byte{byte(rec.State)}), strconv.Itoa(s.o.Replicas))
	return nil
}

// holders is how many replicas are known to have a settled record, of which a
// script has returned a sound one.
func holders(reply any) int64 {
	packed := reply.([]any)[1].(string)
	return int64(binary.BigEndian.Uint64([]byte(packed[104:112]))) //nolint:gosec // a script wrote it
}

// pipeline runs a script of one key and then a command on the same connection, and
// returns both replies. It follows the redirections of a cluster.
func (s *Store) pipeline(ctx context.Context, key string, sc script, args []string, command ...string) (replies []any, err error) {
	first := append([]string{"EVALSHA", sc.digest, "1", key}, args...)
	client := s.client
	commands := [][]string{first, command}
	for range 2 {
		err = s.patiently(ctx, func() error {
			p, ok := client.(Pipeliner)
			if !ok {
				return errors.New("the Clients of the cluster's servers must be Pipeliners")
			}
			got, err := p.Pipeline(ctx, key, commands...)
			if err != nil {
				return err
			}
			if len(got) != len(commands) {
				return errReply(got)
			}
			replies = got[len(got)-2:]
			for _, reply := range replies {
				if e, ok := reply.(ReplyError); ok {
					client, commands = s.redirected(ctx, e), [][]string{first, command}
					if code(e) == "ASK" {
						commands = [][]string{{"ASKING"}, first, command}
					}
					return e
				}
			}
			return nil
		})
		if code(err) != "NOSCRIPT" {
			break
		}
		first[0], first[1] = "EVAL", sc.source
	}
	return replies, err
}

// redirected returns a client of the server that an error names, or the store's.
func (s *Store) redirected(ctx context.Context, e ReplyError) Client {
	switch code(e) {
	case "ASK", "MOVED":
		fields := strings.Fields(string(e))
		if servers, err := s.servers(ctx); err == nil && servers[fields[len(fields)-1]] != nil {
			return servers[fields[len(fields)-1]]
		}
	}
	return s.client
}
