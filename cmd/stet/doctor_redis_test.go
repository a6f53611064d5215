package main

import (
	"maps"
	"strings"
	"testing"

	"github.com/stet-go/stet/internal/test/rig"
)

// durable are the settings of a server on which nothing is wrong.
var durable = map[string]string{"appendonly": "yes", "appendfsync": "always"}

func redisWith(t *testing.T, settings map[string]string) *rig.RedisServer {
	t.Helper()
	all := maps.Clone(durable)
	maps.Copy(all, settings)
	return rig.NewRedis(t, rig.RedisOptions{Settings: all})
}

// set changes a setting of a server that runs.
func set(t *testing.T, s *rig.RedisServer, name, value string) {
	t.Helper()
	if _, err := s.CLI(t.Context(), "CONFIG", "SET", name, value); err != nil {
		t.Fatal(err)
	}
}

// wrong are the checks of a server that failed.
func wrong(t *testing.T, s *rig.RedisServer) (names string, found map[string]finding) {
	t.Helper()
	status, found := examineJSON(t, "redis://"+s.Addr()+"/0")
	var list []string
	for _, name := range []string{"connects", "server", "eviction", "durability", "failover", "publishing", "claim", "final"} {
		if f, there := found[name]; there && !f.OK {
			list = append(list, name)
		}
	}
	if (status == exitOK) != (len(list) == 0) {
		t.Errorf("status %d, %v", status, found)
	}
	return strings.Join(list, " "), found
}

func TestDoctorFindsFaultsOfRedis(t *testing.T) {
	s := redisWith(t, nil)
	if names, found := wrong(t, s); names != "" || len(found) < 12 {
		t.Errorf("of a good server: %s, %v", names, found)
	}
	for _, c := range []struct{ setting, value, before, want string }{
		{"maxmemory-policy", "allkeys-lru", "noeviction", "connects"},
		{"maxmemory-policy", "volatile-ttl", "noeviction", "connects"},
		{"appendfsync", "everysec", "always", "durability"},
		{"appendonly", "no", "yes", "durability"},
	} {
		set(t, s, c.setting, c.value)
		if names, found := wrong(t, s); names != c.want || !strings.Contains(found[c.want].Found, c.value) && c.value != "no" {
			t.Errorf("%s is %s: %q, %v", c.setting, c.value, names, found)
		}
		set(t, s, c.setting, c.before)
	}
}

func TestDoctorFindsAReplicaAndAMasterWithoutMinReplicas(t *testing.T) {
	master := redisWith(t, nil)
	replica := rig.NewRedis(t, rig.RedisOptions{ReplicaOf: master, Settings: durable})
	if names, found := wrong(t, replica); names != "connects" || !strings.Contains(found["connects"].Found, "slave") {
		t.Errorf("the replica: %q, %v", names, found)
	}
	if names, found := wrong(t, master); names != "failover" {
		t.Errorf("the master: %q, %v", names, found)
	}
	set(t, master, "min-replicas-to-write", "1")
	if names, found := wrong(t, master); names != "" {
		t.Errorf("a master that minds: %q, %v", names, found)
	}
}

func TestDoctorReadsEveryMasterOfACluster(t *testing.T) {
	info := func(more ...string) map[string]string {
		m := map[string]string{"redis_version": "7.0.15", "role": "master", "maxmemory_policy": "noeviction", "aof_enabled": "1",
			"appendfsync": "always"}
		for i := 0; i < len(more); i += 2 {
			m[more[i]] = more[i+1]
		}
		return m
	}
	for want, all := range map[string]map[string]map[string]string{
		"":           {"a": info(), "b": info(), "c": info("role", "slave", "aof_enabled", "0")},
		"eviction":   {"a": info(), "b": info("maxmemory_policy", "allkeys-lfu")},
		"durability": {"": info("appendfsync", "everysec")},
		"failover":   {"a": info(), "b": info("connected_slaves", "1")},
	} {
		var wrong []string
		for _, f := range checkServers(all) {
			if !f.OK {
				wrong = append(wrong, f.Check)
				if f.Do == "" || len(all) > 1 && !strings.HasPrefix(f.Found, "b: ") {
					t.Errorf("%+v", f)
				}
			}
		}
		if strings.Join(wrong, " ") != want {
			t.Errorf("%v are wrong, want %q", wrong, want)
		}
	}
	for _, f := range checkServers(map[string]map[string]string{"": info("connected_slaves", "2", "min_slaves_good_slaves", "2")}) {
		if !f.OK {
			t.Errorf("got %+v; want f.OK", f)
		}
	}
}

func TestDoctorFindsAUserWithoutTheRightToPublish(t *testing.T) {
	s := redisWith(t, durable)
	if _, err := s.CLI(t.Context(), "ACL", "SETUSER", "app", "on", ">secret", "~*", "+@all"); err != nil {
		t.Fatal(err)
	}
	for channels, want := range map[string]bool{"&other:*": false, "&stet:*": true} {
		if _, err := s.CLI(t.Context(), "ACL", "SETUSER", "app", "resetchannels", channels); err != nil {
			t.Fatal(err)
		}
		_, found := examineJSON(t, "redis://app:secret@"+s.Addr()+"/0")
		if f, ok := found["publishing"]; !ok || f.OK != want || !want && !strings.Contains(f.Do, "&stet:*") {
			t.Errorf("with the channels %s: %+v", channels, f)
		}
	}
}
