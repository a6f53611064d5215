package main

import (
	"context"
	"fmt"
	"log/slog"

	goredislib "github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"

	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/redis"
	"github.com/stet-go/stet/store/redis/goredis"
	stetrueidis "github.com/stet-go/stet/store/redis/rueidis"
)

// cluster measures pairs on a cluster of three servers without persistence, through both client
// libraries.
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
	goClient, err := goredis.Open(&goredislib.UniversalOptions{Addrs: c.Addrs(), PoolSize: goRedisConns})
	if err != nil {
		return err
	}
	defer goClient.Close()
	ru, err := stetrueidis.Open(rueidis.ClientOption{InitAddress: c.Addrs()})
	if err != nil {
		return err
	}
	defer ru.Close()
	stores, spent := make(map[string]store.Store), make(map[string][]spending)
	names := []string{"goredis", "rueidis"}
	for i, client := range []redis.Client{goClient, ru} {
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
	return nil
}
