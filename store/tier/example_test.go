package tier_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/redis/rueidis"
	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/store/redis"
	stetrueidis "github.com/stet-go/stet/store/redis/rueidis"
	"github.com/stet-go/stet/store/sqlite"
	"github.com/stet-go/stet/store/tier"
)

func ExampleNew() {
	ctx := context.Background()
	servers := must(rig.New())
	defer servers.Close()
	client := must(stetrueidis.Open(rueidis.ClientOption{InitAddress: []string{must(servers.StartRedis(ctx, rig.RedisOptions{})).Addr()}}))
	defer client.Close()
	dir := must(os.MkdirTemp("", "tier"))
	defer func() { _ = os.RemoveAll(dir) }()

	claims := must(redis.New(ctx, client, redis.Options{}))
	defer claims.Close()
	outcomes := must(sqlite.Open(ctx, filepath.Join(dir, "outcomes.db"), sqlite.Options{}))
	defer outcomes.Close()
	s, err := tier.New(claims, outcomes, tier.Options{Hot: 10 * time.Minute})
	if err != nil {
		panic(err)
	}
	engine := must(stet.New(s, stet.Options{}))
	defer engine.Close()
	for range 2 {
		res, err := stet.Do(ctx, engine, stet.Op{Scope: "account 1", Key: "order 7"}, func(context.Context) (string, error) {
			return "charged", nil
		})
		fmt.Println(res.Value, res.Replayed, err)
	}
	// Output:
	// charged false <nil>
	// charged true <nil>
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
