package postgres

import (
	"bytes"
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/store"
)

// trips counts round trips of all connections: answers that come after something was
// sent.
type trips struct {
	n        atomic.Int64
	rollback atomic.Pointer[chan struct{}] // a rollback is not sent before it is closed
}

type countedConn struct {
	net.Conn
	of *trips

	mu   sync.Mutex
	sent bool
}

func (c *countedConn) Write(b []byte) (int, error) {
	if hold := c.of.rollback.Load(); hold != nil && bytes.Contains(b, []byte("rollback")) {
		<-*hold
	}
	c.mu.Lock()
	c.sent = true
	c.mu.Unlock()
	return c.Conn.Write(b)
}

func (c *countedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.mu.Lock()
	defer c.mu.Unlock()
	if n > 0 && c.sent {
		c.sent = false
		c.of.n.Add(1)
	}
	return n, err
}

// counting returns a store whose pool has one connection, and its counter.
func counting(t *testing.T) (*Store, *trips) {
	t.Helper()
	config, of := database(t).Config(), new(trips)
	config.MaxConns, config.HealthCheckPeriod = 1, time.Hour
	dial := config.ConnConfig.DialFunc
	config.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := dial(ctx, network, addr)
		return &countedConn{Conn: c, of: of}, err
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	s := open(t, pool, Options{})
	execSQL(t, pool, "CREATE TABLE payments (id text)")
	return s, of
}

// wait waits until the only connection is free.
func wait(t *testing.T, s *Store) {
	t.Helper()
	c, err := s.Pool().Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c.Release()
}

func TestTransactionTakesThreeRoundTrips(t *testing.T) {
	s, of := counting(t)
	e := stettest.Engine(t, s, stet.Options{SweepEvery: -1})
	te, err := stet.WithTx(e, s)
	if err != nil {
		t.Fatal(err)
	}
	pay := func(key, body string) (replayed bool, err error) {
		op := stet.Op{Scope: "alice", Key: key, Fingerprint: stet.NewFingerprint([]byte(body))}
		res, err := stet.DoTx(t.Context(), te, op, func(ctx context.Context, tx pgx.Tx) (string, error) {
			_, err := tx.Exec(ctx, "INSERT INTO payments VALUES ($1)", key)
			return "paid", err
		})
		if err == nil && res.Value != "paid" {
			t.Errorf("%s: %q", key, res.Value)
		}
		return res.Replayed, err
	}
	if _, err := pay("warm", ""); err != nil { // statements are prepared
		t.Fatal(err)
	}
	before := of.n.Load()
	if replayed, err := pay("first", ""); replayed || err != nil {
		t.Fatal(replayed, err)
	}
	if n := of.n.Load() - before; n != 3 {
		t.Errorf("a transaction of one statement took %d round trips; want 3: begin, lock and look; the statement; record and commit", n)
	}

	// So does a run after a released run.
	for _, key := range []string{"warm again", "again"} {
		req := stettest.Request(key) // not by the engine: it would write the history of the release
		req.ID, req.Scope, req.Fingerprint = e.ID("alice", key), store.DigestScope("", "alice"), stet.NewFingerprint([]byte(""))
		if err := s.Release(t.Context(), stettest.Claim(t, s, req).Claim(), stettest.Keep); err != nil {
			t.Fatal(err)
		}
		before = of.n.Load()
		if replayed, err := pay(key, ""); replayed || err != nil {
			t.Fatal(replayed, err)
		}
	}
	if n := of.n.Load() - before; n != 3 {
		t.Errorf("a transaction over a record that was released took %d round trips; want 3, as without one", n)
	}

	// A replay waits for one round trip: its ROLLBACK is held back here.
	for _, body := range []string{"", "another request"} {
		release := make(chan struct{})
		of.rollback.Store(&release)
		before = of.n.Load()
		replayed, err := pay("first", body)
		if body == "" && (!replayed || err != nil) || body != "" && stet.ExecutionOf(err) != stet.NotExecuted {
			t.Fatalf("%q: %v, %v", body, replayed, err)
		}
		if n := of.n.Load() - before; n != 1 {
			t.Errorf("%q: a replay took %d round trips; want 1", body, n)
		}
		close(release)
		wait(t, s)
	}
}

// Callers that get a stored outcome, a mismatch or "in flight" do not wait for the ROLLBACK.
func TestAnswerDoesNotWaitForTheRollback(t *testing.T) {
	s, of := counting(t)
	ran := func(context.Context, pgx.Tx, store.Record) (store.Settlement, error) { return completed("x"), nil }
	req, other, running := request("k"), request("k"), request("running")
	other.Fingerprint = stet.NewFingerprint([]byte("something else"))
	if _, err := s.RunTx(t.Context(), req, keep, ran); err != nil {
		t.Fatal(err)
	}
	open, err := s.own.Begin(t.Context()) // another process's transaction
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = open.Rollback(context.Background()) }()
	if _, err := open.Exec(t.Context(), sqlLock, s.locks(running.ID, running.Fingerprint).key); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		req  store.ClaimRequest
		want store.State
		err  error
	}{"replay": {req, store.Completed, nil}, "mismatch": {other, store.Completed, store.ErrMismatch}, "in flight": {running, store.Running, nil}} {
		wait(t, s)
		release := make(chan struct{})
		of.rollback.Store(&release)
		if rec, err := s.RunTx(t.Context(), c.req, keep, never(t)); !errors.Is(err, c.err) || rec.State != c.want {
			t.Errorf("%s: %+v, %v", name, rec, err)
		}
		if s.Pool().Stat().AcquiredConns() != 1 {
			t.Errorf("%s: its transaction has ended already", name)
		}
		close(release)
	}
}
