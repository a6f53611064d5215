package postgres

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/store"
)

// COMMIT may take long. Until it has ended, another request under the key is refused, as while
// the function ran.
func TestFingerprintIsPublishedUntilTheCommit(t *testing.T) {
	s := ledger(t, Options{})
	execSQL(t, s.Pool(), `CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_advisory_xact_lock(4711); RETURN NULL; END $$;
		CREATE CONSTRAINT TRIGGER wait AFTER INSERT ON charges DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION wait()`)
	if err := s.Release(t.Context(), mustClaim(t, s, request("released")).Claim(), keep); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"new", "released"} {
		gate, err := s.Pool().Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = gate.Rollback(context.Background()) }()
		if _, err := gate.Exec(t.Context(), "SELECT pg_advisory_xact_lock(4711)"); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() {
			_, err := s.RunTx(context.Background(), request(key), keep, charge)
			ended <- err
		}()
		for waits := false; !waits; {
			if err := gate.QueryRow(t.Context(), "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted)").Scan(&waits); err != nil {
				t.Fatal(err)
			}
		}
		if rec, err := s.RunTx(t.Context(), request(key), keep, noWork); err != nil || rec.State != store.Running || !rec.InTx {
			t.Errorf("%s: the same request in the meantime: %+v, %v", key, rec, err)
		}
		another := request(key)
		another.Fingerprint = stet.NewFingerprint([]byte("something else"))
		if rec, err := s.RunTx(t.Context(), another, keep, noWork); !errors.Is(err, store.ErrMismatch) {
			t.Errorf("%s: another request in the meantime: %+v, %v; want ErrMismatch", key, rec, err)
		}
		if err := gate.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	stettest.Eventually(t, "no lock is left", func() bool { return len(heldLocks(t, s)) == 0 }) // no caller waits for a ROLLBACK
}

// The server reads its table of locks one by one. In the meantime the holder of the key's lock may begin its
// transaction.
func TestConcurrentTransactionIsSeenWhileItBegins(t *testing.T) {
	s := open(t, nil, Options{})
	req, other := request("k"), request("k")
	other.Fingerprint = stet.NewFingerprint([]byte("something else"))
	held, mine := s.locks(other.ID, other.Fingerprint), s.locks(req.ID, req.Fingerprint)
	conn, err := s.Pool().Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	if _, err := conn.Exec(t.Context(), "SELECT pg_advisory_lock($1::bigint), pg_advisory_lock($2::integer, $3::integer)", held.key, held.id, held.finger); err != nil {
		t.Fatal(err)
	}
	var stop atomic.Bool
	done := make(chan error, 1)
	go func() {
		for !stop.Load() {
			if _, err := conn.Exec(context.Background(), "SELECT 1"); err != nil {
				done <- err
				return
			}
		}
		_, err := conn.Exec(context.Background(), "SELECT pg_advisory_unlock_all()")
		done <- err
	}()
	missed := 0
	for range 3000 {
		var seen bool
		if err := s.Pool().QueryRow(t.Context(), s.sql.concurrent.sql, mine.keyHi, mine.keyLo, mine.idU, mine.fingerU).Scan(&seen); err != nil {
			t.Fatal(err)
		}
		if !seen {
			missed++
		}
	}
	stop.Store(true)
	if err := <-done; err != nil || missed > 0 {
		t.Errorf("%v; the other claimant was missed %d times of 3000", err, missed)
	}
}

// halfConn is a connection whose client disappears in the middle of a message: the server gets its first
// statement, and does not receive the end.
type halfConn struct {
	net.Conn
	cut, gone atomic.Bool
}

func (c *halfConn) Write(b []byte) (int, error) {
	if !c.cut.Load() {
		return c.Conn.Write(b)
	}
	if c.gone.Swap(true) {
		return len(b), nil
	}
	n := 0
	for n+5 <= len(b) {
		kind := b[n]
		n += 1 + int(binary.BigEndian.Uint32(b[n+1:]))
		if kind == 'E' { // Execute
			break
		}
	}
	_, err := c.Conn.Write(b[:min(n, len(b))])
	return len(b), err
}

func (c *halfConn) Read(b []byte) (int, error) {
	if c.gone.Load() {
		return 0, io.ErrUnexpectedEOF
	}
	return c.Conn.Read(b)
}

func (c *halfConn) Close() error {
	if c.gone.Load() {
		return nil
	}
	return c.Conn.Close()
}

// A client that goes between the record and its COMMIT leaves a transaction that waits for the rest: it
// is ended, and does not keep its key.
func TestTransactionThatWasSentByHalfIsEnded(t *testing.T) {
	config := database(t).Config()
	config.MaxConns = 1
	dial := config.ConnConfig.DialFunc
	var last atomic.Pointer[halfConn]
	config.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		half := &halfConn{Conn: c}
		t.Cleanup(func() { _ = c.Close() })
		return half, nil
	}
	config.AfterConnect = func(_ context.Context, c *pgx.Conn) error {
		last.Store(c.PgConn().Conn().(*halfConn))
		return nil
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	s := open(t, pool, Options{})
	s.commitTimeout = 2 * time.Second
	execSQL(t, pool, "CREATE TABLE charges (name text)")
	accepted := mustClaim(t, s, request("in tx")).Claim()
	inTx := func(key store.Claim, cut bool) error {
		return s.InTx(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
			_, err := charge(ctx, tx, store.Record{})
			if err == nil {
				err = s.SettleTx(ctx, tx, key, completed("x"), keep)
			}
			last.Load().cut.Store(cut)
			return err
		})
	}
	runTx := func(key string, cut bool) error {
		_, err := s.RunTx(t.Context(), request(key), keep, func(ctx context.Context, tx pgx.Tx, rec store.Record) (store.Settlement, error) {
			out, err := charge(ctx, tx, rec)
			last.Load().cut.Store(cut)
			return out, err
		})
		return err
	}
	for name, call := range map[string][2]func() error{
		"RunTx": {func() error { return runTx("warm", false) }, func() error { return runTx("k", true) }},
		"InTx":  {func() error { return inTx(mustClaim(t, s, request("warm in tx")).Claim(), false) }, func() error { return inTx(accepted, true) }},
	} {
		if err := call[0](); err != nil { // statements are prepared
			t.Fatal(err)
		}
		before, begun := charges(t, s), time.Now()
		err := call[1]()
		if err == nil || errors.Is(err, store.ErrUnknown) || time.Since(begun) >= s.commitTimeout {
			t.Errorf("%s: %v; want it to be ended", name, err)
		}
		if charges(t, s) != before {
			t.Errorf("%s: it has charged", name)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := s.Settle(ctx, accepted, completed("y"), keep); err != nil {
		t.Errorf("Settle of what InTx had: %v", err)
	}
	if err := runTx("k", false); err != nil {
		t.Errorf("the next transaction: %v", err)
	}
}

// A statement that is not sent, because its context had ended, does not abort the transaction.
func TestStatementThatIsNotSentAbortsNothing(t *testing.T) {
	s := ledger(t, Options{})
	late := func(ctx context.Context, tx pgx.Tx) {
		ended, cancel := context.WithCancel(ctx)
		cancel()
		_, exec := tx.Exec(ended, "INSERT INTO charges VALUES ('late')")
		_, query := tx.Query(ended, "SELECT 1")
		_, begin := tx.Begin(ended)
		for _, err := range []error{exec, query, begin, tx.QueryRow(ended, "SELECT 1").Scan(new(int))} {
			if !errors.Is(err, context.Canceled) {
				t.Errorf("after its time: %v", err)
			}
		}
	}
	if _, err := s.RunTx(t.Context(), request("k"), keep, func(ctx context.Context, tx pgx.Tx, rec store.Record) (store.Settlement, error) {
		late(ctx, tx)
		return charge(ctx, tx, rec)
	}); err != nil {
		t.Errorf("RunTx: %v", err)
	}
	if err := s.InTx(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
		late(ctx, tx)
		_, err := charge(ctx, tx, store.Record{})
		return err
	}); err != nil {
		t.Errorf("InTx: %v", err)
	}
	if n := charges(t, s); n != 2 {
		t.Errorf("%d charges; want 2", n)
	}
	stettest.Eventually(t, "the pool has all its connections", func() bool { return s.Pool().Stat().AcquiredConns() == 0 })
}

// A function that forgets to close the rows of its first statement, or whose connection is lost while it
// reads them, has committed nothing, and gets that error.
func TestRowsOfTheFirstStatementLeftOpen(t *testing.T) {
	s := ledger(t, Options{})
	lost := func(ctx context.Context, tx pgx.Tx) {
		rows, err := tx.Query(ctx, "SELECT n, pg_backend_pid(), repeat('x', 1000) FROM generate_series(1, 100000) n")
		if err != nil {
			t.Error(err)
			return
		}
		for rows.Next() {
			values := rows.RawValues()
			if pid := values[1]; bytes.Equal(values[0], []byte{0, 0, 0, 9}) {
				execSQL(t, s.Pool(), "SELECT pg_terminate_backend($1)", int32(binary.BigEndian.Uint32(pid)))
			}
		}
		if rows.Err() == nil {
			t.Error("the connection was not lost")
		}
	}
	for name, use := range map[string]func(context.Context, pgx.Tx){
		"row": func(ctx context.Context, tx pgx.Tx) {
			tx.QueryRow(ctx, "INSERT INTO charges VALUES ('x') RETURNING name")
		},
		"rows": func(ctx context.Context, tx pgx.Tx) {
			_, _ = tx.Query(ctx, "INSERT INTO charges VALUES ('x') RETURNING name")
		},
		"lost": lost,
	} {
		_, err := s.RunTx(t.Context(), request(name), keep, func(ctx context.Context, tx pgx.Tx, _ store.Record) (store.Settlement, error) {
			use(ctx, tx)
			return completed("x"), nil
		})
		if err == nil || errors.Is(err, store.ErrUnknown) {
			t.Errorf("RunTx, %s: %v; want it known that nothing was committed", name, err)
		}
		err = s.InTx(t.Context(), func(ctx context.Context, tx pgx.Tx) error { use(ctx, tx); return nil })
		if err == nil || errors.Is(err, store.ErrUnknown) {
			t.Errorf("InTx, %s: %v; want it known that nothing was committed", name, err)
		}
		nothing(t, s, name)
		execSQL(t, s.Pool(), "TRUNCATE charges")
	}
}

// A server that was restarted, or that ends idle sessions, has closed all connections of the
// store. The store notices that when it uses them.
func TestStoreContinuesWhenAllItsConnectionsHaveEnded(t *testing.T) {
	s := open(t, nil, Options{})
	claim := mustClaim(t, s, request("before")).Claim()
	var conns []*pgxpool.Conn
	for range 12 {
		c, err := s.own.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
	}
	for _, c := range conns {
		pid := int32(c.Conn().PgConn().PID())
		execSQL(t, s.Pool(), "SELECT pg_terminate_backend($1)", pid)
		for there := true; there; {
			if err := s.Pool().QueryRow(t.Context(), "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1)", pid).Scan(&there); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, c := range conns {
		c.Release()
	}
	if err := s.Settle(t.Context(), claim, completed("x"), keep); err != nil {
		t.Errorf("Settle: %v", err)
	}
}
