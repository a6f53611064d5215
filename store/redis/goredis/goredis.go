// Package goredis lets the store of store/redis use github.com/redis/go-redis/v9,
// with a single server, Sentinel or a cluster.
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
	redis    redis.UniversalClient
	close    func() error
	lanes    *lanes
	together *gatherers
}

// serverClient is a client of one server, or of a master that Sentinel names.
type serverClient struct {
	client
	server *redis.Client
}

type clusterClient struct {
	client
	cluster *redis.ClusterClient
}

var (
	_ stetredis.Client    = (*serverClient)(nil)
	_ stetredis.Client    = (*clusterClient)(nil)
	_ stetredis.Listener  = (*client)(nil)
	_ stetredis.Pipeliner = (*serverClient)(nil)
	_ stetredis.Single    = (*serverClient)(nil)
	_ stetredis.Cluster   = (*clusterClient)(nil)
	_ stetredis.Pipeliner = (*clusterClient)(nil)
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

// Open makes a client of go-redis with what safety needs: it does not send a
// command again whose fate it does not know (MaxRetries is -1), and keeps to the
// deadlines of contexts (ContextTimeoutEnabled is set). It connects when it is
// first used. Of the commands for one server, 8 are under way at a time at most, or half of
// its PoolSize if that is less; those that come meanwhile go out together, up to 64 in a
// pipeline, and fewer where replies are large, when one of the 8 has been answered. Pipelines
// have connections beside PoolSize (PipelinePoolSize, 10 of each server by default). What waits for replicas (see store/redis.Options.Replicas) takes at most half
// of a server's PoolSize, so that heartbeats find a connection. o is not changed. Close it
// after the store.
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
//
// Commands of several callers share pipelines (see Open), so a hook has to do in
// ProcessPipelineHook what it does in ProcessHook; the context there is of no caller, nor is
// that of a script which several callers share. Of a cluster, pipelines are those of its servers: a hook belongs on the clients of these (see
// redis.ClusterClient.OnNewNode), as one of the ClusterClient does not see them.
func New(c redis.UniversalClient) (Conn, error) {
	return wrap(c, nil)
}

func wrap(c redis.UniversalClient, closer func() error) (Conn, error) {
	switch c := c.(type) {
	case *redis.Client:
		if err := safe(c.Options().MaxRetries, c.Options().ContextTimeoutEnabled); err != nil {
			return nil, err
		}
		return &serverClient{client{c, closer, new(lanes), new(gatherers)}, c}, nil
	case *redis.ClusterClient:
		o := c.Options()
		if o.ReadOnly || o.RouteByLatency || o.RouteRandomly {
			return nil, errors.New("goredis: the client reads from replicas, which lag behind; make it without ReadOnly, RouteByLatency and RouteRandomly")
		}
		if err := safe(o.MaxRetries, o.ContextTimeoutEnabled); err != nil {
			return nil, err
		}
		return &clusterClient{client{c, closer, new(lanes), new(gatherers)}, c}, nil
	}
	return nil, fmt.Errorf("goredis: a %T cannot be used; give a *redis.Client or a *redis.ClusterClient", c)
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

// Close closes what Open has opened; after New it does nothing.
func (c *client) Close() error {
	if c.close == nil {
		return nil
	}
	err := c.close() // which breaks what is under way
	c.together.close()
	return err
}

// once is a command that go-redis may send only once. A cluster's client does not
// care for MaxRetries: when a connection breaks it sends a command again, up to
// MaxRedirects times, unless the command forbids it. Redirections, of which the
// server says that nothing was executed, are still followed.
type once struct{ *redis.Cmd }

func (once) NoRetry() bool { return true }

// command is a command as go-redis sends it.
func command(ctx context.Context, key string, args []string) (cmd *redis.Cmd, sent redis.Cmder, size int) {
	all := make([]any, len(args))
	first := int8(0)
	for i, a := range args {
		all[i] = a
		size += len(a)
		if first == 0 && i > 0 && a == key {
			first = int8(min(i, 127)) //nolint:gosec // a key comes early
		}
	}
	cmd = redis.NewCmd(ctx, all...)
	if key != "" {
		cmd.SetFirstKeyPos(first)
	}
	if args[0] == "MGET" {
		// With policies of commands that the caller has set, a cluster's client splits
		// it, and then can fill no other type. A read may be repeated.
		return cmd, cmd, size
	}
	return cmd, once{cmd}, size
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

// Do implements store/redis.Client.
func (c *serverClient) Do(ctx context.Context, key string, args ...string) (any, error) {
	cmd, sent, size := command(ctx, key, args)
	alone := func() error { return c.redis.Process(ctx, sent) }
	if key == "" || size > bytesTogether {
		return answer(cmd, alone())
	}
	how, err := c.together.to(c.server).do(ctx, c.server, cmd, size, alone)
	if how == wasLeft {
		return nil, err
	}
	return answer(cmd, err)
}

// SingleServer implements store/redis.Single.
func (*serverClient) SingleServer() bool { return true }

// Do implements store/redis.Client.
func (c *clusterClient) Do(ctx context.Context, key string, args ...string) (any, error) {
	cmd, sent, size := command(ctx, key, args)
	alone := func() error { return c.redis.Process(ctx, sent) }
	if key == "" || size > bytesTogether {
		return answer(cmd, alone())
	}
	master, err := c.cluster.MasterForKey(ctx, key)
	if err != nil {
		return nil, err
	}
	how, err := c.together.to(master).do(ctx, master, cmd, size, alone)
	switch {
	case how == wasLeft:
		return nil, err
	case how == wentTogether && elsewhere(err):
		err = alone() // which follows
	}
	return answer(cmd, err)
}

// elsewhere reports whether a cluster says that a command, which it has not executed, is to be
// sent to another server.
func elsewhere(err error) bool {
	_, moved := redis.IsMovedError(err)
	_, ask := redis.IsAskError(err)
	return moved || ask || redis.IsReadOnlyError(err) || errors.Is(err, redis.ErrClosed)
}

// Pipeline implements store/redis.Pipeliner.
func (c *serverClient) Pipeline(ctx context.Context, _ string, commands ...[]string) ([]any, error) {
	return c.lanes.pipeline(ctx, c.server, commands)
}

// Pipeline implements store/redis.Pipeliner. The cluster's own pipelines give each
// command a connection of its slot's.
func (c *clusterClient) Pipeline(ctx context.Context, key string, commands ...[]string) ([]any, error) {
	master, err := c.cluster.MasterForKey(ctx, key)
	if err != nil {
		return nil, err
	}
	return c.lanes.pipeline(ctx, master, commands)
}

func (l *lanes) pipeline(ctx context.Context, server *redis.Client, commands [][]string) ([]any, error) {
	leave, err := l.enter(ctx, server)
	if err != nil {
		return nil, err
	}
	defer leave()
	p := server.Pipeline()
	cmds := make([]*redis.Cmd, len(commands))
	for i, command := range commands {
		args := make([]any, len(command))
		for j, a := range command {
			args[j] = a
		}
		cmds[i] = p.Do(ctx, args...)
	}
	_, err = p.Exec(ctx) // each command has its own error, if they were sent
	if err == nil || slices.ContainsFunc(cmds, answered) {
		err = errUnanswered
	}
	replies := make([]any, len(cmds))
	for i, cmd := range cmds {
		if !answered(cmd) {
			_, err = answer(cmd, err)
			return nil, err
		}
		reply, own := answer(cmd, cmd.Err())
		e, ok := errors.AsType[stetredis.ReplyError](own)
		switch {
		case ok:
			replies[i] = e
		case own != nil:
			return nil, own
		default:
			replies[i] = reply
		}
	}
	return replies, nil
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
		servers[master.Options().Addr] = &serverClient{client{redis: master, lanes: c.lanes, together: c.together}, master}
		return nil
	})
	return servers, err
}
