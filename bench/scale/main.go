// Command scale measures what a claim, a settle, a replay and a sweep cost by how many records
// there are: the same store with few and with many, side by side in short turns, so that what
// else the machine does weighs on all alike. It says what a record takes, and what becomes of
// a store over days of requests whose records expire and are forgotten.
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
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/stet-go/stet/bench/internal/chart"
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

// options say what is measured.
type options struct {
	stores []string
	sizes  map[string][]int // by store
	rounds int
	turn   int // operations of one turn
	rate   int // requests a second of the days
	days   int
	day    time.Duration
	charts string // a folder; "" for none
}

func main() {
	o := options{sizes: make(map[string][]int)}
	stores := flag.String("stores", "postgres,sqlite,redis", "which of them")
	sizes := flag.String("sizes", "10000,1000000,10000000", "how many records; the largest is for PostgreSQL alone")
	others := flag.Int("others", 1_000_000, "how many SQLite and Redis have at most")
	within := flag.Duration("within", 20*time.Minute, "how long all of it may take")
	flag.IntVar(&o.rounds, "rounds", 20, "how often each is measured")
	flag.IntVar(&o.turn, "turn", 256, "operations each time")
	flag.IntVar(&o.rate, "rate", 1000, "requests a second of the days")
	flag.IntVar(&o.days, "days", 6, "how many days")
	flag.DurationVar(&o.day, "day", 15*time.Second, "how long a day is: a record is kept for one, its result for half of it")
	flag.StringVar(&o.charts, "charts", "", "a folder for the charts; none are drawn without")
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
	if o.turn < callers || o.rounds < 1 || o.rate < 1 || o.days < 0 || o.day < time.Second {
		return fmt.Errorf("-turn must be %d or more, -rounds and -rate 1, -day a second", callers)
	}
	return nil
}

func (o *options) run(ctx context.Context) (err error) {
	r, err := rig.New()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	d := drawing{costs: make(map[string][]chart.Series)}
	for _, name := range o.stores {
		if err := o.compare(ctx, r, name, &d); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	if o.days > 0 {
		if err := o.live(ctx, r, &d); err != nil {
			return err
		}
	}
	if o.charts == "" {
		return nil
	}
	return d.save(o.charts)
}

// compare measures one store with few and with many records.
func (o *options) compare(ctx context.Context, r *rig.Rig, name string, d *drawing) (err error) {
	var server *pg
	if name == "postgres" {
		if server, err = startPostgres(ctx, r, large); err != nil {
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
	o.tell(name, places, rates, d)
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

// fill makes the places of a store, and returns with an error those that it has made.
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

// live has all stores live through days, at the same time: they are not busy.
func (o *options) live(ctx context.Context, r *rig.Rig, d *drawing) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	all, errs := make([][]dayOf, len(o.stores)), make([]error, len(o.stores))
	var wg sync.WaitGroup
	for i, name := range o.stores {
		wg.Go(func() {
			if all[i], errs[i] = o.lived(ctx, r, name); errs[i] != nil {
				errs[i] = fmt.Errorf("%s: %w", name, errs[i])
				cancel(errs[i])
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for i, name := range o.stores {
		o.tellDays(name, all[i], d)
	}
	return nil
}

// lived has one store live through days.
func (o *options) lived(ctx context.Context, r *rig.Rig, name string) (all []dayOf, err error) {
	var s *site
	switch name {
	case "postgres":
		var server *pg
		if server, err = startPostgres(ctx, r, hasty); err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, server.server.Close()) }()
		s, err = server.site(ctx)
	case "sqlite":
		s, err = siteSQLite(ctx)
	default:
		s, err = siteRedis(ctx, r)
	}
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	return live(ctx, s, o.rate, o.days, o.day)
}

func progress(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

// chartFile is where a chart goes.
func chartFile(dir, name string) string { return filepath.Join(dir, name+".svg") }
