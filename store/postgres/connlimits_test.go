package postgres

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/internal/timer"
	"github.com/stet-go/stet/store"
)

// inTime is how long a call on a free key may take beside others that wait.
const inTime = 15 * time.Second

// held are keys that two transactions of another process hold and do not end.
type held struct {
	settling, unknown, dead store.Claim // SettleTx: running, marked unknown, and running with a lease that has run out
	accepting, again        string      // AcceptTx: an unused key, and a released one
	ends                    []pgx.Tx
}

// holdKeys has a process begin to settle and to accept, and stop before it commits.
func holdKeys(t *testing.T, s *Store) *held {
	h := &held{settling: taken(t, s).Claim(), unknown: taken(t, s).Claim(), accepting: stet.NewKey(), again: stet.NewKey()}
	execSQL(t, s.Pool(), "UPDATE stet.records SET lease_until = now(), due_at = now() WHERE id = $1", h.unknown.ID[:])
	if _, err := s.Sweep(t.Context(), 10); err != nil {
		t.Fatal(err)
	}
	h.dead = taken(t, s).Claim()
	execSQL(t, s.Pool(), "UPDATE stet.records SET lease_until = now(), due_at = now() WHERE id = $1", h.dead.ID[:])
	if err := s.Release(t.Context(), mustClaim(t, s, request(h.again)).Claim(), keep); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		tx, err := s.Pool().Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
		h.ends = append(h.ends, tx)
	}
	for i, c := range []store.Claim{h.settling, h.unknown, h.dead} {
		if err := s.SettleTx(t.Context(), h.ends[i%2], c, completed("x"), keep); err != nil {
			t.Fatal(err)
		}
	}
	for i, key := range []string{h.accepting, h.again} {
		if _, err := s.AcceptTx(t.Context(), h.ends[i], request(key), []byte("work"), 0); err != nil {
			t.Fatal(err)
		}
	}
	return h
}

// calls are what others ask of the held keys.
func (h *held) calls(s *Store) (all []func(context.Context) error) {
	ask := func(ctx context.Context, id store.ID) error {
		req := request(stet.NewKey())
		req.ID = id
		_, err := s.Claim(ctx, req)
		return err
	}
	for _, c := range []store.Claim{h.settling, h.unknown, h.dead} {
		all = append(all,
			func(ctx context.Context) error { return ask(ctx, c.ID) },
			func(ctx context.Context) error { return s.Settle(ctx, c, completed("y"), keep) },
			func(ctx context.Context) error { return s.Release(ctx, c, keep) },
			func(ctx context.Context) error { return s.Return(ctx, c, 0) },
			func(ctx context.Context) error { return s.Save(ctx, c, store.Notes{Version: 1}, false) },
			func(ctx context.Context) error { return s.Amend(ctx, c, store.Notes{Version: 1}) },
			func(ctx context.Context) error { _, err := s.Cancel(ctx, c, completed("y"), keep); return err },
			func(ctx context.Context) error {
				_, err := s.Take(ctx, store.TakeRequest{ID: c.ID, Owner: store.NewOwner(), Lease: time.Minute})
				return err
			},
			func(ctx context.Context) error { return s.Expire(ctx, c) },
			func(ctx context.Context) error { return s.Watch(ctx, c.ID, c.Fence) },
			func(ctx context.Context) error {
				req := request(stet.NewKey())
				req.ID = c.ID
				_, err := s.RunTx(ctx, req, keep, func(context.Context, pgx.Tx, store.Record) (store.Settlement, error) { return completed("y"), nil })
				return err
			})
	}
	for _, key := range []string{h.accepting, h.again} {
		all = append(all,
			func(ctx context.Context) error { return ask(ctx, request(key).ID) },
			func(ctx context.Context) error { _, err := s.Accept(ctx, request(key), []byte("work"), 0); return err })
	}
	return all
}

// Two transactions that a stopped process has left open, over keys whose callers
// retry, hold up nothing else of another process.
func TestHeldKeysHoldUpNoOthers(t *testing.T) {
	t.Run("direct", func(t *testing.T) { heldKeysHoldUpNoOthers(t, database(t), Options{}) })
	t.Run("PgBouncer", func(t *testing.T) { heldKeysHoldUpNoOthers(t, bounced(t, rig.Postgres(t)), Options{PgBouncer: true}) })
}

func heldKeysHoldUpNoOthers(t *testing.T, pool *pgxpool.Pool, o Options) {
	h := holdKeys(t, open(t, pool, o))
	s, err := New(t.Context(), pool, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	before := []store.Claim{mustClaim(t, s, request("run")).Claim(), mustClaim(t, s, request("another")).Claim()}
	run := taken(t, s)

	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	for _, call := range h.calls(s) {
		for range 2 {
			wg.Go(func() {
				for ctx.Err() == nil {
					short, stop := context.WithTimeout(ctx, inTime/3)
					_ = call(short)
					stop()
					timer.Sleep(ctx, 20*time.Millisecond) // as retries do
				}
			})
		}
	}
	for range 10 {
		others(t, s, before)
		if t.Failed() {
			return
		}
	}
	in(t, "Settle", func(ctx context.Context) error { return s.Settle(ctx, run.Claim(), completed("x"), keep) })
	for _, c := range before {
		in(t, "Settle", func(ctx context.Context) error { return s.Settle(ctx, c, completed("x"), keep) })
	}
}

// in requires that call succeed in time.
func in(t *testing.T, what string, call func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), inTime)
	defer cancel()
	if err := call(ctx); err != nil {
		t.Errorf("%s: %v", what, err)
	}
}

// others makes one call of each kind on keys that are free.
func others(t *testing.T, s *Store, claims []store.Claim) {
	req, work, given := request(stet.NewKey()), request(stet.NewKey()), request(stet.NewKey())
	var rec store.Record
	in(t, "Extend", func(ctx context.Context) error {
		lost, err := s.Extend(ctx, claims, time.Minute)
		if len(lost) > 0 {
			err = fmt.Errorf("lost %v", lost)
		}
		return err
	})
	in(t, "Claim", func(ctx context.Context) (err error) { rec, err = s.Claim(ctx, req); return err })
	in(t, "mark", func(ctx context.Context) error { return s.mark(ctx, rec.ID, rec.Fence) })
	in(t, "Settle", func(ctx context.Context) error { return s.Settle(ctx, rec.Claim(), completed("x"), keep) })
	in(t, "settled again", func(ctx context.Context) error { return s.Settle(ctx, rec.Claim(), completed("x"), keep) })
	in(t, "Expire", func(ctx context.Context) error { return s.Expire(ctx, rec.Claim()) })
	in(t, "Claim", func(ctx context.Context) (err error) { rec, err = s.Claim(ctx, given); return err })
	in(t, "Release", func(ctx context.Context) error { return s.Release(ctx, rec.Claim(), keep) })
	given.Owner = store.NewOwner()
	in(t, "Claim of a released key", func(ctx context.Context) error { _, err := s.Claim(ctx, given); return err })
	in(t, "Accept", func(ctx context.Context) error { _, err := s.Accept(ctx, work, []byte("work"), 0); return err })
	in(t, "Take", func(ctx context.Context) (err error) {
		rec, err = s.Take(ctx, store.TakeRequest{ID: work.ID, Owner: store.NewOwner(), Lease: time.Minute})
		return err
	})
	in(t, "Save", func(ctx context.Context) error { return s.Save(ctx, rec.Claim(), store.Notes{Version: 1}, false) })
	in(t, "Look", func(ctx context.Context) error { _, err := s.Look(ctx, rec.ID); return err })
	in(t, "Return", func(ctx context.Context) error { return s.Return(ctx, rec.Claim(), 0) })
	in(t, "Cancel", func(ctx context.Context) error {
		_, err := s.Cancel(ctx, rec.Claim(), completed("x"), keep)
		return err
	})
	in(t, "Read", func(ctx context.Context) error { _, err := s.Read(ctx, rec.ID); return err })
	in(t, "Due", func(ctx context.Context) error { _, err := s.Due(ctx, 10, time.Hour); return err })
	in(t, "Sweep", func(ctx context.Context) error { _, err := s.Sweep(ctx, 10); return err })
	in(t, "Browse", func(ctx context.Context) error { _, err := s.Browse(ctx, store.Query{Limit: 10}); return err })
	in(t, "RunTx", func(ctx context.Context) error {
		_, err := s.RunTx(ctx, request(stet.NewKey()), keep, func(context.Context, pgx.Tx, store.Record) (store.Settlement, error) { return completed("x"), nil })
		return err
	})
}

// Calls for a locked key get it, or its state, when the lock is released.
func TestHeldKeyIsHadWhenItIsFree(t *testing.T) {
	s := open(t, nil, Options{})
	for _, commit := range []bool{true, false} {
		ran, req := taken(t, s), request(stet.NewKey())
		tx, err := s.Pool().Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback(context.Background()) }()
		if err := s.SettleTx(t.Context(), tx, ran.Claim(), completed("tx"), keep); err != nil {
			t.Fatal(err)
		}
		if _, err := s.AcceptTx(t.Context(), tx, req, []byte("work"), 0); err != nil {
			t.Fatal(err)
		}
		claims, settles := make(chan store.Record, 4), make(chan error, 4)
		for range cap(claims) {
			go func() {
				other := request(stet.NewKey())
				other.ID, other.Fingerprint = req.ID, req.Fingerprint
				rec, err := s.Claim(context.Background(), other)
				if err != nil {
					t.Errorf("Claim: %v", err)
				}
				claims <- rec
			}()
			go func() { settles <- s.Settle(context.Background(), ran.Claim(), completed("x"), keep) }()
		}
		for !s.locked.has(req.ID) || !s.locked.has(ran.ID) {
			if err := t.Context().Err(); err != nil {
				t.Fatal(err)
			}
		}
		if err := end(t.Context(), tx, commit); err != nil {
			t.Fatal(err)
		}
		owners := make(map[store.Owner]bool)
		for range cap(claims) {
			rec, err := <-claims, <-settles
			owners[rec.Owner] = true
			if commit != (rec.State == store.Accepted && rec.Owner == req.Owner) || commit != errors.Is(err, store.ErrFenced) {
				t.Errorf("committed: %v; claimed: %+v; settled: %v", commit, rec, err)
			}
		}
		if len(owners) != 1 {
			t.Errorf("committed: %v; %d owners have the key", commit, len(owners))
		}
	}
}

// A lock on the whole table is waited for, as before: while an index is created,
// for one. No key is held then.
func TestLockedTableIsWaitedFor(t *testing.T) {
	s := open(t, nil, Options{})
	ran := mustClaim(t, s, request("before"))
	tx, err := s.Pool().Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, err := tx.Exec(t.Context(), "LOCK TABLE stet.records"); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 12)
	for i := range 4 {
		go func() { _, err := s.Claim(context.Background(), request(fmt.Sprint(i))); done <- err }()
		go func() { _, err := s.Read(context.Background(), ran.ID); done <- err }()
		go func() { done <- s.Settle(context.Background(), ran.Claim(), completed("x"), keep) }()
	}
	for tries := 0; tries < 3; { // each of them has waited for a while
		waiting := 0
		if err := s.Pool().QueryRow(t.Context(), "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'relation'").Scan(&waiting); err != nil {
			t.Fatal(err)
		}
		if waiting > 0 {
			tries++
		}
		if !timer.Sleep(t.Context(), 2*rowPatience) {
			t.Fatal(t.Context().Err())
		}
	}
	if n := s.locked.n.Load(); n > 0 {
		t.Errorf("%d keys are taken for held", n)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range cap(done) {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// Commits that were not answered are read, for long if the server is in trouble.
// Just then leases must be renewed.
func TestQueriesOfCommitsDelayNoOthers(t *testing.T) {
	s := open(t, nil, Options{})
	claims := []store.Claim{mustClaim(t, s, request("run")).Claim()}
	open, err := s.Pool().Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer func() { _ = open.Rollback(context.Background()) }()
	ended := make(chan error, 60)
	for i := range cap(ended) {
		req := request(fmt.Sprint(i))
		tx := &transaction{s: s, req: &req, locks: s.locks(req.ID, req.Fingerprint)}
		if _, err := open.Exec(t.Context(), sqlLock, tx.locks.key); err != nil {
			t.Fatal(err)
		}
		wg.Go(func() { ended <- tx.ended(0, func(context.Context, *pgxpool.Conn) error { return nil }) })
	}
	for range 5 {
		others(t, s, claims)
	}
	if err := open.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range cap(ended) {
		if err := <-ended; err != nil {
			t.Errorf("the transaction has ended, and: %v", err)
		}
	}
}

// deafConn is a connection over which nothing comes any more while its network is down.
type deafConn struct {
	net.Conn
	down *atomic.Bool
}

func (c *deafConn) Write(b []byte) (int, error) {
	if c.down.Load() {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

// A connection that was cut off is being closed for a while, by asking the server to
// cancel its statement. Leases are renewed once the network is back.
func TestHeartbeatGoesOutAsSoonAsTheNetworkIsBack(t *testing.T) {
	config, err := pgxpool.ParseConfig(rig.Postgres(t).Database(t))
	if err != nil {
		t.Fatal(err)
	}
	var down atomic.Bool
	over := make(chan struct{})
	defer close(over)
	dial := config.ConnConfig.DialFunc
	config.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if down.Load() {
			select {
			case <-ctx.Done():
			case <-over:
			}
			return nil, errors.New("the network is down")
		}
		c, err := dial(ctx, network, addr)
		return &deafConn{c, &down}, err
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	s := open(t, pool, Options{})
	claims := []store.Claim{mustClaim(t, s, request("run")).Claim()}
	each := func() {
		var wg sync.WaitGroup
		for range 40 {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
				defer cancel()
				eachUse(ctx, s, claims)
			})
		}
		wg.Wait()
	}
	var conns []*pgxpool.Conn // to be lost
	for range s.own.Config().MaxConns {
		c, err := s.own.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
	}
	for _, c := range conns {
		c.Release()
	}
	down.Store(true)
	for range 3 {
		each()
	}
	down.Store(false)
	ctx, cancel := context.WithTimeout(t.Context(), 3*connectPatience)
	defer cancel()
	for { // as the renewer does
		lost, err := s.Extend(ctx, claims, time.Minute)
		if err == nil && len(lost) == 0 {
			break
		}
		if len(lost) > 0 || !timer.Sleep(ctx, time.Second/2) {
			t.Fatalf("Extend: %v, %v", lost, err)
		}
	}
	others(t, s, claims)
}

// eachUse makes a call for each use of connections, and ignores its result.
func eachUse(ctx context.Context, s *Store, claims []store.Claim) {
	var wg sync.WaitGroup
	wg.Go(func() { _, _ = s.Extend(ctx, claims, time.Minute) })
	wg.Go(func() { _, _ = s.Claim(ctx, request(stet.NewKey())) })
	wg.Go(func() { _ = s.Settle(ctx, store.Claim{}, completed("x"), keep) })
	wg.Go(func() { _, _ = s.Read(ctx, claims[0].ID) })
	wg.Go(func() { _, _ = s.Look(ctx, claims[0].ID) })
	wg.Go(func() { _, _ = s.Browse(ctx, store.Query{}) })
	wg.Go(func() { _, _ = s.Sweep(ctx, 1) })
	wg.Wait()
}

// A call for which there is no room in the queue leaves nothing to clean up.
func TestFullQueueRefuses(t *testing.T) {
	s := open(t, nil, Options{Writers: 1})
	s.asks.limit, s.ends.limit = 1, 1
	tx, err := s.Pool().Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, err := tx.Exec(t.Context(), "LOCK TABLE stet.records"); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 3)
	for range cap(done) { // one runs, one waits
		go func() { _, err := s.Claim(context.Background(), request(stet.NewKey())); done <- err }()
	}
	if err := <-done; !errors.Is(err, store.ErrNotDone) {
		t.Errorf("Claim: %v; want ErrNotDone", err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range cap(done) - 1 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}
