package redis

import (
	"context"
	"crypto/sha1" //nolint:gosec // EVALSHA names scripts so; it protects nothing
	"embed"
	"encoding/hex"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/stet-go/stet/internal/timer"
)

// Client sends commands to Redis. It is all that the store needs of a client
// library. It must be safe for concurrent use.
type Client interface {
	// Do sends a command to the server that serves the hash slot of key, or to
	// any master if key is "", and returns the reply: nil, an int64, a string,
	// or a []any of these. It follows the redirections of a cluster, but never
	// sends a command again of which it cannot know whether it was executed. A
	// reply that is an error is a ReplyError, or wraps one; any other error
	// leaves open whether the command was executed. It returns soon after ctx
	// has ended.
	Do(ctx context.Context, key string, args ...string) (any, error)
}

// Listener is a Client that can subscribe. Without it waiters poll.
type Listener interface {
	// Listen subscribes to a channel and calls heard for every message, and with
	// "" whenever it has subscribed anew, as messages may have been lost before.
	// It calls heard from one goroutine at a time. It returns when ctx ends or
	// the subscription cannot be kept.
	Listen(ctx context.Context, channel string, heard func(message string)) error
}

// Cluster is a Client of a Redis Cluster.
type Cluster interface {
	// Servers returns a Client for each server, by its address. Replicas may be
	// among them.
	Servers(ctx context.Context) (map[string]Client, error)
}

// Pipeliner is a Client that can send commands together. Options.Replicas needs
// it; of a Cluster, the Clients of its servers need it, too.
type Pipeliner interface {
	// Pipeline sends commands one after the other on one connection to the server
	// that serves the hash slot of key, and returns their replies as Do does, but
	// error replies are ReplyErrors among them. It follows no redirection,
	// and never sends a command again. The last command may block, which must not
	// hold up other callers. An error leaves open which commands were executed.
	Pipeline(ctx context.Context, key string, commands ...[]string) ([]any, error)
}

// ReplyError is an error that the server has replied: it begins with a code in
// capitals. The command was not executed, or had no effect.
type ReplyError string

// Error implements error.
func (e ReplyError) Error() string { return string(e) }

// code returns the first word of the server's error, "" if it is not one.
func code(err error) string {
	if e, ok := errors.AsType[ReplyError](err); ok {
		if strings.Contains(string(e), "The user executing the script can't") {
			return "NOPERM" // within a script the server calls it ERR
		}
		first, _, _ := strings.Cut(string(e), " ")
		return strings.TrimSuffix(first, ":")
	}
	return ""
}

//go:embed lua
var sources embed.FS

// script is a Lua script, known to the server by its digest.
type script struct{ source, digest string }

// newScript joins lua/record.lua and the named parts.
func newScript(parts ...string) script {
	var source []byte
	for _, part := range append([]string{"record"}, parts...) {
		b, err := sources.ReadFile("lua/" + part + ".lua")
		if err != nil {
			panic(err) // the file is embedded
		}
		source = append(source, b...)
	}
	sum := sha1.Sum(source) //nolint:gosec // see the import
	return script{string(source), hex.EncodeToString(sum[:])}
}

var (
	claimScript       = newScript("claim")
	settleScript      = newScript("settle")
	outboxScript      = newScript("work", "settle")
	releaseScript     = newScript("work", "release")
	extendScript      = newScript("extend")
	renewScript       = newScript("renew")
	readScript        = newScript("read")
	watchScript       = newScript("watch")
	sweepScript       = newScript("work", "sweep")
	markUnknownScript = newScript("markunknown")
	peekScript        = newScript("peek")
	liveScript        = newScript("live")
	expireScript      = newScript("expire")
	touchScript       = newScript("touch")
	probeScript       = newScript("probe")

	acceptScript   = newScript("work", "accept")
	takeScript     = newScript("work", "take")
	cancelScript   = newScript("work", "cancel")
	saveScript     = newScript("work", "save")
	lookScript     = newScript("work", "look")
	relayedScript  = newScript("work", "relayed")
	scheduleScript = newScript("work", "schedule")
	queueScript    = newScript("queue")
	dueScript      = newScript("work", "due")
	planScript     = newScript("work", "plan")
)

const (
	movePause    = 5 * time.Millisecond   // before a command is repeated that a cluster has put off
	maxMovePause = 100 * time.Millisecond // it doubles up to this
	maxMoving    = 3 * time.Second        // for so long, if the context allows
)

// eval runs a script on the server of the first key. It repeats the script while a slot moves.
func (s *Store) eval(ctx context.Context, sc script, keys []string, args ...string) (reply any, err error) {
	err = s.patiently(ctx, func() (err error) {
		reply, err = s.evalOnce(ctx, sc, keys, args...)
		return err
	})
	return reply, err
}

// evalOnce is eval without repetition.
func (s *Store) evalOnce(ctx context.Context, sc script, keys []string, args ...string) (any, error) {
	command := make([]string, 0, 3+len(keys)+len(args))
	command = append(command, "EVALSHA", sc.digest, strconv.Itoa(len(keys)))
	command = append(append(command, keys...), args...)
	reply, err := s.client.Do(ctx, keys[0], command...)
	if err != nil && code(err) == "NOSCRIPT" {
		command[0], command[1] = "EVAL", sc.source
		reply, err = s.client.Do(ctx, keys[0], command...)
	}
	return reply, err
}

// patiently calls do, and again while the cluster replies that nothing was executed
// because a slot is being moved or has no master.
func (s *Store) patiently(ctx context.Context, do func() error) error {
	var end time.Time
	for pause := movePause; ; pause = min(2*pause, maxMovePause) {
		err := do()
		if err == nil || !s.cluster {
			return err
		}
		switch code(err) {
		case "TRYAGAIN", "CLUSTERDOWN", "ASK", "MOVED":
		default:
			return err
		}
		if end.IsZero() {
			end = time.Now().Add(maxMoving)
		}
		if time.Now().After(end) || !timer.Sleep(ctx, pause) {
			return err
		}
	}
}
