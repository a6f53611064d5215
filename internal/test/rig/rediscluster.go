package rig

import (
	"context"
	"fmt"
	"strings"
	"testing"
)

// slots is how many hash slots a Redis Cluster has.
const slots = 16384

// RedisCluster is a Redis Cluster of masters without replicas.
type RedisCluster struct{ Servers []*RedisServer }

// StartRedisCluster starts a cluster of n servers, which share the slots evenly.
func (r *Rig) StartRedisCluster(ctx context.Context, n int, o RedisOptions) (*RedisCluster, error) {
	settings := map[string]string{"cluster-enabled": "yes", "cluster-node-timeout": "5000"}
	for name, value := range o.Settings {
		settings[name] = value
	}
	c := &RedisCluster{}
	for range n {
		s, err := r.StartRedis(ctx, RedisOptions{Settings: settings})
		if err != nil {
			return nil, err
		}
		c.Servers = append(c.Servers, s)
	}
	for i, s := range c.Servers {
		first, last := i*slots/n, (i+1)*slots/n-1
		if _, err := s.CLI(ctx, "CLUSTER", "ADDSLOTSRANGE", fmt.Sprint(first), fmt.Sprint(last)); err != nil {
			return nil, err
		}
		if _, err := s.CLI(ctx, "CLUSTER", "SET-CONFIG-EPOCH", fmt.Sprint(i+1)); err != nil {
			return nil, err
		}
	}
	for _, s := range c.Servers[1:] {
		if _, err := s.CLI(ctx, "CLUSTER", "MEET", "127.0.0.1", fmt.Sprint(c.Servers[0].port)); err != nil {
			return nil, err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	return c, poll(ctx, func() bool {
		for _, s := range c.Servers {
			info, err := s.CLI(ctx, "CLUSTER", "INFO")
			if err != nil || !knowsAll(info, n) {
				return false
			}
		}
		return true
	})
}

// knowsAll tells whether a server that answered CLUSTER INFO knows n servers and which of
// them has each slot. A state of "ok" is not enough: without full coverage a server is
// "ok" while it has yet to hear whose most of the slots are.
func knowsAll(info string, n int) bool {
	for _, line := range []string{"cluster_state:ok", fmt.Sprintf("cluster_slots_ok:%d", slots), fmt.Sprintf("cluster_known_nodes:%d", n)} {
		if !strings.Contains(info, line+"\r\n") && !strings.Contains(info, line+"\n") {
			return false
		}
	}
	return true
}

// Addrs are the addresses of the servers.
func (c *RedisCluster) Addrs() (addrs []string) {
	for _, s := range c.Servers {
		addrs = append(addrs, s.Addr())
	}
	return addrs
}

// Move moves n slots, with their keys, from one server to another.
func (c *RedisCluster) Move(ctx context.Context, from, to, n int) error {
	ids := make([]string, len(c.Servers))
	for i, s := range c.Servers {
		var err error
		if ids[i], err = s.CLI(ctx, "CLUSTER", "MYID"); err != nil {
			return err
		}
	}
	_, err := c.Servers[0].CLI(ctx, "--cluster", "reshard", c.Servers[0].Addr(),
		"--cluster-from", ids[from], "--cluster-to", ids[to], "--cluster-slots", fmt.Sprint(n), "--cluster-yes")
	return err
}

// NewRedisCluster starts a cluster of n servers for this test alone. It ends with
// the test.
func NewRedisCluster(t testing.TB, n int, o RedisOptions) *RedisCluster {
	t.Helper()
	c := start(t, func(r *Rig) (*RedisCluster, error) { return r.StartRedisCluster(t.Context(), n, o) })
	for _, s := range c.Servers {
		end(t, s.Server)
	}
	return c
}
