package postgres

import (
	"context"
	"database/sql"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/store"
)

// If sessions receive errors only, the server does not report that the wait of a
// commit was cut short.
func TestOutcomeIsNotReturned_WaitCutShortUnseen(t *testing.T) {
	t.Parallel()
	c := absent(t)
	pool := connect(t, c.server.URL("postgres")+"&options=-c%20client_min_messages%3Derror")
	s := open(t, pool, Options{})
	s.commitTimeout = 8 * time.Second
	lease, note, step := mustClaim(t, s, request("settle")).Claim(), mustClaim(t, s, request("in tx")).Claim(), mustClaim(t, s, request("save")).Claim()
	free := mustClaim(t, s, request("again")).Claim()
	if err := s.Release(t.Context(), free, keep); err != nil {
		t.Fatal(err)
	}
	charged := func(ctx context.Context, tx pgx.Tx) error {
		_, err := charge(ctx, tx, store.Record{})
		return err
	}
	calls := map[string]func(context.Context) error{
		"Settle": func(ctx context.Context) error { return s.Settle(ctx, lease, completed("x"), keep) },
		"RunTx": func(ctx context.Context) error {
			_, err := s.RunTx(ctx, request("new"), keep, charge)
			return err
		},
		"RunTx of a record that was free": func(ctx context.Context) error {
			_, err := s.RunTx(ctx, request("again"), keep, charge)
			return err
		},
		"RunGroup": func(ctx context.Context) error {
			_, err := s.RunGroup(ctx, []store.ClaimRequest{request("group")}, []store.Retention{keep},
				func(ctx context.Context, tx pgx.Tx, _ int, rec store.Record) (store.Settlement, error) {
					return charge(ctx, tx, rec)
				})
			return err
		},
		"InTx that settles": func(ctx context.Context) error {
			return s.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
				return errors.Join(charged(ctx, tx), s.SettleTx(ctx, tx, note, completed("x"), keep))
			})
		},
		"InTx": func(ctx context.Context) error {
			return s.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
				return errors.Join(charged(ctx, tx), s.SaveTx(ctx, tx, step, store.Notes{Version: 1}, false))
			})
		},
	}
	c.cut(t)
	short := make(chan error, 1)
	go func() {
		c.waiting(t, 1+len(calls)) // the probe, too
		_, err := c.admin.Exec(context.Background(), "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
		short <- err
	}()
	var all sync.WaitGroup
	for name, call := range calls {
		all.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), s.commitTimeout)
			defer cancel()
			if err := call(ctx); err == nil {
				t.Errorf("%s: no error, and no standby has its write", name)
			}
		})
	}
	all.Wait()
	if err := <-short; err != nil {
		t.Fatal(err)
	}
	if n, want := c.charged(t), len(calls)-1; n != want {
		t.Errorf("%d charges are visible; this test needs %d", n, want)
	}
	c.heal(t)
}

// Messages of the server's, of triggers and of its log are no sign that a wait was cut
// short where nothing waits.
func TestNoticesKeepNothingFromBeingWritten(t *testing.T) {
	pool := database(t)
	s := open(t, pool, Options{})
	execSQL(t, pool, `CREATE FUNCTION warn() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE NOTICE 'n'; RAISE WARNING 'w'; RETURN new; END $$`)
	execSQL(t, pool, "CREATE TRIGGER warn BEFORE INSERT OR UPDATE ON "+s.n.records+" FOR EACH ROW EXECUTE FUNCTION warn()")
	claim := mustClaim(t, s, request("k")).Claim()
	if lost, err := s.Extend(t.Context(), []store.Claim{claim}, time.Minute); err != nil || len(lost) > 0 {
		t.Errorf("Extend: %v, %v", lost, err)
	}
	mustSettle(t, s, claim, "x")
}

// Where standbys are healthy, commits of others wait for them at nearly any moment.
func TestShortWaitsForStandbysAreNotTakenForThoseOfLateWrites(t *testing.T) {
	c := absent(t)
	execSQL(t, c.admin, "CREATE TABLE others ()")
	c.configure(t, "absent")
	ctx, stop := context.WithCancel(t.Context())
	var busy sync.WaitGroup
	defer busy.Wait()
	defer stop()
	others := connect(t, c.server.URL("postgres"))
	for range 4 {
		busy.Go(func() {
			for ctx.Err() == nil {
				_, _ = others.Exec(context.Background(), "INSERT INTO others DEFAULT VALUES")
			}
		})
	}
	busy.Go(func() { // the standby that answers
		for ctx.Err() == nil {
			_, _ = c.admin.Exec(context.Background(), "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
		}
		c.configure(t, "")
	})
	taken := 0
	for range 50 {
		c.standbyWait.seen = time.Time{}
		waits, err := c.anyWaits()
		if err != nil {
			t.Fatal(err)
		}
		if waits {
			taken++
		}
	}
	if taken > 10 { // this machine may be slow
		t.Errorf("commits of others, which take no longer than usual, are taken for late ones %d times of 50", taken)
	}
}

// silent is a pool to a fresh database, and what makes its connections silent, as a
// firewall does that has forgotten them; new ones work.
func silent(t *testing.T) (config *pgxpool.Config, stall func()) {
	t.Helper()
	server := rig.Postgres(t)
	config, err := pgxpool.ParseConfig(server.Database(t))
	if err != nil {
		t.Fatal(err)
	}
	proxy := rig.NewProxy(t, server.Addr())
	var stalled atomic.Bool
	dial := config.ConnConfig.DialFunc
	config.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if !stalled.Load() {
			addr = proxy.Addr()
		}
		return dial(ctx, network, addr)
	}
	return config, func() {
		stalled.Store(true)
		proxy.Stall()
	}
}

func TestCommitsOverDeadConnectionsDoNotUseUpThePool(t *testing.T) {
	t.Parallel()
	config, stall := silent(t)
	config.MaxConns = 1
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	s := open(t, pool, Options{})
	s.commitTimeout = time.Second
	if _, err := s.RunTx(t.Context(), request("dead"), keep, func(context.Context, pgx.Tx, store.Record) (store.Settlement, error) {
		stall()
		return completed("x"), nil
	}); err == nil {
		t.Fatal("RunTx: no error")
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // of which the driver takes 15 s
	defer cancel()
	if err := pool.Ping(ctx); err != nil {
		t.Errorf("the pool is still used up: %v", err)
	}
}

func TestDeadConnectionsOfDatabaseSQLAreGivenUp(t *testing.T) {
	t.Parallel()
	for name, failure := range map[string]error{"commit": nil, "rollback": errors.New("no")} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			config, stall := silent(t)
			pool, err := pgxpool.NewWithConfig(t.Context(), config)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(pool.Close)
			s := open(t, pool, Options{})
			s.commitTimeout = time.Second
			db := stdlib.OpenDB(*config.ConnConfig)
			t.Cleanup(func() { _ = db.Close() })
			db.SetMaxOpenConns(1)
			over := OverSQL(s, func(ctx context.Context) (*sql.Tx, error) { return db.BeginTx(ctx, nil) })
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			ended := make(chan error, 1)
			go func() {
				ended <- over.InTx(t.Context(), func(context.Context, *sql.Tx) error {
					stall()
					return failure
				})
			}()
			select {
			case err := <-ended:
				if err == nil {
					t.Error("InTx: no error")
				}
			case <-ctx.Done():
				t.Fatal("InTx does not return")
			}
			if err := db.PingContext(ctx); err != nil {
				t.Errorf("the pool is still used up: %v", err)
			}
		})
	}
}

// Users that work under a role (ALTER ROLE … SET role) do not see their own sessions by it.
func TestLateWritesOfAUserUnderARoleAreWaitedFor(t *testing.T) {
	c := absent(t)
	for _, sql := range []string{
		"CREATE ROLE owner", "CREATE ROLE app LOGIN", "GRANT owner TO app", "ALTER ROLE app SET role = 'owner'",
		"GRANT USAGE ON SCHEMA stet TO owner", "GRANT ALL ON ALL TABLES IN SCHEMA stet TO owner", "GRANT ALL ON ALL SEQUENCES IN SCHEMA stet TO owner",
	} {
		execSQL(t, c.admin, sql)
	}
	config := c.admin.Config()
	config.ConnConfig.User = "app"
	delete(config.ConnConfig.RuntimeParams, "options")
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	s, err := New(t.Context(), pool, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	c.configure(t, "absent")
	for waits := 0; waits == 0; { // until the standby is connected
		ctx, cancel := context.WithCancel(t.Context())
		claimed := make(chan struct{})
		go func() {
			defer close(claimed)
			_, _ = s.Claim(ctx, request(time.Now().String()))
		}()
		for done := false; !done && waits == 0; {
			if err := c.admin.QueryRow(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'").Scan(&waits); err != nil {
				t.Fatal(err)
			}
			select {
			case <-claimed:
				done = true
			default:
			}
		}
		cancel()
		<-claimed
	}
	for waits := false; !waits; {
		if s.standbyWait.seen = (time.Time{}); t.Context().Err() != nil || s.late.Load() == 0 {
			t.Fatal("a write that waits for a standby is given up")
		}
		if waits, err = s.anyWaits(); err != nil {
			t.Fatal(err)
		}
	}
	c.heal(t)
}
