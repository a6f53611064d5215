package tier_test

import (
	"fmt"
	"log/slog"
	"testing"

	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/redis"
	"github.com/stet-go/stet/store/tier"
)

// A master settles and claims keys after its replica has lost the connection. Then the replica is
// promoted, and every key is claimed again. This counts the keys that are granted a second time.
func TestFailoverRepeatsOnlyClaimsInFlight(t *testing.T) {
	const settled, running = 200, 50
	master := rig.NewRedis(t, rig.RedisOptions{})
	replica := rig.NewRedis(t, rig.RedisOptions{ReplicaOf: master})
	file := openSQLite(t)
	on := func(server *rig.RedisServer) *redis.Store {
		s, err := redis.New(t.Context(), dial(t, server.Addr()), redis.Options{Prefix: "stet", CheckEvery: -1, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		return s
	}
	old := on(master)
	if _, err := replica.CLI(t.Context(), "REPLICAOF", "NO", "ONE"); err != nil {
		t.Fatal(err)
	}
	key := func(kind string, with store.Store, i int) string { return fmt.Sprintf("%s, %T, %d", kind, with, i) }
	before := []store.Store{old, over(t, old, file, tier.Options{})}
	for _, s := range before {
		for i := range settled {
			mustSettle(t, s, mustClaim(t, s, request(key("settled", s, i))).Claim(), "done")
		}
		for i := range running {
			mustClaim(t, s, request(key("running", s, i)))
		}
	}
	promoted := on(replica)
	after := []store.Store{promoted, over(t, promoted, file, tier.Options{})}
	twice := func(kind string, n int, s store.Store) (again int) {
		for i := range n {
			req := request(key(kind, s, i))
			rec, err := s.Claim(t.Context(), req)
			if err != nil {
				t.Fatal(err)
			}
			if rec.State == store.Running && rec.Owner == req.Owner {
				again++
			}
		}
		return again
	}
	for i, s := range after {
		again, inFlight := twice("settled", settled, s), twice("running", running, s)
		t.Logf("%T: granted twice: %d of %d settled keys, %d of %d keys in flight", s, again, settled, inFlight, running)
		if wants := []int{settled, 0}[i]; again != wants {
			t.Errorf("%T: %d of %d settled keys were granted twice; want %d", s, again, settled, wants)
		}
		if inFlight != running {
			t.Errorf("%T: %d of %d lost claims in flight were granted again; the page says all", s, inFlight, running)
		}
	}
}
