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
	"sync/atomic"
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

// serverChecks are the results of inspections: claims are refused while a server is unfit.
type serverChecks struct {
	err    atomic.Pointer[unfit]
	warned sync.Map // so that each warning is logged once
}

// refusal returns why claims are refused, nil if they are not.
func (c *serverChecks) refusal() error {
	if err := c.err.Load(); err != nil {
		return fmt.Errorf("claims are refused, and nothing is executed: %w", err)
	}
	return nil
}

// set stores the result of an inspection and reports whether it has changed.
func (c *serverChecks) set(err *unfit) bool {
	was := c.err.Swap(err)
	return (err == nil) != (was == nil) || err != nil && *err != *was
}

// first reports whether a warning is given for the first time.
func (c *serverChecks) first(warning string) bool {
	_, given := c.warned.LoadOrStore(warning, true)
	return !given
}

// inspectRegularly inspects the servers until ctx ends. While they do not answer, the last
// result stays. While claims are refused it inspects more often: after a failover a server is
// soon fit again, or replaced.
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
		if !s.checks.set(found) {
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
	all, err := servers(ctx, s.client)
	if err != nil {
		return err
	}
	names := slices.Sorted(maps.Keys(all))
	infos := make([]map[string]string, len(names))
	_, unasked := first(s.each(len(names), func(i int) (err error) {
		infos[i], err = askInfo(ctx, all[names[i]])
		return err
	}))
	for i, info := range infos {
		name := names[i]
		if info == nil || info["role"] != "master" && s.cluster {
			continue
		}
		if err := s.checkServer(info); err != nil {
			return err
		}
		if info["aof_enabled"] == "0" && s.checks.first(name) {
			s.o.Logger.LogAttrs(ctx, slog.LevelWarn, "stet: a Redis server keeps no append-only file: after a crash it has lost records, and operations run twice; set appendonly yes",
				slog.String("server", name))
		}
		if n, err := strconv.Atoi(info["connected_slaves"]); err == nil && n < s.o.Replicas && s.checks.first("replicas "+name) {
			s.o.Logger.LogAttrs(ctx, slog.LevelWarn, "stet: a Redis server has fewer replicas than Options.Replicas: nothing runs until it has enough",
				slog.String("server", name), slog.Int("replicas", n))
		}
	}
	if unasked != nil {
		return explain("inspect the server", unasked)
	}
	return nil
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

// checkServer returns an unfit if the store cannot keep its promises on a server.
func (s *Store) checkServer(info map[string]string) error {
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
