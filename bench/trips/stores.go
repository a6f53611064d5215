package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	goredislib "github.com/redis/go-redis/v9"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/postgres"
	"github.com/stet-go/stet/store/redis"
	"github.com/stet-go/stet/store/redis/goredis"
)

// grouped is how many operations share a transaction in the path group_tx.
const grouped = 8

// process is an engine over a connection of its own to the store, as another process has it.
type process struct {
	engine *stet.Engine
	paths  []path
	group  func(ctx context.Context, prefix, body string) (found, error) // nil: there are no groups
	quiet  func(context.Context) error                                   // returns when no connection is in use
	close  func()
}

func measurePostgres(ctx context.Context, r *rig.Rig) ([]figure, error) {
	server, err := r.StartPostgres(ctx, rig.PostgresOptions{})
	if err != nil {
		return nil, err
	}
	c, err := newCounter(server.Addr(), postgresProtocol)
	if err != nil {
		return nil, err
	}
	defer c.close()
	name, err := server.CreateDatabase(ctx)
	if err != nil {
		return nil, err
	}
	config, err := pgxpool.ParseConfig(server.URL(name))
	if err != nil {
		return nil, err
	}
	dialer := new(net.Dialer)
	config.ConnConfig.DialFunc = func(ctx context.Context, _, _ string) (net.Conn, error) {
		return dialer.DialContext(ctx, "tcp", c.addr())
	}
	config.MaxConns, config.HealthCheckPeriod = 1, time.Hour // one, so that all statements are prepared on it
	return measureStore(ctx, "postgres", c, func() (*process, error) { return postgresProcess(ctx, config) })
}

func postgresProcess(ctx context.Context, config *pgxpool.Config) (_ *process, err error) {
	pool, err := pgxpool.NewWithConfig(ctx, config.Copy())
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			pool.Close()
		}
	}()
	if err := postgres.Migrate(ctx, pool, postgres.Options{}); err != nil {
		return nil, err
	}
	if _, err := pool.Exec(ctx, "CREATE TABLE IF NOT EXISTS payments (amount text)"); err != nil {
		return nil, err
	}
	s, err := postgres.New(ctx, pool, postgres.Options{})
	if err != nil {
		return nil, err
	}
	p, err := newProcess(s)
	if err != nil {
		return nil, err
	}
	te, err := stet.WithTx(p.engine, s)
	if err != nil {
		return nil, err
	}
	tx, err := txPaths(te)
	if err != nil {
		return nil, err
	}
	p.paths = append(p.paths, tx...)
	p.group = func(ctx context.Context, prefix, body string) (found, error) { return group(ctx, te, prefix, body) }
	p.quiet = func(ctx context.Context) error { // the only connection is free
		return pool.AcquireFunc(ctx, func(*pgxpool.Conn) error { return nil })
	}
	p.close = func() {
		_ = p.engine.Close()
		pool.Close()
	}
	return p, nil
}

// group runs operations in one transaction. Those of a group that cannot be are run alone, as
// a consumer does.
func group(ctx context.Context, te *stet.TxEngine[pgx.Tx], prefix, body string) (what found, err error) {
	pay := func(ctx context.Context, tx pgx.Tx) (stet.Outcome, error) {
		_, err := tx.Exec(ctx, "INSERT INTO payments VALUES ($1)", "10")
		return stet.Outcome{}, err
	}
	var ops []stet.Op
	for i := range grouped {
		ops = append(ops, operation(fmt.Sprint(prefix, i), body))
	}
	what = first
	for i, run := range te.RunGroup(ctx, ops, func(ctx context.Context, tx pgx.Tx, _ int) (stet.Outcome, error) { return pay(ctx, tx) }) {
		if run != nil {
			continue
		}
		run, err := te.Run(ctx, ops[i], pay)
		if what, err = of(err == nil && run.Replayed(), err); err != nil || what == first {
			return "", fmt.Errorf("an operation did not run in its group: %w", err)
		}
	}
	return what, nil
}

func measureRedis(ctx context.Context, r *rig.Rig) ([]figure, error) {
	server, err := r.StartRedis(ctx, rig.RedisOptions{})
	if err != nil {
		return nil, err
	}
	c, err := newCounter(server.Addr(), redisProtocol)
	if err != nil {
		return nil, err
	}
	defer c.close()
	return measureStore(ctx, "redis", c, func() (*process, error) {
		client, err := goredis.Open(&goredislib.UniversalOptions{Addrs: []string{c.addr()}, PoolSize: 1})
		if err != nil {
			return nil, err
		}
		s, err := redis.New(ctx, client, redis.Options{Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			return nil, errors.Join(err, client.Close())
		}
		p, err := newProcess(s)
		if err != nil {
			return nil, err
		}
		p.quiet = func(context.Context) error { return nil }
		p.close = func() { _, _, _ = p.engine.Close(), s.Close(), client.Close() }
		return p, nil
	})
}

func newProcess(s store.Store) (*process, error) {
	e, err := stet.New(s, stet.Options{SweepEvery: -1})
	if err != nil {
		return nil, err
	}
	paths, err := leasePaths(e)
	return &process{engine: e, paths: paths}, err
}

// bench counts the calls of two processes: the one runs, the other comes after it.
type bench struct {
	store      string
	counter    *counter
	one, other *process
	figures    []figure
	counted    int64 // round trips of all calls that were counted
}

func measureStore(ctx context.Context, name string, c *counter, start func() (*process, error)) ([]figure, error) {
	one, err := start()
	if err != nil {
		return nil, err
	}
	defer one.close()
	other, err := start()
	if err != nil {
		return nil, err
	}
	defer other.close()
	b := &bench{store: name, counter: c, one: one, other: other}
	for i := range one.paths {
		for _, warm := range []bool{false, true} { // statements are prepared on a connection's first use
			if err := b.path(ctx, one.paths[i], other.paths[i], warm); err != nil {
				return b.figures, err
			}
		}
	}
	for _, warm := range []bool{false, true} {
		if err := b.accepted(ctx, warm); err != nil {
			return b.figures, err
		}
		if one.group == nil {
			continue
		}
		for _, c := range []struct {
			what found
			on   *process
			body string
		}{{first, one, "10"}, {replay, other, "10"}, {mismatch, other, "11"}} {
			err := b.count(ctx, c.on, fmt.Sprint("group_tx_of_", grouped), c.what, warm, func() (found, error) {
				return c.on.group(ctx, fmt.Sprint("group", warm), c.body)
			})
			if err != nil {
				return b.figures, err
			}
		}
	}
	return b.figures, nil
}

// accepted counts an operation that is accepted, and what others find of it in the meantime and later.
func (b *bench) accepted(ctx context.Context, warm bool) error {
	key := fmt.Sprint("accepted", warm)
	find := func(what found, body string) error {
		return b.count(ctx, b.other, "accepted", what, warm, func() (found, error) { return accept(ctx, b.other.engine, key, body) })
	}
	err := b.count(ctx, b.one, "accepted", first, warm, func() (found, error) {
		return accepted(ctx, b.one.engine, key, "10", func() error {
			return errors.Join(find(inFlight, "10"), find(mismatch, "11"))
		})
	})
	return errors.Join(err, find(replay, "10"))
}

// path counts one path in each case.
func (b *bench) path(ctx context.Context, p, second path, warm bool) error {
	key := fmt.Sprint(p.name, warm)
	running, goOn, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	for _, c := range []struct {
		what found
		on   *process
		path path
		body string
	}{{first, b.one, p, "10"}, {replay, b.other, second, "10"}, {mismatch, b.other, second, "11"}} {
		if err := b.count(ctx, c.on, p.name, c.what, warm, func() (found, error) { return c.path.call(ctx, key, c.body, nil) }); err != nil {
			return err
		}
	}
	go func() {
		_, err := p.call(ctx, key+"-running", "10", func() {
			close(running)
			<-goOn
		})
		ended <- err
	}()
	select {
	case <-running:
	case err := <-ended:
		return fmt.Errorf("%s: it did not run: %w", p.name, err)
	}
	err := b.count(ctx, b.other, p.name, inFlight, warm, func() (found, error) { return second.call(ctx, key+"-running", "10", nil) })
	close(goOn)
	return errors.Join(err, <-ended)
}

// count counts the round trips of a call by a process, including those after its answer,
// without those of calls that are counted in the meantime. Its result must be what.
func (b *bench) count(ctx context.Context, on *process, path string, what found, keep bool, call func() (found, error)) error {
	before, err := b.settled(ctx, on)
	if err != nil {
		return err
	}
	others := b.counted
	got, err := call()
	if err != nil || got != what {
		return fmt.Errorf("%s on %s: found %q, want %q: %w", path, b.store, got, what, err)
	}
	after, err := b.settled(ctx, on)
	trips := after - before - (b.counted - others)
	b.counted += trips
	if keep && err == nil {
		b.figures = append(b.figures, figure{b.store, path, string(what), trips})
	}
	return err
}

// settled returns the round trips so far, once the process uses no connection.
func (b *bench) settled(ctx context.Context, on *process) (int64, error) {
	if err := on.quiet(ctx); err != nil {
		return 0, err
	}
	for b.counter.asked.Load() > 0 {
		time.Sleep(time.Millisecond)
	}
	return b.counter.trips.Load(), nil
}
