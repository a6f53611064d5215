package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	goredislib "github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"

	"github.com/stet-go/stet/bench/internal/rounds"
	"github.com/stet-go/stet/internal/rig"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/redis"
	"github.com/stet-go/stet/store/redis/goredis"
	stetrueidis "github.com/stet-go/stet/store/redis/rueidis"
)

// cluster measures pairs on a cluster of three servers that keep nothing on disk: through both
// client libraries, and through go-redis with each command sent alone, as its users do.
func cluster(ctx context.Context, r *rig.Rig, callers int) error {
	c, err := r.StartRedisCluster(ctx, 3, rig.RedisOptions{})
	if err != nil {
		return err
	}
	defer func() {
		for _, s := range c.Servers {
			_ = s.Close()
		}
	}()
	lib := &goredislib.UniversalOptions{Addrs: c.Addrs(), PoolSize: goRedisConns, MaxRetries: -1, ContextTimeoutEnabled: true}
	together, err := goredis.Open(lib)
	if err != nil {
		return err
	}
	defer together.Close()
	each := goredislib.NewClusterClient(lib.Cluster())
	defer each.Close()
	ru, err := stetrueidis.Open(rueidis.ClientOption{InitAddress: c.Addrs()})
	if err != nil {
		return err
	}
	defer ru.Close()
	stores, spent := make(map[string]store.Store), make(map[string][]spending)
	names := []string{"goredis", "goredis_alone", "rueidis"}
	for i, client := range []redis.Client{together, alone{each, together.(redis.Cluster)}, ru} {
		s, err := redis.New(ctx, client, redis.Options{Prefix: names[i], Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			return err
		}
		defer s.Close()
		stores[names[i]] = s
	}
	b := &bench{servers: c.Servers}
	for round := range *n + 1 {
		for _, name := range names {
			it, err := b.spend(ctx, stores[name], callers)
			if err != nil {
				return fmt.Errorf("%s on a cluster: %w", name, err)
			}
			if round > 0 {
				spent[name] = append(spent[name], it)
			}
		}
	}
	for _, name := range names {
		tell(spent[name], func(what string) string { return fmt.Sprintf("redis_%s_%s_cluster_%d", name, what, callers) })
	}
	rounds.Figure(fmt.Sprintf("redis_goredis_rate_ratio_cluster_%d", callers), rounds.Ratio(rates(spent["goredis"]), rates(spent["goredis_alone"])), "x each command alone")
	return nil
}

// alone sends each command alone.
type alone struct {
	lib *goredislib.ClusterClient
	redis.Cluster
}

// Do implements redis.Client.
func (a alone) Do(ctx context.Context, key string, args ...string) (any, error) {
	command := make([]any, len(args))
	for i, arg := range args {
		command[i] = arg
	}
	cmd := goredislib.NewCmd(ctx, command...)
	for i, arg := range args {
		if i > 0 && arg == key {
			cmd.SetFirstKeyPos(int8(i)) //nolint:gosec // a key comes early
			break
		}
	}
	err := a.lib.Process(ctx, cmd)
	if e, ok := errors.AsType[goredislib.Error](err); ok && !strings.HasPrefix(e.Error(), "redis: ") {
		return nil, redis.ReplyError(e.Error())
	}
	if errors.Is(err, goredislib.Nil) {
		return nil, nil
	}
	return cmd.Val(), err
}
