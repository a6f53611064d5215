package redis

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/stet-go/stet/internal/timer"
)

const (
	minVersion   = 7
	checkTimeout = 10 * time.Second
	recheckEvery = 2 * time.Second // at the most, while claims are refused
)

// unfit is a server on which the store cannot keep its promises.
type unfit struct{ why string }

func (e *unfit) Error() string { return "redis: " + e.why }

// guard keeps claims from servers that have become unfit.
type guard struct {
	mu     sync.Mutex
	err    *unfit
	warned map[string]bool // so that nothing is said twice
}

// refusal returns why claims are refused, nil if they are not.
func (g *guard) refusal() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.err == nil {
		return nil
	}
	return fmt.Errorf("claims are refused, and nothing is executed: %w", g.err)
}

// set notes what an inspection has found, and reports whether that is news.
func (g *guard) set(err *unfit) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	news := (err == nil) != (g.err == nil) || err != nil && *err != *g.err
	g.err = err
	return news
}

// first reports whether a warning is given for the first time.
func (g *guard) first(warning string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.warned == nil {
		g.warned = make(map[string]bool)
	}
	if g.warned[warning] || len(g.warned) > 1000 {
		return false
	}
	g.warned[warning] = true
	return true
}

// inspectRegularly inspects the servers until ctx ends. While they cannot be
// asked, what was found last stands. While claims are refused it looks more often:
// a server that a failover was just demoting is fit again, or replaced, soon.
func (s *Store) inspectRegularly(ctx context.Context) {
	pause := s.o.CheckEvery
	for timer.Sleep(ctx, pause) {
		limited, cancel := context.WithTimeout(ctx, checkTimeout)
		err := s.inspect(limited)
		cancel()
		found, is := errors.AsType[*unfit](err)
		if err != nil && !is {
			continue
		}
		pause = s.o.CheckEvery
		if found != nil {
			pause = min(pause, recheckEvery)
		}
		if !s.guard.set(found) {
			continue
		}
		if found != nil {
			s.o.Logger.LogAttrs(ctx, slog.LevelError, "stet: claims are refused", slog.String("why", found.why))
		} else {
			s.o.Logger.LogAttrs(ctx, slog.LevelInfo, "stet: claims are granted again")
		}
	}
}

// inspect asks all servers whether the store can keep its promises on them.
func (s *Store) inspect(ctx context.Context) error {
	servers, err := s.servers(ctx)
	if err != nil {
		return err
	}
	names := slices.Sorted(maps.Keys(servers))
	infos := make([]map[string]string, len(names))
	unasked, _ := first(s.each(len(names), func(i int) (err error) {
		infos[i], err = askInfo(ctx, servers[names[i]])
		return err
	}))
	for i, info := range infos {
		name := names[i]
		if info == nil || info["role"] != "master" && s.cluster {
			continue
		}
		if err := s.judge(info); err != nil {
			return err
		}
		if info["aof_enabled"] == "0" && s.guard.first(name) {
			s.o.Logger.LogAttrs(ctx, slog.LevelWarn, "stet: a Redis server keeps no append-only file: if it crashes, it forgets what has run, and operations run twice; set appendonly yes",
				slog.String("server", name))
		}
		if n, err := strconv.Atoi(info["connected_slaves"]); err == nil && n < s.o.Replicas && s.guard.first("replicas "+name) {
			s.o.Logger.LogAttrs(ctx, slog.LevelWarn, "stet: a Redis server has fewer replicas than Options.Replicas: nothing runs until it has enough",
				slog.String("server", name), slog.Int("replicas", n))
		}
	}
	if unasked != nil {
		return explain("inspect the server", unasked)
	}
	return nil
}

func (s *Store) servers(ctx context.Context) (map[string]Client, error) {
	return servers(ctx, s.client)
}

// servers returns a client for each server.
func servers(ctx context.Context, client Client) (map[string]Client, error) {
	c, ok := client.(Cluster)
	if !ok {
		return map[string]Client{"": client}, nil
	}
	servers, err := c.Servers(ctx)
	if err == nil && len(servers) == 0 {
		err = errors.New("the cluster has no servers")
	}
	if err != nil {
		return nil, explain("list the cluster's servers", err)
	}
	return servers, nil
}

// askInfo returns the fields of a server's INFO.
func askInfo(ctx context.Context, c Client) (map[string]string, error) {
	reply, err := c.Do(ctx, "", "INFO")
	if err != nil {
		return nil, err
	}
	text, ok := reply.(string)
	if !ok {
		return nil, errReply(reply)
	}
	info := make(map[string]string)
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			info[name] = value
		}
	}
	return info, nil
}

// judge returns an unfit if the store cannot keep its promises on a server.
func (s *Store) judge(info map[string]string) error {
	major, _, _ := strings.Cut(info["redis_version"], ".")
	switch n, err := strconv.Atoi(major); {
	case err != nil || n < minVersion:
		return &unfit{fmt.Sprintf("the server is version %q; Redis %d.0 or later is needed", info["redis_version"], minVersion)}
	case info["role"] != "master":
		return &unfit{fmt.Sprintf("the server's role is %q; connect to the master", info["role"])}
	case info["cluster_enabled"] == "1" && !s.cluster:
		return &unfit{"the server is part of a cluster; give New a client of clusters"}
	case info["maxmemory_policy"] != "noeviction" && !s.o.AllowEviction:
		return &unfit{fmt.Sprintf("the server's maxmemory-policy is %q, which lets it forget live claims and outcomes; set it to noeviction", info["maxmemory_policy"])}
	}
	return nil
}
