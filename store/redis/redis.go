// Package redis is the store for Redis 7 and later. Every operation is one script on one hash
// slot, so it runs on a single server, behind Sentinel and on Redis Cluster.
//
// It keeps the promises of package stet if Redis loses no write that it has acknowledged. Redis
// loses such writes when a server without an append-only file crashes, up to a second of them
// with appendfsync everysec, and in a failover the writes that the replica lacks. Options.Replicas
// makes the last less likely. An operation may then run twice. If that is not acceptable,
// compare the fence in the business transaction, make the key a unique column of it, or use a
// store that shares the transaction.
//
// While a cluster moves a slot, the records on it can be neither claimed nor settled (the
// cluster replies TRYAGAIN). stet.Options.StoreTimeout must be longer than the longest move of
// a slot; a run that cannot be settled within it becomes unknown. Leases are still renewed.
//
// If a server of a cluster is down, calls for its records fail. Calls for records on the other
// servers succeed if the cluster allows them: give each server a replica, or set
// cluster-require-full-coverage no.
//
// The client library is the caller's choice. store/redis/rueidis is recommended: rueidis sends
// the commands of concurrent callers together (it pipelines). store/redis/goredis is a thin
// adapter over go-redis, in which each command in flight has a connection of its own. Any
// other library fits through Client.
//
// The store's clock is the server's. A fence is the server's time, or one more than the last
// fence of its hash tag if that is greater: it grows even if the clock is set back after the
// record was deleted. An operation has two keys under one hash tag: the record, and its result,
// which expires first. Before there is a result, that key holds the job of an accepted operation
// and the checkpoints of its runs. Unsent messages are a third key. No key's name contains
// anything that a client has sent. A record that is accepted, running or unknown, or has unsent
// messages, never expires. All but the last are in an index, so they are found without a scan.
//
// Jobs and unsent messages are in queues, ordered by the time when they are due on the server's
// clock. A queue belongs to one of 1024 hash tags, and is written in the same atomic step as the
// record. The schedule, one key for all queues, says which queues to read. A single server
// writes it in the same step. In a cluster it is on one server and is written right afterwards.
// If the process dies in between, or the schedule is lost, the next sweep writes it again, so on
// a cluster let at least one process sweep.
package redis

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stet-go/stet/store"
)

const (
	defaultPrefix     = "stet"
	maxPrefix         = 64
	defaultCheckEvery = time.Minute

	defaultReplicaTimeout = time.Second
	maxReplicaTimeout     = 10 * time.Second
)

// Options configure a Store. The zero value is usable.
type Options struct {
	// Prefix begins the name of every key and channel. Stores that share a
	// database need different ones. At most 64 bytes, without braces.
	// Default "stet".
	Prefix string
	// AllowEviction accepts a server whose maxmemory-policy is not noeviction. Such a server
	// deletes live claims and outcomes when it runs out of memory; operations then run twice.
	AllowEviction bool
	// Replicas is how many replicas must have acknowledged a claim before it is granted, and an
	// outcome before Settle succeeds or a caller receives it. With fewer the call fails: nothing
	// runs, or the outcome is unknown until a later call finds enough. Accept (also if the
	// operation is accepted or running), Take, Save and Amend wait too. Releases, heartbeats,
	// Return, Relayed and a Cancel that only marks a run do not: losing one is safe. It costs
	// two round trips on a connection of its own. A failover can still lose a write: Redis may
	// promote a replica that has acknowledged nothing. The client, and of a cluster those of its
	// servers, must be Pipeliners. Default 0: calls do not wait for replicas.
	Replicas int
	// ReplicaTimeout is how long one call waits for replicas, at most 10 s. If its context ends
	// earlier, it waits for half of the time that is left. The client's read timeout should be
	// longer. Default 1 s.
	ReplicaTimeout time.Duration
	// CheckEvery is how often the servers' configuration is checked again. While claims are
	// refused it is at most 2 s. Default 1 min; negative: only New checks it.
	CheckEvery time.Duration
	// Logger gets warnings about the servers' configuration, and a line when claims begin or
	// stop being refused because of it. Default slog.Default().
	Logger *slog.Logger
}

// Store is a store.WorkStore, store.OutboxStore, store.Watcher, store.Sweeper and store.Browser in Redis. It
// is safe for concurrent use.
type Store struct {
	o        Options
	client   Client
	cluster  bool
	channel  string
	watchers hub
	writer   *scheduleWriter // of a cluster
	checks   serverChecks
	position position

	closed atomic.Bool
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

// position is where the next sweep and the next Due begin.
type position struct {
	mu       sync.Mutex
	cursor   int  // the shard at which the next sweep begins
	degraded bool // the last sweep did not reach all servers of the cluster

	sought  atomic.Int64 // the shard at which the next Due without the schedule begins
	missing atomic.Int64 // queues of the last Due whose servers did not answer
	dueFrom atomic.Value // the name with which the next Due of all names begins: a string
}

var (
	_ store.WorkStore   = (*Store)(nil)
	_ store.OutboxStore = (*Store)(nil)
	_ store.Watcher     = (*Store)(nil)
	_ store.Sweeper     = (*Store)(nil)
	_ store.Browser     = (*Store)(nil)
)

// New opens the store on the servers of client. It refuses a server older than Redis 7.0, a
// replica, a server that may evict keys (see Options.AllowEviction), a user without the rights
// that the scripts need, and a server of a cluster unless the client is a Cluster. It warns
// about a server without an append-only file, and a user that may not publish. Close the store
// after the engine, and before the client.
func New(ctx context.Context, client Client, o Options) (*Store, error) {
	if client == nil {
		return nil, errors.New("redis: New needs a client; goredis.Open or rueidis.Open makes one")
	}
	if len(o.Prefix) > maxPrefix || strings.ContainsAny(o.Prefix, "{}") {
		return nil, fmt.Errorf("redis: Options.Prefix is %q; it must have at most %d bytes and no braces, which choose the hash slot", o.Prefix, maxPrefix)
	}
	o.Prefix = cmp.Or(o.Prefix, defaultPrefix)
	if err := o.checkReplicas(client); err != nil {
		return nil, err
	}
	o.CheckEvery = cmp.Or(o.CheckEvery, defaultCheckEvery)
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	s := &Store{o: o, client: client, channel: channelOf(o.Prefix)}
	_, s.cluster = client.(Cluster)
	if err := s.inspect(ctx); err != nil {
		return nil, err
	}
	if err := s.probe(ctx); err != nil {
		return nil, err
	}
	background, cancel := context.WithCancel(context.WithoutCancel(ctx))
	s.cancel = cancel
	s.watchers.init(background, s)
	if s.cluster {
		s.writer = newScheduleWriter(s)
		s.wg.Go(func() { s.writer.run(background) })
	}
	if o.CheckEvery > 0 {
		s.wg.Go(func() { s.inspectRegularly(background) })
	}
	return s, nil
}

// Close ends the store's goroutines. Later calls fail. The caller closes the client. Close may
// be called again.
func (s *Store) Close() error {
	if s.closed.Swap(true) {
		return nil
	}
	s.cancel()
	s.watchers.close()
	s.wg.Wait()
	return nil
}

// begin is the start of every call.
func (s *Store) begin(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if s.closed.Load() {
		return errClosed
	}
	return nil
}
