package postgres

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/rig"
	"github.com/stet-go/stet/store"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(rig.Main(m)) }

var keep = store.Retention{Result: time.Hour, Tombstone: 2 * time.Hour}

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
	return s
}

// execSQL executes sql.
func execSQL(t testing.TB, pool *pgxpool.Pool, sql string, args ...any) {
	t.Helper()
	if _, err := pool.Exec(context.Background(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func request(key string) store.ClaimRequest {
	return store.ClaimRequest{
		ID: store.Digest("", "test", key), Scope: store.DigestScope("", "test"),
		Fingerprint: stet.NewFingerprint([]byte(key)), Owner: store.NewOwner(), Lease: time.Minute,
	}
}

func completed(result string) store.Settlement {
	return store.Settlement{State: store.Completed, Result: store.Result{Head: []byte("not an engine's"), Body: []byte(result)}}
}

func mustClaim(t testing.TB, s store.Store, req store.ClaimRequest) store.Record {
	t.Helper()
	rec, err := s.Claim(context.Background(), req)
	if err != nil || rec.State != store.Running || rec.Owner != req.Owner {
		t.Fatalf("Claim: %+v, %v", rec, err)
	}
	return rec
}

func mustSettle(t testing.TB, s store.Store, c store.Claim, result string) {
	t.Helper()
	if err := s.Settle(context.Background(), c, completed(result), keep); err != nil {
		t.Fatalf("Settle: %v", err)
	}
}

func mustRead(t testing.TB, s store.Store, id store.ID) store.Record {
	t.Helper()
	rec, err := s.Read(context.Background(), id)
	if err != nil {
		t.Fatalf("Read: %v", err)
	}
	return rec
}
