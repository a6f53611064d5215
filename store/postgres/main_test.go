package postgres

import (
	"context"
	"flag"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/internal/test/stettest"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	// Most of the tests that run side by side wait for a server's clock.
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(rig.Main(m))
}

// database returns a pool to a fresh database.
func database(t testing.TB) *pgxpool.Pool {
	t.Helper()
	return connect(t, rig.Postgres(t).Database(t))
}

func connect(t testing.TB, url string) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	config.MaxConns = 16
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// another returns a pool to the database of pool, so that tests which run side by side do
// not wait for each other's connections.
func another(t testing.TB, pool *pgxpool.Pool) *pgxpool.Pool {
	t.Helper()
	own, err := pgxpool.NewWithConfig(context.Background(), pool.Config())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(own.Close)
	return own
}

// open opens a store on a migrated database; pool is a fresh one if nil.
func open(t testing.TB, pool *pgxpool.Pool, o Options) *Store {
	t.Helper()
	if pool == nil {
		pool = database(t)
	}
	if err := Migrate(context.Background(), pool, o); err != nil {
		t.Fatal(err)
	}
	s, err := New(context.Background(), pool, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	if d := theDefect(t); d.own() {
		d.plant(t, s)
	}
	return s
}

// execSQL executes sql.
func execSQL(t testing.TB, pool *pgxpool.Pool, sql string, args ...any) {
	t.Helper()
	if _, err := pool.Exec(context.Background(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// What tests of stores share.
var (
	keep               = stettest.Keep
	request, completed = stettest.Request, stettest.Completed

	mustClaim, mustSettle, mustRead = stettest.Claim, stettest.Settle, stettest.Read
	mustAccept, mustTake            = stettest.Accept, stettest.Take
)
