package stetmsg_test

import (
	"context"
	"database/sql"
	"log/slog"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/stetmsg"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
	"github.com/stet-go/stet/store/sqlite"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// order is a message.
type order struct{ ID, Body string }

func operation(m order) (stet.Op, error) {
	return stet.Op{Scope: "orders", Key: m.ID, Fingerprint: stet.NewFingerprint([]byte(m.Body))}, nil
}

func options() stetmsg.Options[order] {
	return stetmsg.Options[order]{Operation: operation, ErrorLog: slog.New(slog.DiscardHandler),
		Backoff: func(n int) time.Duration { return time.Duration(n) * time.Second }}
}

// bench is an engine on a store.
type bench struct {
	t      *testing.T
	store  store.Store
	engine *stet.Engine
}

func newBench(t *testing.T, store store.Store, p stet.Policy) *bench {
	t.Helper()
	engine := stettest.Engine(t, store, stet.Options{Policy: p, SweepEvery: -1})
	return &bench{t, store, engine}
}

func inMemory(t *testing.T, p stet.Policy) *bench {
	t.Helper()
	return newBench(t, memory.New(memory.Options{}), p)
}

type handler = func(context.Context, order) ([]byte, error)

// consumer returns a lease-mode consumer; change may change its options.
func (b *bench) consumer(h handler, change ...func(*stetmsg.Options[order])) *stetmsg.Consumer[order] {
	b.t.Helper()
	o := options()
	for _, f := range change {
		f(&o)
	}
	c, err := stetmsg.New(b.engine, o, h)
	if err != nil {
		b.t.Fatal(err)
	}
	return c
}

func (b *bench) state(key string) store.State {
	b.t.Helper()
	rec, err := b.store.Read(context.Background(), b.engine.ID("orders", key))
	if err != nil {
		b.t.Fatal(err)
	}
	return rec.State
}

// onSQLite returns a store with transactions, and a table of effects in it.
func onSQLite(t *testing.T) *sqlite.Store {
	t.Helper()
	s, err := sqlite.Open(context.Background(), t.TempDir()+"/stet.db", sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	if _, err := s.DB().Exec(`CREATE TABLE effects (id TEXT)`); err != nil {
		t.Fatal(err)
	}
	return s
}

func effects(t *testing.T, s *sqlite.Store) (n int) {
	t.Helper()
	if err := s.DB().QueryRow(`SELECT count(*) FROM effects`).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

type txHandler = func(context.Context, *sql.Tx, order) ([]byte, error)

func (b *bench) consumerTx(s store.TxStore[*sql.Tx], h txHandler, change ...func(*stetmsg.Options[order])) *stetmsg.Consumer[order] {
	b.t.Helper()
	o := options()
	for _, f := range change {
		f(&o)
	}
	c, err := stetmsg.NewTx(stettest.TxEngine(b.engine, s), o, h)
	if err != nil {
		b.t.Fatal(err)
	}
	return c
}

func insert(ctx context.Context, tx *sql.Tx, m order) ([]byte, error) {
	_, err := tx.ExecContext(ctx, `INSERT INTO effects VALUES (?)`, m.ID)
	return []byte("inserted"), err
}

// wants compares a decision.
func wants(t *testing.T, d stetmsg.Decision, a stetmsg.Action, r stetmsg.Reason) {
	t.Helper()
	if d.Action != a || d.Reason != r {
		t.Fatalf("%v, %v (%v); want %v, %v", d.Action, d.Reason, d.Err, a, r)
	}
}

// delivery records the calls of a broker.
type delivery struct {
	n     int
	every time.Duration
	on    func() // called before each call is recorded

	mu    sync.Mutex
	calls []string
	after time.Duration
}

func (d *delivery) note(call string) error {
	if d.on != nil {
		d.on()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls = append(d.calls, call)
	return nil
}

func (d *delivery) Deliveries() int           { return d.n }
func (d *delivery) Ack(context.Context) error { return d.note("ack") }
func (d *delivery) Retry(_ context.Context, after time.Duration) error {
	d.after = after
	return d.note("retry")
}
func (d *delivery) DeadLetter(_ context.Context, why stetmsg.Decision) error {
	return d.note("dead-letter " + string(why.Reason))
}
func (d *delivery) Extend(context.Context) error { return d.note("extend") }
func (d *delivery) ExtendEvery() time.Duration   { return d.every }
