// Command trips counts the round trips to the store of each call as a user makes it: exactly,
// by a proxy that reads the protocol of the store. It counts for PostgreSQL and Redis, for
// first requests, replays, duplicates in flight, and mismatches. Duplicates are sent
// by another engine, as by another process.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"

	"github.com/stet-go/stet/internal/test/rig"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "trips:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) (err error) {
	r, err := rig.New()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	figures, err := measure(ctx, r)
	for _, f := range figures {
		fmt.Printf("figure: trips_%s_%s_%s = %d trips\n", f.store, f.path, f.what, f.trips)
	}
	return err
}

// figure is how many round trips a call took.
type figure struct {
	store, path, what string
	trips             int64
}

// measure counts all paths on all stores.
func measure(ctx context.Context, r *rig.Rig) (all []figure, err error) {
	for _, measured := range []func(context.Context, *rig.Rig) ([]figure, error){measurePostgres, measureRedis} {
		figures, err := measured(ctx, r)
		if all = append(all, figures...); err != nil {
			return all, err
		}
	}
	return all, nil
}
