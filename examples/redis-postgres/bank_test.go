package main

import (
	"context"
	"errors"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/rueidis"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/store/redis"
	stetrueidis "github.com/stet-go/stet/store/redis/rueidis"
)

func TestMain(m *testing.M) { os.Exit(rig.Main(m).Run()) }

// newBank returns a bank, and the Redis server where it claims.
func newBank(t *testing.T, p stet.Policy) (bank, *rig.RedisServer) {
	server := rig.NewRedis(t, rig.RedisOptions{})
	client, err := stetrueidis.Open(rueidis.ClientOption{InitAddress: []string{server.Addr()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	store, err := redis.New(t.Context(), client, redis.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	engine, err := stet.New(store, stet.Options{Policy: p})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = engine.Close() })
	db, err := pgxpool.New(t.Context(), rig.Postgres(t).Database(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	if _, err := db.Exec(t.Context(), schema); err != nil {
		t.Fatal(err)
	}
	return bank{engine, db}, server
}

func (b bank) balance(t *testing.T) (cents int64) {
	t.Helper()
	if err := b.db.QueryRow(t.Context(), "SELECT balance FROM accounts WHERE id = 'acct_1'").Scan(&cents); err != nil {
		t.Fatal(err)
	}
	return cents
}

func TestDepositHappensOnceAlthoughRedisForgets(t *testing.T) {
	b, server := newBank(t, stet.Policy{Wait: 10 * time.Second})
	for round := range 3 {
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				if res, err := b.deposit(t.Context(), "acct_1", "order 7", 100); err != nil || res.Value != 100 {
					t.Errorf("round %d: %+v, %v; want the balance 100", round, res, err)
				}
			})
		}
		wg.Wait()
		if _, err := server.CLI(t.Context(), "FLUSHALL"); err != nil { // as after a crash without an append-only file
			t.Fatal(err)
		}
	}
	if got := b.balance(t); got != 100 {
		t.Errorf("the balance is %d; want 100, of one deposit", got)
	}
}

func TestZombieCannotOverwriteItsSuccessor(t *testing.T) {
	b, _ := newBank(t, stet.Policy{Lease: 200 * time.Millisecond, Stale: stet.MayRunAgain()})
	op := stet.Op{Scope: "acct_1", Key: "move 1"}
	zombie, err := b.engine.Begin(t.Context(), op)
	if err != nil {
		t.Fatal(err)
	}
	other, err := stet.New(b.engine.Store(), stet.Options{Policy: stet.Policy{Stale: stet.MayRunAgain()}})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	_ = b.engine.Close() // the zombie's lease is not renewed any more
	var res stet.Result[int64]
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		res, err = stet.Do(t.Context(), other, op, func(ctx context.Context) (int64, error) {
			fence := stet.FromContext(ctx).Fence()
			return fence, b.move(ctx, "acct_1", "new street 1", fence)
		})
		if stet.KindOf(err) != stet.KindInFlight {
			break
		}
	}
	if err != nil || res.Value <= zombie.Fence() {
		t.Fatalf("the takeover: %+v, %v; want a fence above %d", res, err, zombie.Fence())
	}
	if err := b.move(t.Context(), "acct_1", "zombie lane 13", zombie.Fence()); !errors.Is(err, errStale) {
		t.Errorf("the zombie's write: %v; want it refused", err)
	}
	var address string
	if err := b.db.QueryRow(t.Context(), "SELECT address FROM addresses WHERE account = 'acct_1'").Scan(&address); err != nil || address != "new street 1" {
		t.Errorf("the address is %q, %v", address, err)
	}
}

func TestCommandRuns(t *testing.T) {
	if err := run(t.Context(), rig.Redis(t).Addr(), rig.Postgres(t).Database(t)); err != nil {
		t.Fatal(err)
	}
}
