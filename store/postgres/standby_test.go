package postgres

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/store"
)

// cluster is a server whose commits wait for a synchronous standby, and a ledger there.
type cluster struct {
	*Store
	server *rig.PostgresServer
	admin  *pgxpool.Pool    // whose own commits wait for no standby
	cut    func(testing.TB) // from now on no commit reaches a standby
	heal   func(testing.TB)
}

// clusters are the ways in which a standby can be missing.
func clusters(t *testing.T, claim func(*testing.T, *cluster)) {
	t.Run("absent", func(t *testing.T) { claim(t, absent(t)) })
	t.Run("paused", func(t *testing.T) {
		c := newCluster(t)
		standby := rig.Standby(t, c.server, "standby")
		c.configure(t, "standby")
		c.cut = func(t testing.TB) {
			if err := standby.Pause(); err != nil {
				t.Fatal(err)
			}
			c.wait(t, "standby")
		}
		c.heal = func(t testing.TB) {
			if err := standby.Resume(); err != nil {
				t.Fatal(err)
			}
		}
		claim(t, c)
	})
}

// absent is a cluster whose standby never comes.
func absent(t *testing.T) *cluster {
	c := newCluster(t)
	c.cut = func(t testing.TB) { c.wait(t, "absent") }
	c.heal = func(t testing.TB) { c.configure(t, "") }
	return c
}

func newCluster(t *testing.T) *cluster {
	server := rig.NewPostgres(t, rig.PostgresOptions{Settings: map[string]string{"wal_sender_timeout": "0"}})
	url := server.URL("postgres")
	admin := connect(t, url+"&options=-c%20synchronous_commit%3Dlocal")
	execSQL(t, admin, "CREATE TABLE charges (name text)")
	s := open(t, connect(t, url), Options{})
	s.commitTimeout = time.Second
	return &cluster{Store: s, server: server, admin: admin}
}

// configure names the standby that commits wait for.
func (c *cluster) configure(t testing.TB, standby string) {
	execSQL(t, c.admin, "ALTER SYSTEM SET synchronous_standby_names = '"+standby+"'")
	execSQL(t, c.admin, "SELECT pg_reload_conf()")
}

// wait names the standby, and returns when commits wait for it.
func (c *cluster) wait(t testing.TB, standby string) {
	c.configure(t, standby)
	conn, err := pgx.Connect(context.Background(), c.server.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer func() { _ = conn.Close(context.Background()) }()
		for { // a commit does not wait until the standby is connected
			_, err := conn.Exec(context.Background(), "CREATE TABLE IF NOT EXISTS probe (); DROP TABLE probe")
			if err != nil {
				return
			}
			select {
			case <-t.Context().Done():
				return
			default:
			}
		}
	}()
	t.Cleanup(func() {
		_ = c.server.Close() // it may wait permanently
		<-ended
	})
	c.waiting(t, 1)
}

// waiting returns when at least n commits wait for a standby, or none does.
func (c *cluster) waiting(t testing.TB, n int) {
	t.Helper()
	for got := -1; got < n || n == 0 && got > 0; {
		if err := c.admin.QueryRow(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'").Scan(&got); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Millisecond) // between two looks
	}
}

// charged is how many charges anybody can see.
func (c *cluster) charged(t testing.TB) (n int) {
	t.Helper()
	if err := c.admin.QueryRow(t.Context(), "SELECT count(*) FROM charges").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// told requires that no call returns an outcome of the keys, or does once the
// standby is back.
func (c *cluster) told(t *testing.T, ok bool, keys ...string) {
	t.Helper()
	limit := 3 * time.Second
	if ok {
		limit = 30 * time.Second
		c.waiting(t, 0)
	}
	var all sync.WaitGroup
	e, err := stet.New(c.Store, stet.Options{SweepEvery: -1, StoreTimeout: limit})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = e.Close() }()
	defer all.Wait()
	for _, key := range keys {
		calls := map[string]func(context.Context) (store.Record, error){
			"Read":  func(ctx context.Context) (store.Record, error) { return c.Read(ctx, request(key).ID) },
			"Look":  func(ctx context.Context) (store.Record, error) { return c.Look(ctx, request(key).ID) },
			"Claim": func(ctx context.Context) (store.Record, error) { return c.Claim(ctx, request(key)) },
			"Take": func(ctx context.Context) (store.Record, error) {
				return c.Take(ctx, store.TakeRequest{ID: request(key).ID, Owner: store.NewOwner(), Lease: time.Minute})
			},
			"Accept": func(ctx context.Context) (store.Record, error) {
				return c.Accept(ctx, request(key), []byte("work"), time.Minute)
			},
			"AcceptTx": func(ctx context.Context) (rec store.Record, err error) {
				return rec, c.InTx(ctx, func(ctx context.Context, tx pgx.Tx) (err error) {
					rec, err = c.AcceptTx(ctx, tx, request(key), []byte("work"), time.Minute)
					return err
				})
			},
			"RunTx of the store": func(ctx context.Context) (store.Record, error) {
				return c.RunTx(ctx, request(key), keep, func(context.Context, pgx.Tx, store.Record) (store.Settlement, error) {
					return store.Settlement{}, errors.New("it ran again")
				})
			},
		}
		// What the store was given is no result of the engine's, which finds it damaged.
		op := stet.Op{Scope: "test", Key: key, Fingerprint: request(key).Fingerprint}
		all.Go(func() {
			if _, err := e.Begin(t.Context(), op); (stet.KindOf(err) == stet.KindDamaged) != ok || err == nil || stet.ExecutionOf(err) == stet.NotExecuted && c.charged(t) > 0 {
				t.Errorf("Begin of %q: %v; an outcome must be returned: %v", key, err, ok)
			}
		})
		all.Go(func() {
			_, err := stettest.TxEngine(e, c.Store).Run(t.Context(), op, func(context.Context, pgx.Tx) (stet.Outcome, error) {
				return stet.Outcome{}, errors.New("it ran again")
			})
			if (stet.KindOf(err) == stet.KindDamaged) != ok || err == nil || stet.ExecutionOf(err) == stet.NotExecuted && c.charged(t) > 0 {
				t.Errorf("RunTx of %q: %v; an outcome must be returned: %v", key, err, ok)
			}
		})
		for name, call := range calls {
			all.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), limit)
				defer cancel()
				rec, err := call(ctx)
				if told := err == nil && rec.State.Settled(); told != ok {
					t.Errorf("%s of %q: %v, %v; an outcome must be returned: %v", name, key, rec.State, err, ok)
				}
			})
		}
	}
}

// before are operations of both modes whose commits will find no standby.
func (c *cluster) before(t *testing.T) (end func() (tx, lease error)) {
	lease := mustClaim(t, c, request("lease"))
	return func() (tx, settled error) {
		done := make(chan struct{})
		go func() {
			defer close(done)
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			settled = c.Settle(ctx, lease.Claim(), completed("charged"), keep)
		}()
		_, tx = c.RunTx(t.Context(), request("tx"), keep, charge)
		<-done
		return tx, settled
	}
}

func TestOutcomeThatNoStandbyHasIsNotReturned(t *testing.T) {
	t.Parallel()
	clusters(t, func(t *testing.T, c *cluster) {
		end := c.before(t)
		c.cut(t)
		tx, lease := end()
		if stet.KindOf(tx) != stet.KindUnknown {
			t.Errorf("RunTx: %v; want that it is not known", tx)
		}
		if lease == nil {
			t.Error("Settle: no error")
		}
		c.told(t, false, "tx", "lease")
		if n := c.charged(t); n != 0 {
			t.Errorf("%d charges are visible that no standby has: a commit that waited was cancelled", n)
		}
		c.heal(t)
		c.told(t, true, "tx", "lease")
		if n := c.charged(t); n != 1 {
			t.Errorf("%d charges", n)
		}
	})
}

// An operator, or a restart, ends the wait of a commit: its writes are visible,
// and no standby has it.
func TestOutcomeIsNotReturned_WaitCutShort(t *testing.T) {
	t.Parallel()
	for _, by := range []string{"pg_cancel_backend", "pg_terminate_backend", "restart"} {
		t.Run(by, func(t *testing.T) {
			c := absent(t)
			c.commitTimeout = 5 * time.Second
			end := c.before(t)
			c.cut(t)
			short := make(chan error, 1)
			go func() {
				short <- func() error {
					c.waiting(t, 3) // the probe, RunTx, Settle
					if by == "restart" {
						return errors.Join(c.server.Kill(), c.server.Start(context.Background()))
					}
					_, err := c.admin.Exec(context.Background(), fmt.Sprintf("SELECT %s(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'", by))
					return err
				}()
			}()
			tx, lease := end()
			if err := <-short; err != nil {
				t.Fatal(err)
			}
			if stet.KindOf(tx) != stet.KindUnknown {
				t.Errorf("RunTx: %v; want that it is not known", tx)
			}
			if lease == nil {
				t.Error("Settle: no error")
			}
			c.admin.Reset()
			if n := c.charged(t); n != 1 {
				t.Fatalf("%d charges are visible; this test needs one", n)
			}
			c.told(t, false, "tx", "lease")
			c.heal(t)
			c.told(t, true, "tx", "lease")
		})
	}
}
