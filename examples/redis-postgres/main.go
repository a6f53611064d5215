// Command redis-postgres shows how an effect in PostgreSQL happens once while the
// claims are in Redis. Redis cannot share the business transaction, and after a
// crash or a failover it may have forgotten a claim; so the business's own write
// compares the operation, or the fence.
//
//	REDIS=localhost:6379 DATABASE_URL=postgres://localhost/bank go run ./redis-postgres
package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/rueidis"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store/redis"
	stetrueidis "github.com/stet-go/stet/store/redis/rueidis"
)

func main() {
	if err := run(context.Background(), os.Getenv("REDIS"), os.Getenv("DATABASE_URL")); err != nil {
		fmt.Fprintln(os.Stderr, "redis-postgres:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, redisAddr, databaseURL string) (err error) {
	client, err := stetrueidis.Open(rueidis.ClientOption{InitAddress: []string{redisAddr}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, client.Close()) }()
	store, err := redis.New(ctx, client, redis.Options{Prefix: "bank"})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	engine, err := stet.New(store, stet.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, engine.Close()) }()
	db, err := pgxpool.New(ctx, databaseURL)
	if err != nil {
		return err
	}
	defer db.Close()
	if _, err := db.Exec(ctx, schema); err != nil {
		return err
	}
	b := bank{engine, db}
	key := stet.NewKey()
	for range 3 {
		res, err := b.deposit(ctx, "acct_1", key, 100)
		if err != nil {
			return err
		}
		fmt.Printf("balance %d (replayed: %t)\n", res.Value, res.Replayed)
	}
	return nil
}
