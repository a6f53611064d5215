package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/stet-go/stet/internal/proxy"
	"github.com/stet-go/stet/store/redis"
	stetrueidis "github.com/stet-go/stet/store/redis/rueidis"
)

// serverCheck is a look at what a Redis server says of itself.
type serverCheck struct {
	name string
	// look returns its finding and, if that is a fault, the remedy.
	look func(info map[string]string) (found, do string)
}

var serverChecks = []serverCheck{
	{"server", serverVersion}, {"role", serverRole}, {"eviction", serverEviction}, {"memory", serverMemory},
	{"durability", serverDurability}, {"writes", serverWrites}, {"failover", serverFailover}, {"connections", serverConnections},
	{"publishing", serverPublishing},
}

// redisServers examines the servers of a URL, also those that the store refuses. It returns nil
// if they cannot be reached; opening the store reports that.
func redisServers(ctx context.Context, c proxy.Store) []finding {
	o, err := redisClient(c)
	if err != nil {
		return nil
	}
	conn, err := stetrueidis.Open(o)
	if err != nil {
		return nil
	}
	defer func() { _ = conn.Close() }()
	all, err := redis.Info(ctx, conn)
	if err != nil {
		return nil
	}
	return judgeServers(all)
}

// judgeServers makes one finding of a check that all servers pass, and one of each
// that does not. Of a cluster, the replicas do not count.
func judgeServers(all map[string]map[string]string) (found []finding) {
	names := slices.Sorted(maps.Keys(all))
	replica := func(name string) bool { return all[name]["role"] != "master" }
	if masters := slices.DeleteFunc(slices.Clone(names), replica); len(masters) > 0 && len(names) > 1 {
		names = masters // else all are looked at, and found to be replicas
	}
	for _, c := range serverChecks {
		wrong := 0
		var last string
		for _, name := range names {
			said, do := c.look(all[name])
			last = said
			if do == "" {
				continue
			}
			wrong++
			if name != "" {
				said = name + ": " + said
			}
			found = append(found, bad(c.name, said, do))
		}
		switch {
		case wrong > 0:
		case len(names) > 1:
			found = append(found, ok(c.name, "%s; well on all %d masters", last, len(names)))
		default:
			found = append(found, ok(c.name, "%s", last))
		}
	}
	return found
}

func serverVersion(info map[string]string) (found, do string) {
	version := info["redis_version"]
	major, _, _ := strings.Cut(version, ".")
	if n, err := strconv.Atoi(major); err != nil || n < 7 {
		return fmt.Sprintf("version %q", version), "Redis 7.0 or later is needed"
	}
	return "Redis " + version, ""
}

func serverRole(info map[string]string) (found, do string) {
	if role := info["role"]; role != "master" {
		return cmp.Or(role, "unknown") + ", which cannot be written to", "connect to the master; Sentinel knows it"
	}
	return "master", ""
}

func serverEviction(info map[string]string) (found, do string) {
	policy := info["maxmemory_policy"]
	if policy != "noeviction" {
		return "maxmemory-policy is " + policy + ": out of memory, the server forgets claims and outcomes, and operations run twice",
			"CONFIG SET maxmemory-policy noeviction, and in redis.conf"
	}
	return "maxmemory-policy is noeviction", ""
}

// fullness is above what share of a limit a server counts as full, in per cent.
const fullness = 80

func serverMemory(info map[string]string) (found, do string) {
	used, limit := number(info["used_memory"]), number(info["maxmemory"])
	switch {
	case limit == 0:
		return fmt.Sprintf("%d MiB in use, without a maxmemory", used>>20), ""
	case used*100 > limit*fullness:
		return fmt.Sprintf("%d of %d MiB are in use", used>>20, limit>>20),
			"raise maxmemory, or shorten the retention: at the limit nothing is claimed, and running leases are lost"
	}
	return fmt.Sprintf("%d of %d MiB are in use", used>>20, limit>>20), ""
}

func serverDurability(info map[string]string) (found, do string) {
	const remedy = "set appendonly yes and appendfsync always, and read what docs/guarantees.md says of Redis"
	fsync, told := info["appendfsync"]
	switch {
	case info["aof_enabled"] != "1":
		return "no append-only file: if the server crashes, it loses all records", remedy
	case !told:
		return "an append-only file; how often it is synced the server does not tell", ""
	case fsync != "always":
		return "appendfsync is " + fsync + ": if the host crashes, the last outcomes are lost", remedy
	}
	return "an append-only file, and appendfsync is always", ""
}

func serverWrites(info map[string]string) (found, do string) {
	for _, name := range []string{"aof_last_write_status", "aof_last_bgrewrite_status", "rdb_last_bgsave_status"} {
		if status := info[name]; status != "" && status != "ok" {
			return name + " is " + status, "is the disk full? Until the server can write, it may refuse all claims (MISCONF)"
		}
	}
	return "the last writes to the disk went well", ""
}

func serverFailover(info map[string]string) (found, do string) {
	replicas := number(info["connected_slaves"])
	_, guarded := info["min_slaves_good_slaves"]
	switch {
	case replicas == 0:
		return "no replica is connected", ""
	case !guarded:
		return fmt.Sprintf("%d replicas, and a master that is cut off from them continues to grant claims", replicas),
			"set min-replicas-to-write 1, and min-replicas-max-lag below Sentinel's down-after-milliseconds"
	}
	return fmt.Sprintf("%d replicas, without which the master takes no writes", replicas), ""
}

func serverConnections(info map[string]string) (found, do string) {
	used, limit := number(info["connected_clients"]), number(info["maxclients"])
	switch {
	case limit == 0:
		return fmt.Sprintf("%d are in use", used), ""
	case used*100 > limit*fullness:
		return fmt.Sprintf("%d of %d are in use", used, limit), "raise maxclients, or look who has so many"
	}
	return fmt.Sprintf("%d of %d are in use", used, limit), ""
}

func serverPublishing(info map[string]string) (found, do string) {
	if why := info["may not publish"]; why != "" {
		return "callers that wait for a run learn of its end up to a second late: " + why,
			"ACL SETUSER the user with the channels of the prefix, such as &stet:*; users have none by default"
	}
	return "waiting callers are notified when a run ends", ""
}

// number is a field of INFO, 0 if it is none.
func number(s string) uint64 {
	n, _ := strconv.ParseUint(s, 10, 64)
	return n
}
