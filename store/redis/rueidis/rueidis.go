// Package rueidis lets the store of store/redis use github.com/redis/rueidis,
// which sends the commands of concurrent callers together over few connections. Import it under another name than the client:
//
//	import stetrueidis "github.com/stet-go/stet/store/redis/rueidis"
//
//	client, err := stetrueidis.Open(rueidis.ClientOption{InitAddress: []string{"localhost:6379"}})
//	store, err := stetredis.New(ctx, client, stetredis.Options{})
package rueidis

import (
	"context"
	"errors"
	"slices"

	"github.com/redis/rueidis"
	stetredis "github.com/stet-go/stet/store/redis"
)

type client struct {
	redis rueidis.Client
	ours  bool // Close closes it
}

type clusterClient struct{ client }

var (
	_ stetredis.Client    = (*client)(nil)
	_ stetredis.Listener  = (*client)(nil)
	_ stetredis.Pipeliner = (*client)(nil)
	_ stetredis.Cluster   = (*clusterClient)(nil)
)

// Conn is a client for redis.New. Of a cluster it is also a store/redis.Cluster.
// It is safe for concurrent use.
type Conn interface {
	stetredis.Client
	stetredis.Listener
	stetredis.Pipeliner
	// Close closes what Open has opened.
	Close() error
}

// Open makes a client of rueidis with what safety needs: it sends no command
// again whose fate it does not know (DisableRetry is set), and reads nothing from
// replicas or a cache of its own. It connects at once. Close it after the store.
func Open(o rueidis.ClientOption) (Conn, error) {
	o.DisableRetry, o.DisableCache = true, true
	o.SendToReplicas, o.ReplicaOnly = nil, false
	c, err := rueidis.NewClient(o)
	if err != nil {
		return nil, err
	}
	return wrap(c, true)
}

// New uses a client of the caller's, who closes it after the store. Whatever its
// options, it repeats none of the store's commands, because they are not marked
// as read-only; for the same reason none goes to a replica.
func New(c rueidis.Client) (Conn, error) {
	if c == nil {
		return nil, errors.New("rueidis: New needs a client; Open makes one")
	}
	return wrap(c, false)
}

func wrap(c rueidis.Client, ours bool) (Conn, error) {
	if c.Mode() == rueidis.ClientModeCluster {
		return &clusterClient{client{c, ours}}, nil
	}
	return &client{c, ours}, nil
}

// Close closes what Open has opened; after New it does nothing.
func (c *client) Close() error {
	if c.ours {
		c.redis.Close()
	}
	return nil
}

// Do implements store/redis.Client.
func (c *client) Do(ctx context.Context, key string, args ...string) (any, error) {
	name, keys, rest := around(key, args)
	return answer(c.redis.Do(ctx, c.redis.B().Arbitrary(name...).Keys(keys...).Args(rest...).Build()))
}

// around divides a command at its key, which says where it goes.
func around(key string, args []string) (before, keys, after []string) {
	if i := slices.Index(args, key); i > 0 && key != "" {
		return args[:i], args[i : i+1], args[i+1:]
	}
	return args, nil, nil
}

// answer is a reply as the store wants it.
func answer(result rueidis.RedisResult) (any, error) {
	reply, err := result.ToAny()
	if rueidis.IsRedisNil(err) {
		return nil, nil
	}
	if e, ok := rueidis.IsRedisErr(err); ok {
		return nil, stetredis.ReplyError(e.Error())
	}
	if errors.Is(err, rueidis.ErrNoSlot) {
		// Nothing was sent: the server that the client had asked for a map of the cluster
		// does not know whose the slot is, as after a start. The next call asks again.
		return nil, stetredis.ReplyError("CLUSTERDOWN " + err.Error())
	}
	return reply, err
}

// Pipeline implements store/redis.Pipeliner, on a connection that no other caller
// uses in the meantime.
func (c *client) Pipeline(ctx context.Context, key string, commands ...[]string) (replies []any, err error) {
	err = c.redis.Dedicated(func(d rueidis.DedicatedClient) error {
		cmds := make([]rueidis.Completed, len(commands))
		for i, args := range commands {
			// It keeps to the deadline of ctx alone.
			name, keys, rest := around(key, args)
			cmds[i] = d.B().Arbitrary(name...).Keys(keys...).Args(rest...).Blocking()
		}
		for _, result := range d.DoMulti(ctx, cmds...) {
			reply, err := answer(result)
			if e, ok := errors.AsType[stetredis.ReplyError](err); ok {
				reply, err = e, nil
			}
			if err != nil {
				return err
			}
			replies = append(replies, reply)
		}
		return nil
	})
	return replies, err
}

// Listen implements store/redis.Listener.
func (c *client) Listen(ctx context.Context, channel string, heard func(message string)) error {
	// The hook and the messages come from different goroutines.
	turn := make(chan struct{}, 1)
	tell := func(message string) {
		turn <- struct{}{}
		heard(message)
		<-turn
	}
	hooked := rueidis.WithOnSubscriptionHook(ctx, func(s rueidis.PubSubSubscription) {
		if s.Kind == "subscribe" {
			tell("")
		}
	})
	return c.redis.Receive(hooked, c.redis.B().Subscribe().Channel(channel).Build(), func(m rueidis.PubSubMessage) { tell(m.Message) })
}

// Servers implements store/redis.Cluster.
func (c *clusterClient) Servers(context.Context) (map[string]stetredis.Client, error) {
	servers := make(map[string]stetredis.Client)
	for address, node := range c.redis.Nodes() {
		servers[address] = &client{redis: node}
	}
	return servers, nil
}
