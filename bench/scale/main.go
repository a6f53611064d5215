// Command scale measures the cost of a claim, a settle, a replay and a sweep by the number of
// records: the same store with few and with many, side by side in short turns, so that other
// load on the machine affects all alike. It also prints the size of a record.
//
// The records of PostgreSQL and SQLite are made by SQL after the first, which an engine has
// written: the same columns, with the IDs and fingerprints of other keys. Engines then ask for
// some of them. It ends with an error if one is lost, or replayed when it has expired, not if
// something is slow.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stet-go/stet/bench/internal/rounds"
	"github.com/stet-go/stet/internal/test/rig"
)

const (
	callers   = 16
	sweepStep = 100 // records that one sweep looks at
	samples   = 200 // records that are asked for, of each kind
	recent    = 10  // turns whose records are asked for soon
	most      = 10_000_000
)

// options are the flags.
type options struct {
	stores []string
	sizes  map[string][]int // by store
	rounds int
	turn   int // operations of one turn
}

func main() {
	o := options{sizes: make(map[string][]int)}
	stores := flag.String("stores", "postgres,sqlite,redis", "which of them")
	sizes := flag.String("sizes", "10000,1000000,10000000", "how many records; the largest is for PostgreSQL alone")
	others := flag.Int("others", 1_000_000, "how many SQLite and Redis have at most")
	within := flag.Duration("within", 20*time.Minute, "how long all of it may take")
	flag.IntVar(&o.rounds, "rounds", 20, "how often each is measured")
	flag.IntVar(&o.turn, "turn", 256, "operations each time")
	flag.Parse()
	ctx, cancel := context.WithTimeoutCause(context.Background(), *within, fmt.Errorf("it took longer than %v (-within)", *within))
	defer cancel()
	err := o.choose(*stores, *sizes, *others)
	if err == nil {
		err = o.run(ctx)
	}
	if err != nil {
		if errors.Is(err, context.DeadlineExceeded) {
			err = fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
		fmt.Fprintln(os.Stderr, "scale:", err)
		os.Exit(1)
	}
}

// choose reads what the flags say.
func (o *options) choose(stores, sizes string, others int) error {
	var all []int
	for _, text := range strings.Split(sizes, ",") {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1000 || n > most {
			return fmt.Errorf("-sizes: %q is not a number from 1,000 to %d, which take some 7 GB of disk", text, most)
		}
		all = append(all, n)
	}
	slices.Sort(all)
	for _, name := range strings.Split(stores, ",") {
		few := slices.DeleteFunc(slices.Clone(all), func(n int) bool { return n > others })
		switch name {
		case "postgres":
			o.sizes[name] = all
		case "sqlite", "redis":
			o.sizes[name] = few
		default:
			return fmt.Errorf("-stores: there is no store %q", name)
		}
		if len(o.sizes[name]) < 2 {
			return fmt.Errorf("-sizes: there is nothing to compare for %s", name)
		}
		o.stores = append(o.stores, name)
	}
	if o.turn < callers || o.rounds < 1 {
		return fmt.Errorf("-turn must be %d or more, -rounds 1", callers)
	}
	return nil
}

func (o *options) run(ctx context.Context) (err error) {
	r, err := rig.New()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	for _, name := range o.stores {
		if err := o.compare(ctx, r, name); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// compare measures one store with few and with many records.
func (o *options) compare(ctx context.Context, r *rig.Rig, name string) (err error) {
	var server *pg
	if name == "postgres" {
		if server, err = startPostgres(ctx, r); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, server.server.Close()) }()
	}
	places, err := o.fill(ctx, r, server, name)
	defer func() {
		for _, p := range places {
			err = errors.Join(err, p.close())
		}
	}()
	if err != nil {
		return err
	}
	var all []rounds.Contender
	for _, t := range turns {
		for _, p := range places {
			all = append(all, p.contender(ctx, t, o.turn))
		}
	}
	rates, err := rounds.Compare(o.rounds, all...)
	if err != nil {
		return err
	}
	o.tell(name, places, rates)
	for _, p := range places {
		if err := p.first(ctx, name); err != nil {
			return err
		}
		if err := p.check(ctx); err != nil {
			return err
		}
	}
	return nil
}

// fill makes the places of a store, and also returns them with an error.
func (o *options) fill(ctx context.Context, r *rig.Rig, server *pg, name string) (places []*place, err error) {
	for _, size := range o.sizes[name] {
		began := time.Now()
		var p *place
		switch expired := (o.rounds + 2) * sweepStep; name {
		case "postgres":
			p, err = server.fill(ctx, size, expired)
		case "sqlite":
			p, err = fillSQLite(ctx, size, expired)
		default:
			p, err = fillRedis(ctx, r, size)
		}
		if err != nil {
			return places, err
		}
		p.random, p.wal, p.ops = rand.New(rand.NewPCG(22, uint64(size))), make(map[string]int64), make(map[string]int)
		places = append(places, p)
		progress("%s: %d records in %.1f s", name, size, time.Since(began).Seconds())
	}
	// The largest first: it writes so much that the next checkpoint may come.
	for _, p := range slices.Backward(places) {
		if p.last != nil {
			if err := p.last(ctx); err != nil {
				return places, err
			}
		}
		if err := p.check(ctx); err != nil {
			return places, err
		}
		if err := weigh(ctx, name, p); err != nil {
			return places, err
		}
	}
	return places, nil
}

func progress(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }
