package main

import (
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

// serverChecks return what a Redis server reports of itself and, if that is a fault, the remedy.
// Opening the store has refused servers that are too old, replicas, and the wrong policy of eviction.
var serverChecks = []struct {
	name  string
	check func(info map[string]string) (found, do string)
}{
	{"eviction", serverEviction}, {"durability", serverDurability}, {"failover", serverFailover}, {"publishing", serverPublishing}, {"memory", serverMemory}, {"persistence", serverPersistence},
}

// redisServers examines the servers of a URL.
func redisServers(ctx context.Context, c proxy.Store) []finding {
	o, err := redisClient(c)
	if err != nil {
		return []finding{bad("server", err.Error(), "correct the URL")}
	}
	conn, err := stetrueidis.Open(o)
	if err != nil {
		return []finding{bad("server", err.Error(), "is it up?")}
	}
	defer func() { _ = conn.Close() }()
	all, err := redis.Info(ctx, conn)
	if err != nil {
		return []finding{bad("server", err.Error(), "may this user call INFO?")}
	}
	return checkServers(all)
}

// checkServers returns one finding of a check that all servers pass, and one for each server
// that does not. The replicas of a cluster are left out.
func checkServers(all map[string]map[string]string) (found []finding) {
	names := slices.Sorted(maps.Keys(all))
	if len(names) > 1 {
		names = slices.DeleteFunc(names, func(name string) bool { return all[name]["role"] != "master" })
	}
	for _, c := range serverChecks {
		wrong, last := 0, ""
		for _, name := range names {
			text, do := c.check(all[name])
			if last = text; do != "" {
				wrong++
				found = append(found, bad(c.name, strings.TrimPrefix(name+": "+text, ": "), do))
			}
		}
		if wrong == 0 {
			found = append(found, ok(c.name, "%s", last))
		}
	}
	return found
}

func serverEviction(info map[string]string) (found, do string) {
	policy := info["maxmemory_policy"]
	if policy != "noeviction" {
		return "maxmemory-policy is " + policy + ": out of memory, the server forgets claims and outcomes, and operations run twice",
			"CONFIG SET maxmemory-policy noeviction, and in redis.conf"
	}
	return "maxmemory-policy is noeviction", ""
}

func serverDurability(info map[string]string) (found, do string) {
	const remedy = "set appendonly yes and appendfsync always, and read what docs/guarantees.md says of Redis"
	fsync, known := info["appendfsync"]
	switch {
	case info["aof_enabled"] != "1":
		return "no append-only file: if the server crashes, it loses all records", remedy
	case !known:
		return "an append-only file; the server does not report appendfsync", ""
	case fsync != "always":
		return "appendfsync is " + fsync + ": if the host crashes, the last outcomes are lost", remedy
	}
	return "an append-only file, and appendfsync is always", ""
}

func serverFailover(info map[string]string) (found, do string) {
	replicas, _ := strconv.Atoi(info["connected_slaves"])
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

func serverPublishing(info map[string]string) (found, do string) {
	if why := info["may not publish"]; why != "" {
		return "callers that wait for a run get its outcome up to a second late: " + why,
			"ACL SETUSER the user with the channels of the prefix, such as &stet:*; users have none by default"
	}
	return "waiting callers are notified when a run ends", ""
}

// fullShare is the share of maxmemory, in percent, above which a server is nearly full.
const fullShare = 90

func serverMemory(info map[string]string) (found, do string) {
	used, _ := strconv.ParseFloat(info["used_memory"], 64)
	limit, _ := strconv.ParseFloat(info["maxmemory"], 64)
	if limit == 0 {
		return fmt.Sprintf("%.0f MiB are used, without a limit (maxmemory)", used/(1<<20)), ""
	}
	share := 100 * used / limit
	found = fmt.Sprintf("%.0f MiB of %.0f MiB are used (%.0f %%)", used/(1<<20), limit/(1<<20), share)
	if share > fullShare {
		return found + "; a full server refuses new operations", "raise maxmemory, or shorten the retention of results"
	}
	return found, ""
}

func serverPersistence(info map[string]string) (found, do string) {
	for _, name := range []string{"aof_last_write_status", "aof_last_bgrewrite_status", "rdb_last_bgsave_status"} {
		if status := info[name]; status != "" && status != "ok" {
			return name + " is " + status + ": the server could not write to its disk", "look at the server's log and at the free space of its disk"
		}
	}
	return "the last writes to disk have succeeded", ""
}
