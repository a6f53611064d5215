package redis_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	goredislib "github.com/redis/go-redis/v9"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/redis"
	"github.com/stet-go/stet/store/redis/goredis"
)

// as returns a client of a user with these rights.
func as(t *testing.T, rights ...string) conn {
	t.Helper()
	server, name := rig.Redis(t), "user-"+stet.NewKey()
	if _, err := server.CLI(t.Context(), append([]string{"ACL", "SETUSER", name, "on", ">secret"}, rights...)...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = server.CLI(context.Background(), "ACL", "DELUSER", name) })
	c, err := goredis.Open(&goredislib.UniversalOptions{Addrs: []string{server.Addr()}, Username: name, Password: "secret"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// A new user of Redis has no channels.
func TestUserWithoutChannelsSettlesAndSweeps(t *testing.T) {
	var log stettest.Log
	s := open(t, as(t, "~*", "+@all"), redis.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	watch := func(rec store.Record) {
		ctx, cancel := context.WithTimeout(t.Context(), 700*time.Millisecond) // it looks once within
		defer cancel()
		end, _ := ctx.Deadline()
		// A call that is in progress then says in its own words that its time was up.
		if err := s.Watch(ctx, rec.ID, rec.Fence); err == nil || time.Now().Before(end) || strings.Contains(err.Error(), "refused") {
			t.Errorf("Watch returned %v, %v before the end of its context; want it to watch until then", err, time.Until(end))
		}
	}
	if said := log.String(); !strings.Contains(said, "may not publish") || !strings.Contains(said, "&test-") {
		t.Errorf("New says %q", said)
	}
	rec := mustClaim(t, s, request("watched"))
	watch(rec)
	mustSettle(t, s, rec.Claim(), "x")
	if now := mustRead(t, s, rec.ID); now.State != store.Completed || string(now.Result.Body) != "x" {
		t.Errorf("settled: %+v", now)
	}
	var last store.Record
	for _, key := range []string{"first", "second"} {
		last = mustClaim(t, s, request(key))
		watch(last)
		if _, err := s.Extend(t.Context(), []store.Claim{last.Claim()}, time.Millisecond); err != nil {
			t.Fatal(err)
		}
	}
	stettest.Eventually(t, "the lease runs out", func() bool { return mustRead(t, s, last.ID).LeaseLeft <= 0 })
	if swept := sweepAll(t, s); swept.MarkedUnknown != 2 {
		t.Errorf("%d became unknown of 2 that are watched", swept.MarkedUnknown)
	}
}

// The first half of a script would be done.
func TestUserWithoutTheRightsOfTheScriptsIsRefused(t *testing.T) {
	for _, rights := range []string{"-zadd", "-setrange", "-hset", "-unlink", "-time", "-evalsha"} {
		_, err := redis.New(t.Context(), as(t, "~*", "&*", "+@all", rights), redis.Options{Logger: quiet})
		mustContain(t, err, "the user needs the commands")
	}
	_, err := redis.New(t.Context(), as(t, "~other:*", "&*", "+@all"), redis.Options{Logger: quiet})
	mustContain(t, err, "on keys and channels of the prefix")
	open(t, as(t, "~test-*", "&test-*", "+@all"), redis.Options{})
	few := []string{"~test-*", "&test-*"}
	for _, name := range strings.Fields("eval evalsha get mget set setrange exists persist pexpireat unlink hset hget hmget zadd zrem zscore zrange zrangebyscore zrangebylex zrandmember time publish subscribe scan info") {
		few = append(few, "+"+name)
	}
	s := open(t, as(t, few...), redis.Options{})
	mustSettle(t, s, mustClaim(t, s, request("k")).Claim(), "x")
}
