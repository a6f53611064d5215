// Command contention measures what callers wait for each other: ten thousand with one key,
// 64 processes on one PostgreSQL database, and the locks of the engine and the memory store
// under as many callers as there are processors, and more. It fails if an operation is
// executed twice, or a caller gets another outcome than the first.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"time"

	"github.com/stet-go/stet/internal/rig"
)

var (
	callers   = flag.Int("callers", 10_000, "callers of the hot key")
	processes = flag.Int("processes", 64, "processes on one database")
	keys      = flag.Int("keys", 100, "keys that all processes ask for, each once")
	each      = flag.Duration("each", 4*time.Second, "how long the locks are watched in each setting")
	database  = flag.String("database", "", "of a process that this command starts")
)

func main() {
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	var err error
	if *database != "" {
		err = process(ctx, *database, *keys)
	} else {
		err = run(ctx)
	}
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "contention:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) (err error) {
	r, err := rig.New()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	for _, procs := range []int{2, 16} {
		if err := locks(ctx, procs); err != nil {
			return err
		}
	}
	server, err := r.StartPostgres(ctx, rig.PostgresOptions{})
	if err != nil {
		return err
	}
	if err := hotKeys(ctx, server); err != nil {
		return err
	}
	return manyProcesses(ctx, server)
}
