package postgres

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/internal/timer"
	"github.com/stet-go/stet/store"
)

// load test is many callers of few keys, whose functions end in all ways, while something
// breaks their connections.
type loadTest struct {
	s     *Store
	calls atomic.Int64

	mu  sync.Mutex
	got map[string]string // the outcomes that were returned
}

var errLoadTest = errors.New("the function fails")

// work has an effect, one way or another, and may fail after it.
func (m *loadTest) work(key string, nested bool) function {
	return func(ctx context.Context, tx pgx.Tx, rec store.Record) (store.Settlement, error) {
		const insert = "INSERT INTO effects VALUES ($1)"
		var err error
		if rand.IntN(4) == 0 {
			timer.Sleep(ctx, rand.N(20*time.Millisecond))
		}
		if nested && rand.IntN(4) == 0 {
			m.run(ctx, m.key(), false)
		}
		switch rand.IntN(6) {
		case 0:
			err = tx.QueryRow(ctx, insert+" RETURNING key", key).Scan(new(string))
		case 1:
			err = pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error { _, err := tx.Exec(ctx, insert, key); return err })
		case 2:
			_, err = tx.Conn().Exec(ctx, insert, key)
		case 3:
			return store.Settlement{}, errLoadTest
		default:
			_, err = tx.Exec(ctx, insert, key)
		}
		switch rand.IntN(8) {
		case 0:
			panic(errLoadTest)
		case 1:
			return store.Settlement{}, errLoadTest
		case 2:
			return store.Settlement{}, tx.QueryRow(ctx, "SELECT count(*) FROM effects").Scan(new(int))
		}
		return completed(fmt.Sprint(rec.Fence)), err
	}
}

// key is one of a few, which become others as time goes by.
func (m *loadTest) key() string { return fmt.Sprint("key ", m.calls.Add(1)/20+rand.Int64N(6)) }

func (m *loadTest) keys() int { return int(m.calls.Load()/20) + 6 }

// run runs key once, and reports whether its outcome was returned.
func (m *loadTest) run(ctx context.Context, key string, nested bool) bool {
	defer func() {
		if p := recover(); p != nil && p != errLoadTest {
			panic(p)
		}
	}()
	rec, err := m.s.RunTx(ctx, request(key), keep, m.work(key, nested))
	if err != nil || rec.State != store.Completed {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if was, ok := m.got[key]; ok && was != string(rec.Result.Body) {
		panic(fmt.Sprintf("%s: the outcomes %q and %q were returned", key, was, rec.Result.Body))
	}
	m.got[key] = string(rec.Result.Body)
	return true
}

// rage runs all keys for that long, and in the meantime breaks.
func (m *loadTest) rage(t *testing.T, long time.Duration, nested bool, harm func(context.Context)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), long)
	defer cancel()
	var all sync.WaitGroup
	all.Go(func() {
		for ctx.Err() == nil {
			harm(ctx)
		}
	})
	for range 8 {
		all.Go(func() {
			for ctx.Err() == nil {
				mine, end := context.WithTimeout(t.Context(), 5*time.Second)
				if rand.IntN(3) == 0 {
					end()
					mine, end = context.WithTimeout(t.Context(), rand.N(8*time.Millisecond))
				}
				m.run(mine, m.key(), nested)
				end()
			}
		})
	}
	all.Wait()
}

// calm requires that every key has had its effect once, and that nothing is left behind.
func (m *loadTest) calm(t *testing.T, admin *pgxpool.Pool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	all := m.keys()
	for i := range all {
		for !m.run(ctx, fmt.Sprint("key ", i), false) {
			if ctx.Err() != nil {
				t.Fatalf("key %d cannot be run any more", i)
			}
		}
	}
	var effects, keys int
	if err := admin.QueryRow(ctx, "SELECT count(*), count(DISTINCT key) FROM effects").Scan(&effects, &keys); err != nil {
		t.Fatal(err)
	}
	if effects != all || keys != all {
		t.Errorf("%d effects of %d keys; want one of each of %d", effects, keys, all)
	}
	for locks := 1; locks > 0; { // processes that were ended may take a moment
		const held = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
		if err := admin.QueryRow(ctx, held).Scan(&locks); err != nil {
			t.Fatalf("%d locks are left: %v", locks, err)
		}
	}
	for m.s.Pool().Stat().AcquiredConns() != 0 { // a rollback without a waiting caller
		if !timer.Sleep(ctx, time.Millisecond) {
			t.Fatalf("%d connections of the pool are still in use", m.s.Pool().Stat().AcquiredConns())
		}
	}
}

// harm calls how, which ends or cancels, with one process of the service's after the other.
func harm(admin *pgxpool.Pool, how string) func(context.Context) {
	if how == "" {
		return func(ctx context.Context) { <-ctx.Done() }
	}
	return func(ctx context.Context) {
		_, _ = admin.Exec(ctx, "SELECT "+how+"(pid) FROM pg_stat_activity WHERE application_name = 'service' AND datname = current_database() ORDER BY random() LIMIT 1")
		timer.Sleep(ctx, rand.N(10*time.Millisecond))
	}
}

// Whatever ends connections and statements, at whatever moment, an operation has its effect once, and
// neither locks nor connections are left.
func TestLoadLeavesNothingBehind(t *testing.T) {
	bouncer := func(t *testing.T, server *rig.PostgresServer) string {
		return rig.PgBouncer(t, server, rig.PgBouncerOptions{Settings: map[string]string{"pool_mode": "session", "default_pool_size": "80"}}).Addr()
	}
	for name, c := range map[string]struct {
		params map[string]string
		conns  int32
		harm   string
		pooled func() bool // dials go through PgBouncer, of which the store has not been told
	}{
		"ended":                  {harm: "pg_terminate_backend"},
		"cancelled":              {harm: "pg_cancel_backend"},
		"one at a time":          {conns: 1, harm: "pg_terminate_backend"},
		"time-outs":              {params: map[string]string{"statement_timeout": "15", "lock_timeout": "5", "idle_in_transaction_session_timeout": "15", "idle_session_timeout": "15"}},
		"serializable":           {params: map[string]string{"default_transaction_isolation": "serializable"}},
		"PgBouncer":              {pooled: func() bool { return true }, harm: "pg_terminate_backend"},
		"PgBouncer now and then": {pooled: func() bool { return rand.IntN(2) == 0 }, harm: "pg_terminate_backend"},
	} {
		t.Run(name, func(t *testing.T) {
			server := rig.Postgres(t)
			admin := connect(t, server.Database(t))
			config := admin.Config()
			config.MaxConns = max(c.conns, 1)
			if c.conns == 0 {
				config.MaxConns = 20
			}
			config.ConnConfig.RuntimeParams["application_name"] = "service"
			for name, value := range c.params {
				config.ConnConfig.RuntimeParams[name] = value
			}
			if c.pooled != nil {
				through, dial := bouncer(t, server), config.ConnConfig.DialFunc
				var there atomic.Bool // not from the start
				config.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
					if there.Load() && c.pooled() {
						addr = through
					}
					return dial(ctx, network, addr)
				}
				defer there.Store(false)
				time.AfterFunc(200*time.Millisecond, func() { there.Store(true) })
			}
			if err := Migrate(t.Context(), admin, Options{}); err != nil {
				t.Fatal(err)
			}
			execSQL(t, admin, "CREATE TABLE effects (key text)")
			pool, err := pgxpool.NewWithConfig(t.Context(), config)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(pool.Close)
			var s *Store
			stettest.Eventually(t, "the store opens", func() bool { // a busy machine may need more than a time-out leaves
				if s, err = New(t.Context(), pool, Options{}); err != nil {
					t.Log(err)
				}
				return err == nil
			})
			t.Cleanup(func() { _ = s.Close() })
			m := &loadTest{s: s, got: make(map[string]string)}
			m.rage(t, 2*time.Second, config.MaxConns > 1, harm(admin, c.harm))
			t.Logf("%d of %d keys have an outcome", len(m.got), m.keys())
			m.calm(t, admin)
		})
	}
}
