// Package goredis lets the store of store/redis use github.com/redis/go-redis/v9,
// with a single server, Sentinel or a cluster. It is a thin adapter: each command in flight
// has a connection. With many concurrent callers store/redis/rueidis is faster, because rueidis
// sends their commands together.
//
//	client, err := goredis.Open(&redis.UniversalOptions{Addrs: []string{"localhost:6379"}})
//	store, err := stetredis.New(ctx, client, stetredis.Options{})
package goredis

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/redis/go-redis/v9"
	stetredis "github.com/stet-go/stet/store/redis"
)

type client struct {
	redis  redis.UniversalClient
	master func(ctx context.Context, key string) (*redis.Client, error)
	close  func() error // nil after New
	waits  *waitLimits
}

type clusterClient struct {
	client
	cluster *redis.ClusterClient
}

var (
	_ stetredis.Client    = (*client)(nil)
	_ stetredis.Listener  = (*client)(nil)
	_ stetredis.Pipeliner = (*client)(nil)
	_ stetredis.Cluster   = (*clusterClient)(nil)
)

// Conn is a client for the store. Of a cluster it is also a store/redis.Cluster. It
// is safe for concurrent use.
type Conn interface {
	stetredis.Client
	stetredis.Listener
	stetredis.Pipeliner
	// Close closes what Open has opened.
	Close() error
}

// Open makes a client of go-redis with the settings that safety needs. MaxRetries is -1: no
// command is sent again whose execution is unknown. ContextTimeoutEnabled is set: calls end
// with their contexts. o is not changed. The client connects when it is first used. Close it
// after the store.
//
// Each command in flight has a connection. Callers above PoolSize (default 10 × GOMAXPROCS)
// wait for a connection, for PoolTimeout at most. Commands that wait for replicas (see
// store/redis.Options.Replicas) use at most half of a server's PoolSize, so heartbeats still
// find a connection.
func Open(o *redis.UniversalOptions) (Conn, error) {
	if o == nil {
		return nil, errors.New("goredis: Open needs options; Addrs names the server")
	}
	safe := *o
	safe.MaxRetries, safe.ContextTimeoutEnabled = -1, true
	c := redis.NewUniversalClient(&safe)
	conn, err := wrap(c, c.Close)
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return conn, nil
}

// New uses a client of the caller's, which must have been made with MaxRetries -1
// and ContextTimeoutEnabled, and which the caller closes after the store. It may
// be a *redis.Client or a *redis.ClusterClient.
func New(c redis.UniversalClient) (Conn, error) {
	return wrap(c, nil)
}

func wrap(c redis.UniversalClient, closer func() error) (Conn, error) {
	switch c := c.(type) {
	case *redis.Client:
		if err := safe(c.Options().MaxRetries, c.Options().ContextTimeoutEnabled); err != nil {
			return nil, err
		}
		return &client{c, always(c), closer, new(waitLimits)}, nil
	case *redis.ClusterClient:
		o := c.Options()
		if o.ReadOnly || o.RouteByLatency || o.RouteRandomly {
			return nil, errors.New("goredis: the client reads from replicas, which lag behind; make it without ReadOnly, RouteByLatency and RouteRandomly")
		}
		if err := safe(o.MaxRetries, o.ContextTimeoutEnabled); err != nil {
			return nil, err
		}
		return &clusterClient{client{c, c.MasterForKey, closer, new(waitLimits)}, c}, nil
	}
	return nil, fmt.Errorf("goredis: a %T cannot be used; give a *redis.Client or a *redis.ClusterClient", c)
}

// always is the master of a client of one server, or of a master that Sentinel names.
func always(server *redis.Client) func(context.Context, string) (*redis.Client, error) {
	return func(context.Context, string) (*redis.Client, error) { return server, nil }
}

// safe refuses a client that repeats commands by itself. go-redis turns -1 into 0
// when it makes a client.
func safe(maxRetries int, timeouts bool) error {
	if maxRetries > 0 {
		return errors.New("goredis: the client sends commands again whose fate it does not know; make it with MaxRetries: -1, or let goredis.Open make it")
	}
	if !timeouts {
		return errors.New("goredis: the client does not keep to deadlines; make it with ContextTimeoutEnabled: true, or let goredis.Open make it")
	}
	return nil
}

// Close closes the client that Open has opened; after New it does nothing.
func (c *client) Close() error {
	if c.close == nil {
		return nil
	}
	return c.close()
}

// once is a command that go-redis may send only once. A cluster's client ignores MaxRetries:
// when a connection breaks it sends a command again, up to MaxRedirects times, unless the
// command forbids it. It still follows redirections, which say that nothing was executed.
type once struct{ *redis.Cmd }

func (once) NoRetry() bool { return true }

// Do implements store/redis.Client.
func (c *client) Do(ctx context.Context, key string, args ...string) (any, error) {
	cmd := redis.NewCmd(ctx, anys(args)...)
	if key != "" {
		if i := slices.Index(args, key); i > 0 {
			cmd.SetFirstKeyPos(int8(min(i, 127))) //nolint:gosec // a key comes early
		}
	}
	return answer(cmd, c.redis.Process(ctx, once{cmd}))
}

func anys(args []string) []any {
	all := make([]any, len(args))
	for i, a := range args {
		all[i] = a
	}
	return all
}

// answer is a command's reply as the store wants it.
func answer(cmd *redis.Cmd, err error) (any, error) {
	if err == nil {
		return cmd.Val(), nil
	}
	if errors.Is(err, redis.Nil) {
		return nil, nil
	}
	if e, ok := errors.AsType[redis.Error](err); ok {
		return nil, stetredis.ReplyError(e.Error())
	}
	return nil, err
}

// errUnanswered is the error of a command that has no reply and no error of its own.
var errUnanswered = errors.New("goredis: a command has no reply; a hook of the client did not send it")

// answered reports whether a command of a pipeline has a reply or an error of its own. If the
// server has refused the connection, or a hook did not send the pipeline, it has neither: then
// only the pipeline has an error.
func answered(cmd *redis.Cmd) bool { return cmd.Err() != nil || cmd.Val() != nil }

// Pipeline implements store/redis.Pipeliner. It uses the pipeline of one server: that of a
// cluster sends each command on a connection of its own slot.
func (c *client) Pipeline(ctx context.Context, key string, commands ...[]string) ([]any, error) {
	server, err := c.master(ctx, key)
	if err != nil {
		return nil, err
	}
	release, err := c.waits.acquire(ctx, server.Options())
	if err != nil {
		return nil, err
	}
	defer release()
	p := server.Pipeline()
	cmds := make([]*redis.Cmd, len(commands))
	for i, command := range commands {
		cmds[i] = p.Do(ctx, anys(command)...)
	}
	_, err = p.Exec(ctx) // each command has its own error, if they were sent
	if err == nil || slices.ContainsFunc(cmds, answered) {
		err = errUnanswered
	}
	replies := make([]any, len(cmds))
	for i, cmd := range cmds {
		own := cmd.Err()
		if !answered(cmd) {
			own = err
		}
		reply, own := answer(cmd, own)
		if e, ok := errors.AsType[stetredis.ReplyError](own); ok && answered(cmd) {
			reply, own = e, nil
		}
		if own != nil {
			return nil, own
		}
		replies[i] = reply
	}
	return replies, nil
}

// waitLimits limit the connections of each server on which commands may block to half of its
// pool. The others are for commands that are answered at once, such as heartbeats.
type waitLimits struct{ of sync.Map } // by the server's address: a chan struct{}

func (l *waitLimits) acquire(ctx context.Context, o *redis.Options) (release func(), err error) {
	made, _ := l.of.LoadOrStore(o.Addr, make(chan struct{}, max(o.PoolSize/2, 1)))
	limit := made.(chan struct{})
	select {
	case limit <- struct{}{}:
		return func() { <-limit }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Listen implements store/redis.Listener.
func (c *client) Listen(ctx context.Context, channel string, heard func(message string)) error {
	sub := c.redis.Subscribe(ctx, channel)
	defer func() { _ = sub.Close() }()
	// A blocked read does not notice that the context has ended.
	stop := context.AfterFunc(ctx, func() { _ = sub.Close() })
	defer stop()
	for {
		m, err := sub.Receive(ctx)
		switch m := m.(type) {
		case *redis.Subscription:
			heard("")
		case *redis.Message:
			heard(m.Payload)
		}
		if err != nil {
			return err
		}
	}
}

// Servers implements store/redis.Cluster.
func (c *clusterClient) Servers(ctx context.Context) (map[string]stetredis.Client, error) {
	var mu sync.Mutex
	servers := make(map[string]stetredis.Client)
	err := c.cluster.ForEachMaster(ctx, func(_ context.Context, master *redis.Client) error {
		mu.Lock()
		defer mu.Unlock()
		servers[master.Options().Addr] = &client{redis: master, master: always(master), waits: c.waits}
		return nil
	})
	return servers, err
}
