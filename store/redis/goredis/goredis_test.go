package goredis_test

import (
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stet-go/stet/store/redis/goredis"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestClientsThatRepeatCommandsAreRefused(t *testing.T) {
	for want, o := range map[string]*redis.Options{
		"MaxRetries":            {ContextTimeoutEnabled: true},
		"ContextTimeoutEnabled": {MaxRetries: -1},
		"":                      {MaxRetries: -1, ContextTimeoutEnabled: true},
	} {
		c := redis.NewClient(o)
		_, err := goredis.New(c)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%+v: %v; want it to say %q", o, err, want)
		}
		_ = c.Close()
	}
	for want, o := range map[string]*redis.ClusterOptions{
		"MaxRetries":            {ContextTimeoutEnabled: true, MaxRetries: 3},
		"ContextTimeoutEnabled": {MaxRetries: -1},
		"replicas":              {MaxRetries: -1, ContextTimeoutEnabled: true, ReadOnly: true},
	} {
		o.Addrs = []string{"127.0.0.1:1"}
		c := redis.NewClusterClient(o)
		if _, err := goredis.New(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("a cluster's %+v: %v; want it to say %q", o, err, want)
		}
		_ = c.Close()
	}
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": "127.0.0.1:1"}})
	defer ring.Close()
	if _, err := goredis.New(ring); err == nil {
		t.Error("a ring, which shards by itself, was accepted")
	}
	if _, err := goredis.Open(nil); err == nil {
		t.Error("Open took no options")
	}
}

func TestOpenSetsTheOptionsForSafety(t *testing.T) {
	o := &redis.UniversalOptions{Addrs: []string{"127.0.0.1:1"}, MaxRetries: 5}
	c, err := goredis.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if o.MaxRetries != 5 || o.ContextTimeoutEnabled {
		t.Error("Open has changed the caller's options")
	}
}
