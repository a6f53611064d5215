package postgres

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stet-go/stet/store"
)

// callbacks counts the calls of a service pool's callbacks.
type callbacks struct{ n atomic.Int64 }

func (c *callbacks) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	c.n.Add(1)
	return ctx
}

func (c *callbacks) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// The store's own connections are configured for it. What a service has its pool call,
// or set, would break them: a pool that handles notifications, for one, keeps pgx from
// giving any to a listener.
func TestServicesCallbacksAndSettingsAreNotTheStores(t *testing.T) {
	plain := database(t)
	open(t, plain, Options{}) // the tables
	config, err := pgxpool.ParseConfig(plain.Config().ConnString())
	if err != nil {
		t.Fatal(err)
	}
	var called callbacks
	c := config.ConnConfig
	c.OnNotification = func(*pgconn.PgConn, *pgconn.Notification) { called.n.Add(1) }
	c.OnNotice = func(*pgconn.PgConn, *pgconn.Notice) { called.n.Add(1) }
	c.AfterConnect = func(context.Context, *pgconn.PgConn) error { called.n.Add(1); return nil }
	c.Tracer = &called
	config.AfterConnect = func(context.Context, *pgx.Conn) error { called.n.Add(1); return nil }
	config.BeforeClose = func(*pgx.Conn) { called.n.Add(1) }
	for name, value := range map[string]string{"statement_timeout": "1", "lock_timeout": "1", "default_transaction_read_only": "on",
		"default_transaction_isolation": "serializable"} {
		c.RuntimeParams[name] = value
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	s, err := New(t.Context(), pool, Options{})
	if err != nil {
		t.Fatal(err)
	}
	rec := mustClaim(t, s, request("k"))
	watched := make(chan error, 1)
	go func() { watched <- s.Watch(t.Context(), rec.ID, rec.Fence) }()
	for marked := false; !marked; {
		select {
		case err := <-watched:
			t.Fatalf("Watch ended before the run did: %v", err)
		default:
		}
		if err := plain.QueryRow(t.Context(), "SELECT watched FROM stet.records WHERE id = $1", rec.ID[:]).Scan(&marked); err != nil {
			t.Fatal(err)
		}
	}
	mustSettle(t, s, rec.Claim(), "x")
	if err := <-watched; err != nil {
		t.Errorf("Watch: %v", err)
	}
	if _, err := s.Sweep(t.Context(), 10); err != nil {
		t.Error(err)
	}
	if lost, err := s.Extend(t.Context(), []store.Claim{rec.Claim()}, time.Minute); err != nil || len(lost) != 1 {
		t.Errorf("Extend: %v, %v", lost, err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if n := called.n.Load(); n != 0 {
		t.Errorf("%d calls of the service's callbacks", n)
	}
}

func TestPageHasTheNumberOfConnections(t *testing.T) {
	s := &Store{o: Options{Writers: 2, Readers: 2}}
	config, err := pgxpool.ParseConfig("postgres://localhost/x")
	if err != nil {
		t.Fatal(err)
	}
	most := s.ownConfig(config).MaxConns
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "capacity.md"))
	if err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprintf("at most %d with the defaults of `postgres.Options`, %d while", most-maxLate, most); !strings.Contains(string(page), want) {
		t.Errorf("docs/capacity.md does not say %q", want)
	}
}
