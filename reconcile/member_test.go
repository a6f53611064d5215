package reconcile_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	goredislib "github.com/redis/go-redis/v9"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/child"
	"github.com/stet-go/stet/observe"
	"github.com/stet-go/stet/reconcile"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/postgres"
	"github.com/stet-go/stet/store/redis"
	"github.com/stet-go/stet/store/redis/goredis"
	"github.com/stet-go/stet/store/sqlite"
)

// Environment of a process of the load test.
const (
	memberEnv = "STET_RECONCILE_PARENT" // where it says that it is ready, hears when to begin, and reports
	kindEnv   = "STET_RECONCILE_STORE"
	whereEnv  = "STET_RECONCILE_AT"
)

// member is what a process of the load reports.
type member struct {
	Resolutions map[string]int // how often it has carried one out, by ID
	Asked, Said int
	Err         string
}

// be is the main function of a process of the load. It returns the exit status.
func be() int {
	ctx, cancel := child.WithParent(context.Background(), os.Stdin)
	defer cancel()
	parent, err := new(net.Dialer).DialContext(ctx, "tcp", os.Getenv(memberEnv))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer parent.Close()
	defer context.AfterFunc(ctx, func() { _ = parent.Close() })()
	m := member{Resolutions: make(map[string]int)}
	if err := m.resolve(ctx, parent); err != nil {
		m.Err = err.Error()
	}
	if err := json.NewEncoder(parent).Encode(m); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// resolve makes passes until one was without errors.
func (m *member) resolve(ctx context.Context, parent net.Conn) error {
	store, closeStore, err := openStore(ctx, os.Getenv(kindEnv), os.Getenv(whereEnv))
	if err != nil {
		return err
	}
	defer closeStore()
	var mu sync.Mutex
	observer := observe.Func(func(_ context.Context, ev observe.Event) {
		if ev.Kind == observe.Resolved && ev.Err == nil {
			mu.Lock()
			defer mu.Unlock()
			m.Resolutions[ev.ID.String()]++
		}
	})
	e, err := stet.New(store, stet.Options{SweepEvery: -1, StoreTimeout: time.Minute, Observer: observer})
	if err != nil {
		return err
	}
	defer e.Close()
	var asked atomic.Int64
	defer func() { m.Asked = int(asked.Load()) }()
	r, err := reconcile.New(e, reconcile.Options{Rate: -1, Concurrency: 16, ErrorLog: slog.New(slog.NewTextHandler(os.Stderr, nil)),
		Verify: func(_ context.Context, st stet.Status) (stet.Resolution, error) {
			asked.Add(1)
			return resolutionOf(st.Record.ID), nil
		}})
	if err != nil {
		return err
	}
	child.Ready(os.Stdout, "")
	if _, err := parent.Read(make([]byte, 1)); err != nil {
		return err
	}
	for try := 1; ; try++ { // a loaded machine may need a second pass
		report, err := r.Pass(ctx)
		m.Said += report.Completed + report.Failed + report.Again
		if err != nil || report.Errors > 0 && try == 5 {
			return fmt.Errorf("%+v, %w", report, err)
		}
		if report.Errors == 0 {
			return nil
		}
	}
}

// openStore opens a store that processes share.
func openStore(ctx context.Context, kind, where string) (store.Store, func(), error) {
	switch kind {
	case "sqlite":
		s, err := sqlite.Open(ctx, where, sqlite.Options{})
		return s, func() { _ = s.Close() }, err
	case "postgres":
		pool, err := pgxpool.New(ctx, where)
		if err != nil {
			return nil, nil, err
		}
		if err := postgres.Migrate(ctx, pool, postgres.Options{}); err != nil {
			pool.Close()
			return nil, nil, err
		}
		s, err := postgres.New(ctx, pool, postgres.Options{})
		return s, func() { _ = s.Close(); pool.Close() }, err
	default:
		conn, err := goredis.Open(&goredislib.UniversalOptions{Addrs: []string{where}})
		if err != nil {
			return nil, nil, err
		}
		s, err := redis.New(ctx, conn, redis.Options{Prefix: "many", Logger: slog.New(slog.DiscardHandler)})
		return s, func() { _ = s.Close(); _ = conn.Close() }, err
	}
}
