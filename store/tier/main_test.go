package tier_test

import (
	"context"
	"flag"
	"log/slog"
	"path/filepath"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/rueidis"
	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/postgres"
	"github.com/stet-go/stet/store/redis"
	stetrueidis "github.com/stet-go/stet/store/redis/rueidis"
	"github.com/stet-go/stet/store/sqlite"
	"github.com/stet-go/stet/store/tier"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	// Most of the tests that run side by side wait for a server's clock.
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(rig.Main(m))
}

// dial returns a client that closes with the test.
func dial(t testing.TB, addr string) redis.Client {
	t.Helper()
	c, err := stetrueidis.Open(rueidis.ClientOption{InitAddress: []string{addr}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// openRedis returns a store that no other test uses.
func openRedis(t testing.TB, c redis.Client) *redis.Store {
	t.Helper()
	s, err := redis.New(t.Context(), c, redis.Options{Prefix: "test-" + stet.NewKey(), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// openPostgres returns a store of its own in a database.
func openPostgres(t testing.TB, url string) *postgres.Store {
	t.Helper()
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	config.MaxConns = 8
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	o := postgres.Options{Schema: stet.NewKey()}
	if err := postgres.Migrate(t.Context(), pool, o); err != nil {
		t.Fatal(err)
	}
	s, err := postgres.New(t.Context(), pool, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// openSQLite returns a store in a file of its own.
func openSQLite(t testing.TB) *sqlite.Store {
	t.Helper()
	s, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "stet.db"), sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// over returns the tier of two stores.
func over[Tx any](t testing.TB, front store.Store, back store.TxStore[Tx], o tier.Options) *tier.Store {
	t.Helper()
	s, err := tier.New(front, back, o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// What tests of stores share.
var (
	keep                            = stettest.Keep
	request, completed              = stettest.Request, stettest.Completed
	mustClaim, mustSettle, mustRead = stettest.Claim, stettest.Settle, stettest.Read
)
