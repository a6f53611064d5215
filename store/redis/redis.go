// Package redis is the store for Redis 7 and later: every operation is one
// script on one hash slot, so it runs on a single server, behind Sentinel and on
// Redis Cluster.
//
// It keeps the promises of package stet for as long as Redis loses no write that
// it has acknowledged. It does lose some: without an append-only file when the
// server crashes, with appendfsync everysec up to a second of them, and in a
// failover whatever had not reached the replica, which Options.Replicas makes less
// likely. Then an operation may run twice.
// Where that is not acceptable, have the business transaction compare the fence,
// or make the key a unique column of it; or use a store that shares the
// transaction.
//
// While a cluster moves a slot to another server, or a move was broken off half
// way, the records on it can be neither claimed nor settled (the cluster answers
// TRYAGAIN), so stet.Options.StoreTimeout must be longer than the longest move of a
// slot; a run that cannot be settled within it becomes unknown. Leases are renewed all
// the while.
//
// A server of a cluster that is down holds up what is on it. Runs, sweeps and work on
// the others go on, if the cluster lets them: give each server a replica, or set
// cluster-require-full-coverage no.
//
// The client library is the caller's choice. store/redis/rueidis is recommended: rueidis sends
// the commands of concurrent callers together (it pipelines). store/redis/goredis is a thin
// adapter over go-redis, in which each command in flight has a connection of its own. Any
// other library fits through Client.
//
// The store's clock is the server's. A fence is its time, or one more than the last that
// was granted in its hash tag, whatever is greater: it grows also where the clock was set
// back after the record had been forgotten. An operation is two keys under one hash tag:
// the record, and its result, which expires first; until there is one, its key has
// the work of an accepted operation and the notes of its runs. Messages that are to be
// sent are a third. None has anything in its name that a client has sent. A record
// that is accepted, running or unknown, or has messages, never expires by itself, and
// all but the last are in an index, so that finding what is stuck takes no scan.
//
// What waits, for a worker or to be sent, is in a queue of its hash tag, ordered by
// when it is due on that server's clock and written in the same atomic step as the
// record, so neither is ever there without the other. There are 1024 such queues,
// spread over the servers of a cluster. Which are worth a look is in the agenda, one
// key for all of them. A single server writes it in the same step, too. In a cluster
// it is on one of the servers, and written right afterwards: if the process dies in
// between, that costs time, and no operation, because every sweep goes through the
// queues and puts into the agenda what it finds there. The same holds if the agenda is
// lost. So on a cluster let at least one process sweep.
package redis

import (
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
	// AllowEviction accepts a server whose maxmemory-policy is not noeviction.
	// Such a server forgets live claims and outcomes when it runs out of
	// memory, and operations then run twice.
	AllowEviction bool
	// Replicas is how many replicas must have acknowledged a claim before it is
	// granted, and an outcome before Settle succeeds or anyone is handed it. With
	// fewer the call fails: nothing is run, or the outcome is unknown until a
	// later call finds enough. It costs two round trips of a connection's own,
	// and makes it less likely, but not impossible, that a failover loses
	// anything: Redis may promote a replica that has acknowledged nothing.
	// So do Accept, also when it finds the operation accepted or running, Take,
	// Save and Strike. Releases, heartbeats, Return, Relayed and a Cancel that only
	// marks a run do not wait, as losing one is safe. The client must be a
	// Pipeliner, and of a cluster those of its servers. Default 0: replicas are
	// not waited for.
	Replicas int
	// ReplicaTimeout is how long one call waits for them, at most 10 s. The
	// client's own timeout for reading should be longer. A call whose context
	// ends earlier waits for half of what is left. Default 1 s.
	ReplicaTimeout time.Duration
	// CheckEvery is how often the servers' configuration is looked at again,
	// from a goroutine that Close ends. While claims are refused it is at most
	// 2 s. Default 1 min; negative: only by New.
	CheckEvery time.Duration
	// Logger is told what the servers' configuration leaves to be desired, and
	// when claims begin and cease to be refused for it. Default slog.Default().
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
	hints    hints
	guard    guard

	mu      sync.Mutex
	cursor  int    // of the sweep, among the shards
	sought  int    // likewise, of Due without the agenda
	dueFrom string // the name with which the next Due of all names begins
	lame    bool   // the last sweep could not reach all of a cluster

	missing atomic.Int64 // shards of the last Due whose servers did not answer

	closed atomic.Bool
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

var (
	_ store.WorkStore   = (*Store)(nil)
	_ store.OutboxStore = (*Store)(nil)
	_ store.Watcher     = (*Store)(nil)
	_ store.Sweeper     = (*Store)(nil)
	_ store.Browser     = (*Store)(nil)
)

// New opens the store on the servers of client. It refuses a server that is older
// than Redis 7.0, a replica, a server that may evict keys (see
// Options.AllowEviction), a user that may not do what the scripts do, and a server of a
// cluster unless the client is a Cluster. It warns about a server without an append-only
// file, and a user that may not publish. Close the store
// after the engine, and before the client.
func New(ctx context.Context, client Client, o Options) (*Store, error) {
	if client == nil {
		return nil, errors.New("redis: New needs a client; goredis.Open or rueidis.Open makes one")
	}
	if len(o.Prefix) > maxPrefix || strings.ContainsAny(o.Prefix, "{}") {
		return nil, fmt.Errorf("redis: Options.Prefix is %q; it must have at most %d bytes and no braces, which choose the hash slot", o.Prefix, maxPrefix)
	}
	if o.Prefix == "" {
		o.Prefix = defaultPrefix
	}
	if err := o.checkReplicas(client); err != nil {
		return nil, err
	}
	if o.CheckEvery == 0 {
		o.CheckEvery = defaultCheckEvery
	}
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
	s.hints.init(background, s)
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
	s.hints.close()
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
