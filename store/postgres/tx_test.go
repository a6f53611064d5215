package postgres

import (
	"context"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/store"
)

// ledger is a store with a table of charges beside it.
func ledger(t testing.TB, o Options) *Store {
	t.Helper()
	s := open(t, nil, o)
	execSQL(t, s.Pool(), "CREATE TABLE charges (name text)")
	return s
}

func charge(ctx context.Context, tx pgx.Tx, _ store.Record) (store.Settlement, error) {
	_, err := tx.Exec(ctx, "INSERT INTO charges VALUES ('charge')")
	return completed("charged"), err
}

func charges(t testing.TB, s *Store) (n int) {
	t.Helper()
	if err := s.Pool().QueryRow(context.Background(), "SELECT count(*) FROM charges").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// nothing requires that the key be free and nothing charged, and that it can be
// charged now.
func nothing(t testing.TB, s *Store, key string) {
	t.Helper()
	if rec := mustRead(t, s, request(key).ID); rec.State != store.None || charges(t, s) != 0 {
		t.Errorf("left behind: %+v, %d charges", rec, charges(t, s))
	}
	if rec, err := s.RunTx(context.Background(), request(key), keep, charge); err != nil || rec.State != store.Completed {
		t.Errorf("the next transaction: %+v, %v", rec, err)
	}
	stettest.Eventually(t, "the pool has all its connections", func() bool { return s.Pool().Stat().AcquiredConns() == 0 })
}

func TestSavepointsWork(t *testing.T) {
	s := ledger(t, Options{})
	_, err := s.RunTx(t.Context(), request("k"), keep, func(ctx context.Context, tx pgx.Tx, r store.Record) (store.Settlement, error) {
		inner, err := tx.Begin(ctx)
		if err != nil {
			return store.Settlement{}, err
		}
		if _, err := inner.Exec(ctx, "SELECT 1/0"); err == nil {
			t.Error("no error")
		}
		if err := inner.Rollback(ctx); err != nil {
			return store.Settlement{}, err
		}
		if inner, err = tx.Begin(ctx); err != nil {
			return store.Settlement{}, err
		}
		if _, err := charge(ctx, inner, r); err != nil {
			return store.Settlement{}, err
		}
		return completed("charged"), inner.Commit(ctx)
	})
	if err != nil || charges(t, s) != 1 {
		t.Errorf("RunTx: %v, %d charges", err, charges(t, s))
	}
}

func TestFunctionCannotEndTheTransaction(t *testing.T) {
	for name, c := range map[string]struct {
		end     func(context.Context, pgx.Tx) error
		unknown bool
	}{
		"commit":        {func(ctx context.Context, tx pgx.Tx) error { return tx.Commit(ctx) }, false},
		"rollback":      {func(ctx context.Context, tx pgx.Tx) error { return tx.Rollback(ctx) }, false},
		"ignored error": {func(ctx context.Context, tx pgx.Tx) error { _, _ = tx.Exec(ctx, "SELECT 1/0"); return nil }, false},
		"SQL":           {func(ctx context.Context, tx pgx.Tx) error { _, err := tx.Exec(ctx, "COMMIT"); return err }, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := ledger(t, Options{})
			_, err := s.RunTx(t.Context(), request("k"), keep, func(ctx context.Context, tx pgx.Tx, r store.Record) (store.Settlement, error) {
				out, err := charge(ctx, tx, r)
				return out, errors.Join(err, c.end(ctx, tx))
			})
			if err == nil || errors.Is(err, store.ErrUnknown) != c.unknown {
				t.Errorf("RunTx: %v; want unknown: %v", err, c.unknown)
			}
			if !c.unknown {
				nothing(t, s, "k")
			}
		})
	}
}

// A service may clean its connections up, and several stores may share them.
func TestTransactionsShareConnections(t *testing.T) {
	config := database(t).Config()
	config.MaxConns = 1
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	execSQL(t, pool, "CREATE TABLE charges (name text)")
	stores := []*Store{open(t, pool, Options{}), open(t, pool, Options{Table: "others"})}
	n := 0
	for _, clean := range []string{"SELECT 1", "DISCARD ALL", "DEALLOCATE ALL"} {
		for _, s := range stores {
			req := request(clean)
			if rec, err := s.RunTx(t.Context(), req, keep, charge); err != nil || rec.State != store.Completed {
				t.Errorf("after %s: %+v, %v", clean, rec, err)
			}
			n++
			if rec := mustRead(t, s, req.ID); string(rec.Result.Body) != "charged" || rec.Attempt != 1 || rec.Scope != req.Scope ||
				rec.Owner != req.Owner || rec.Fingerprint != req.Fingerprint || rec.ExpiresAt.Sub(rec.SettledAt) != keep.Result ||
				rec.ForgetAt.Sub(rec.SettledAt) != keep.Tombstone || rec.ClaimedAt.IsZero() || rec.ClaimedAt.After(rec.SettledAt) {
				t.Errorf("after %s: %+v", clean, rec)
			}
			if _, err := pool.Exec(t.Context(), clean, pgx.QueryExecModeSimpleProtocol); err != nil {
				t.Fatal(err)
			}
		}
	}
	if got := charges(t, stores[0]); got != n {
		t.Errorf("%d charges; want %d", got, n)
	}
}

// A transaction through a pool that prepares nothing writes the same record.
func TestTransactionsWithoutPreparedStatements(t *testing.T) {
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec} {
		config := database(t).Config()
		config.ConnConfig.DefaultQueryExecMode = mode
		pool, err := pgxpool.NewWithConfig(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		execSQL(t, pool, "CREATE TABLE charges (name text)")
		s := open(t, pool, Options{})
		for _, out := range []store.Settlement{completed("x"), {State: store.Failed, Gone: true, Result: store.Result{Body: []byte("too large")}}, {State: store.Completed}} {
			rec, err := s.RunTx(t.Context(), request(out.State.String()+string(out.Result.Body)), keep, func(ctx context.Context, tx pgx.Tx, r store.Record) (store.Settlement, error) {
				_, err := charge(ctx, tx, r)
				return out, err
			})
			want := out.Result
			if out.Gone {
				want = store.Result{}
			}
			if got := mustRead(t, s, rec.ID); err != nil || got.State != out.State || got.Gone != out.Gone || !got.Result.Equal(want) {
				t.Errorf("%v: %+v, %v", mode, got, err)
			}
			var kept *string // NULL if there is none, which is not an empty one
			if err := pool.QueryRow(t.Context(), "SELECT encode(body, 'escape') FROM stet.records WHERE id = $1::bytea", rec.ID[:]).Scan(&kept); err != nil || (kept == nil) != out.Gone {
				t.Errorf("%v: the row of %+v has the result %v, %v", mode, out, kept, err)
			}
		}
	}
}

func TestWaiterIsWokenByTheCommit(t *testing.T) {
	pool := database(t)
	s, other := open(t, pool, Options{}), open(t, pool, Options{})
	execSQL(t, pool, "CREATE TABLE charges (name text)")
	e := stettest.Engine(t, other, stet.Options{})
	first := stettest.Engine(t, s, stet.Options{})
	op := stet.Op{Scope: "s", Key: "k", Wait: 10 * time.Second}
	waits := make(chan error, 1)
	_, err := stet.DoTx(t.Context(), stettest.TxEngine(first, s), op, func(ctx context.Context, tx pgx.Tx) (string, error) {
		go func() {
			res, err := stet.DoTx(context.Background(), stettest.TxEngine(e, other), op, func(context.Context, pgx.Tx) (string, error) { return "twice", nil })
			if err == nil && (res.Value != "once" || !res.Replayed) {
				err = errors.New("it ran again")
			}
			waits <- err
		}()
		for {
			var n int // until the waiter has hung up its sign
			q := "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ShareLock' AND objsubid = 1"
			if err := pool.QueryRow(ctx, q).Scan(&n); err != nil || n > 0 {
				return "once", err
			}
		}
	})
	if err := errors.Join(err, <-waits); err != nil {
		t.Error(err)
	}
}

// cutConn is a connection that can be cut when something is sent next.
type cutConn struct {
	net.Conn
	mode   atomic.Int32
	cut    atomic.Bool
	writes atomic.Int32
}

const (
	whole      = iota
	replyLost  // the request arrives, the reply does not
	queryLost  // the request does not arrive
	clientGone // the same, and the server does not receive the end
)

func (c *cutConn) Write(b []byte) (int, error) {
	c.writes.Add(1)
	mode := c.mode.Load()
	if mode == whole || b[0] == 'P' { // Parse: a statement that is new to the connection
		return c.Conn.Write(b)
	}
	if !c.cut.Swap(true) && mode == replyLost {
		_, _ = c.Conn.Write(b)
	}
	return len(b), nil
}

func (c *cutConn) Read(b []byte) (int, error) {
	if c.cut.Load() {
		return 0, io.ErrUnexpectedEOF
	}
	n, err := c.Conn.Read(b)
	if c.cut.Load() { // in the meantime: the driver reads beside a write that is slow
		return 0, io.ErrUnexpectedEOF
	}
	return n, err
}

func (c *cutConn) Close() error {
	if c.mode.Load() == clientGone {
		return nil
	}
	return c.Conn.Close()
}

// frail is a ledger whose connections can be cut, and kept from being made.
func frail(t testing.TB, timeout time.Duration) (s *Store, down *atomic.Bool) {
	down = new(atomic.Bool)
	config, err := pgxpool.ParseConfig(rig.Postgres(t).Database(t))
	if err != nil {
		t.Fatal(err)
	}
	dial := config.ConnConfig.DialFunc
	config.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if down.Load() {
			return nil, errors.New("the network is down")
		}
		c, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		cut := &cutConn{Conn: c}
		t.Cleanup(func() { _ = c.Close() })
		return cut, nil
	}
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	s = open(t, pool, Options{})
	s.commitTimeout = timeout
	execSQL(t, pool, "CREATE TABLE charges (name text)")
	return s, down
}

// cutAfter is charge, on a connection that is cut at the commit.
func cutAfter(mode int32) function {
	return func(ctx context.Context, tx pgx.Tx, r store.Record) (store.Settlement, error) {
		out, err := charge(ctx, tx, r)
		tx.Conn().PgConn().Conn().(*cutConn).mode.Store(mode)
		return out, err
	}
}

func TestUnacknowledgedCommitIsQueried(t *testing.T) {
	s, _ := frail(t, 10*time.Second)
	committed, tries := 0, 100
	for range tries {
		// The driver asks the server to cancel when it loses a connection, so
		// that now and then nothing is committed although everything arrived.
		key := stet.NewKey()
		rec, err := s.RunTx(t.Context(), request(key), keep, cutAfter(replyLost))
		switch {
		case err == nil && rec.State == store.Completed:
			committed++
		case err == nil || errors.Is(err, store.ErrUnknown):
			t.Fatalf("a commit whose reply was lost: %+v, %v; want it known what became of it", rec, err)
		}
		if got := mustRead(t, s, request(key).ID); (got.State == store.Completed) != (err == nil) {
			t.Fatalf("RunTx: %v, and the record is %+v", err, got)
		}
		if _, err = s.RunTx(t.Context(), request(stet.NewKey()), keep, cutAfter(queryLost)); err == nil || errors.Is(err, store.ErrUnknown) {
			t.Fatalf("a commit that never arrived: %v; want it known that nothing was committed", err)
		}
		if n := charges(t, s); n != committed {
			t.Fatalf("%d charges; %d were acknowledged", n, committed)
		}
	}
	if committed < tries/2 {
		t.Errorf("only %d of %d were committed", committed, tries)
	}
}

func TestTransactionWithoutItsClientIsEnded(t *testing.T) {
	s, _ := frail(t, 2*time.Second)
	_, err := s.RunTx(t.Context(), request("k"), keep, cutAfter(clientGone))
	if err == nil || errors.Is(err, store.ErrUnknown) {
		t.Errorf("RunTx: %v; want it known that nothing was committed", err)
	}
	nothing(t, s, "k")
}

func TestCommitIsUnknownWhenItCannotBeQueried(t *testing.T) {
	s, down := frail(t, 300*time.Millisecond)
	s.own.Reset() // new connections fail
	_, err := s.RunTx(t.Context(), request("k"), keep, func(ctx context.Context, tx pgx.Tx, r store.Record) (store.Settlement, error) {
		down.Store(true)
		return cutAfter(replyLost)(ctx, tx, r)
	})
	if !errors.Is(err, store.ErrUnknown) {
		t.Errorf("RunTx: %v; want ErrUnknown", err)
	}
	down.Store(false)
	if rec := mustRead(t, s, request("k").ID); rec.State != store.Completed {
		t.Errorf("afterwards: %+v", rec)
	}
}

// A transaction that asks for something else, and will be refused, may hold the
// lock for a moment after the operation was committed. A caller that finds the lock and has
// not seen the commit must not get a mismatch.
func TestConcurrentTransactionDoesNotHideACommittedOutcome(t *testing.T) {
	s := open(t, nil, Options{})
	req := request("k")
	if _, err := s.RunTx(t.Context(), req, keep, func(context.Context, pgx.Tx, store.Record) (store.Settlement, error) { return completed("x"), nil }); err != nil {
		t.Fatal(err)
	}
	other := req
	other.Fingerprint = stet.NewFingerprint([]byte("something else"))
	held := s.locks(other.ID, other.Fingerprint)
	tx, err := s.Pool().Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, err := tx.Exec(t.Context(), "SELECT pg_advisory_xact_lock($1::bigint), pg_advisory_xact_lock($2::integer, $3::integer)", held.key, held.id, held.finger); err != nil {
		t.Fatal(err)
	}
	query := txQuery{func(st *statement, args ...any) scanner { return s.Pool().QueryRow(t.Context(), st.sql, args...) }, pgx.ErrNoRows}
	late := &transaction{s: s, req: &req, locks: s.locks(req.ID, req.Fingerprint), fence: -1} // its statement saw no record, and the lock taken
	if rec, err := late.busy(t.Context(), query); err != nil || rec.State != store.Completed || string(rec.Result.Body) != "x" {
		t.Errorf("%+v, %v", rec, err)
	}
	other = request("k")
	other.Fingerprint = stet.NewFingerprint([]byte("a third thing"))
	late = &transaction{s: s, req: &other, locks: s.locks(other.ID, other.Fingerprint), fence: -1}
	if _, err := late.busy(t.Context(), query); !errors.Is(err, store.ErrMismatch) {
		t.Errorf("a request that was never committed: %v", err)
	}
}

// What a function leaves behind, a goroutine or a late Rollback, which pgx calls
// safe, must not reach the next user of the connection.
func TestTransactionThatWasKeptIsClosed(t *testing.T) {
	config, err := pgxpool.ParseConfig(database(t).Config().ConnString())
	if err != nil {
		t.Fatal(err)
	}
	config.MaxConns = 1
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	s := open(t, pool, Options{})
	execSQL(t, pool, "CREATE TABLE effects (who text)")
	var kept pgx.Tx
	charge := func(who string, then func()) func(context.Context, pgx.Tx, store.Record) (store.Settlement, error) {
		return func(ctx context.Context, tx pgx.Tx, _ store.Record) (store.Settlement, error) {
			then()
			if kept == nil {
				kept = tx
			}
			_, err := tx.Exec(ctx, "INSERT INTO effects VALUES ($1)", who)
			return completed(who), err
		}
	}
	if _, err := s.RunTx(t.Context(), request("alice"), keep, charge("alice", func() {})); err != nil {
		t.Fatal(err)
	}
	meddle := func() {
		if _, err := kept.Exec(context.Background(), "INSERT INTO effects VALUES ('late')"); !errors.Is(err, pgx.ErrTxClosed) {
			t.Errorf("a write after the commit: %v", err)
		}
		if err := kept.Rollback(context.Background()); !errors.Is(err, pgx.ErrTxClosed) {
			t.Errorf("a rollback after the commit: %v", err)
		}
	}
	meddle()
	if _, err := s.RunTx(t.Context(), request("bob"), keep, charge("bob", meddle)); err != nil {
		t.Fatalf("the next transaction on the connection: %v", err)
	}
	if _, err := s.RunTx(t.Context(), request("alice"), keep, charge("twice", func() { t.Error("ran again") })); err != nil {
		t.Fatal(err)
	}
	var n int
	if err := pool.QueryRow(t.Context(), "SELECT count(*) FROM effects").Scan(&n); err != nil || n != 2 {
		t.Errorf("%d effects, %v", n, err)
	}
}
