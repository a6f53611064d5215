package redis_test

import (
	"errors"
	"testing"

	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/store/redis"
)

// It is asked of servers that New refuses, too, through every adapter.
func TestInfoIsReadFromServersOfEveryKind(t *testing.T) {
	server := rig.NewRedis(t, rig.RedisOptions{Settings: map[string]string{
		"maxmemory-policy": "allkeys-lru", "appendonly": "yes", "appendfsync": "always",
	}})
	for _, l := range libraries {
		all, err := redis.Info(t.Context(), dial(t, l, server.Addr()))
		if err != nil {
			t.Errorf("%s: %v", l.name, err)
			continue
		}
		for field, want := range map[string]string{"role": "master", "maxmemory_policy": "allkeys-lru", "aof_enabled": "1", "appendfsync": "always"} {
			if got := all[""][field]; got != want {
				t.Errorf("%s: %s is %q, want %q", l.name, field, got, want)
			}
		}
	}
}

func TestInfoDoesWithoutTheRightToReadSettings(t *testing.T) {
	for what, config := range map[string]func() (any, error){
		"refused": func() (any, error) { return nil, redis.ReplyError("NOPERM this user has no permissions") },
		"empty":   func() (any, error) { return []any{}, nil },
		"other":   func() (any, error) { return int64(1), nil },
	} {
		all, err := redis.Info(t.Context(), clientFunc(func(args []string) (any, error) {
			if args[0] == "CONFIG" {
				return config()
			}
			return "role:master\r\n", nil
		}))
		if _, told := all[""]["appendfsync"]; err != nil || told || all[""]["role"] != "master" {
			t.Errorf("%s: %v, %v", what, all, err)
		}
	}
	_, err := redis.Info(t.Context(), clientFunc(func([]string) (any, error) { return nil, errors.New("no route") }))
	mustContain(t, err, "no route")
}
