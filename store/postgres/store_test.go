package postgres

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
)

func TestOddNamesAreQuoted(t *testing.T) {
	pool := database(t)
	for _, name := range []string{`we"ird'; DROP TABLE x; --`, "Größe 表", "records_fence", `"records"`, "$1", "{records}", "a\nb"} {
		o := Options{Schema: name, Table: name}
		s := open(t, pool, o)
		mustSettle(t, s, mustClaim(t, s, request("k")).Claim(), "x")
		if rec, err := s.RunTx(t.Context(), request("tx"), keep, func(context.Context, pgx.Tx, store.Record) (store.Settlement, error) { return completed("y"), nil }); err != nil {
			t.Errorf("%q: %+v, %v", name, rec, err)
		}
		if _, err := s.Sweep(t.Context(), 10); err != nil {
			t.Errorf("%q: %v", name, err)
		}
		steps, err := Migrations(o)
		if err != nil {
			t.Fatal(err)
		}
		for _, step := range slices.Backward(steps) {
			if _, err := pool.Exec(t.Context(), step.Down, pgx.QueryExecModeSimpleProtocol); err != nil {
				t.Errorf("%q: down: %v", name, err)
			}
		}
	}
	for _, o := range []Options{{Table: strings.Repeat("x", 52)}, {Schema: "\x00"}, {Schema: "\xff"}, {Writers: -1}} {
		if _, err := New(t.Context(), pool, o); err == nil {
			t.Errorf("%+v was accepted", o)
		}
	}
}

func TestTablesThatAreNotOursAreRefused(t *testing.T) {
	pool := database(t)
	if _, err := New(t.Context(), pool, Options{}); err == nil || !strings.Contains(err.Error(), "Migrate") {
		t.Errorf("without tables: %v", err)
	}
	s := open(t, pool, Options{})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	execSQL(t, pool, `INSERT INTO stet.records_schema (version) VALUES ($1)`, schemaVersion+1)
	for name, err := range map[string]error{"Migrate": Migrate(t.Context(), pool, Options{}), "New": func() error { _, err := New(t.Context(), pool, Options{}); return err }()} {
		if err == nil || !strings.Contains(err.Error(), "or a later one") {
			t.Errorf("%s with newer tables: %v", name, err)
		}
		if !errors.Is(err, store.ErrNewerTables) {
			t.Errorf("%s with newer tables: %v; want store.ErrNewerTables in it", name, err)
		}
	}
}

func TestMigrateTogether(t *testing.T) {
	pool := database(t)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if err := Migrate(context.Background(), pool, Options{}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if v, err := SchemaVersion(t.Context(), pool, Options{}); err != nil || v != schemaVersion {
		t.Errorf("version %d, %v", v, err)
	}
}

// Batches form, nothing in them gets lost or mixed up, and duplicates of a key
// get one winner.
func TestCallsShareStatements(t *testing.T) {
	s := open(t, nil, Options{})
	ctx := context.Background()
	claim := func(req store.ClaimRequest, key string) (store.Record, error) {
		rec, err := s.Claim(ctx, req)
		if err == nil && rec.State == store.Running && rec.Owner == req.Owner {
			mustSettle(t, s, rec.Claim(), key)
		}
		if rec, err := s.Read(ctx, req.ID); err != nil || rec.State == store.Completed && string(rec.Result.Body) != key {
			t.Errorf("Read: %+v, %v", rec, err)
		}
		return rec, err
	}
	shareStatements(t, claim, func(id store.ID) string { return string(mustRead(t, s, id).Result.Body) })
	accept := func(req store.ClaimRequest, key string) (store.Record, error) {
		return s.Accept(ctx, req, []byte(key), 0)
	}
	s = open(t, nil, Options{})
	shareStatements(t, accept, func(id store.ID) string { return string(mustTake(t, s, id).Work) })
}

// shareStatements makes concurrent calls that write their key: two callers meet on each key,
// and all on one.
func shareStatements(t *testing.T, call func(req store.ClaimRequest, key string) (store.Record, error), written func(store.ID) string) {
	t.Helper()
	const callers, rounds = 256, 8
	var wg sync.WaitGroup
	var mu sync.Mutex
	wins := make(map[string]int)
	for i := range callers {
		wg.Go(func() {
			for round := range rounds {
				for _, key := range []string{fmt.Sprint(round, "/", i/2), fmt.Sprint("herd ", round)} {
					req := request(key)
					rec, err := call(req, key)
					if err != nil || rec.ID != req.ID {
						t.Errorf("%+v, %v", rec, err)
						continue
					}
					if rec.Owner == req.Owner {
						mu.Lock()
						wins[key]++
						mu.Unlock()
					}
				}
			}
		})
	}
	wg.Wait()
	if len(wins) != rounds*(callers/2+1) {
		t.Errorf("%d keys were written; want %d", len(wins), rounds*(callers/2+1))
	}
	for key, n := range wins {
		if got := written(request(key).ID); n != 1 || got != key {
			t.Errorf("%s was granted %d times, and has %q", key, n, got)
		}
	}
}

// A claim that a service settles in a long transaction of its own holds up
// neither the heartbeat nor anybody else's settle.
func TestLockedRecordDelaysNoOther(t *testing.T) {
	s := open(t, nil, Options{})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	locked := mustClaim(t, s, request("locked")).Claim()
	claims := []store.Claim{locked}
	for i := range 50 {
		claims = append(claims, mustClaim(t, s, request(fmt.Sprint(i))).Claim())
	}
	err := pgx.BeginFunc(ctx, s.Pool(), func(tx pgx.Tx) error {
		if err := s.SettleTx(ctx, tx, locked, completed("tx"), keep); err != nil {
			return err
		}
		if lost, err := s.Extend(ctx, claims, time.Minute); err != nil || len(lost) > 0 {
			t.Errorf("Extend in the meantime: %v, %v", lost, err)
		}
		until, cancel := context.WithCancel(ctx)
		defer cancel()
		held := make(chan error, 1)
		go func() { held <- s.Settle(until, locked, completed("x"), keep) }()
		var wg sync.WaitGroup
		for _, c := range claims[1:] {
			wg.Go(func() {
				if err := s.Settle(ctx, c, completed("x"), keep); err != nil {
					t.Errorf("Settle in the meantime, of an unlocked record: %v", err)
				}
			})
		}
		wg.Wait()
		cancel()
		if err := <-held; err == nil {
			t.Error("Settle in the meantime, of the locked record: no error")
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	if rec := mustRead(t, s, locked.ID); string(rec.Result.Body) != "tx" {
		t.Errorf("afterwards: %+v", rec)
	}
}

// Neither does it hold up the batch that it is in, nor a lane for longer than rowPatience.
func TestBatchSkipsALockedRecord(t *testing.T) {
	s := open(t, nil, Options{})
	end := func(c store.Claim, result string) *op[write] {
		return &op[write]{v: write{end: &ending{claim: c, out: completed(result), keep: keep}}}
	}
	locked := mustClaim(t, s, request("locked")).Claim()
	tx, err := s.Pool().Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	if err := s.SettleTx(t.Context(), tx, locked, completed("tx"), keep); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, n := range []int{0, 5} {
		batch := []*op[write]{end(locked, "x")}
		for range n {
			batch = append(batch, end(mustClaim(t, s, request(stet.NewKey())).Claim(), "x"))
		}
		begun := time.Now()
		s.runWrites(ctx, batch)
		if took := time.Since(begun); took > 10*time.Second { // one alone waits for rowPatience; the record is locked for longer
			t.Errorf("of %d: took %v", len(batch), took)
		}
		for _, o := range batch {
			if o.err != nil || o.slow != (o.v.end.claim == locked) {
				t.Errorf("of %d: slow %v, %v; the locked one: %v", len(batch), o.slow, o.err, o.v.end.claim == locked)
			}
		}
	}
}

func TestTwoOutcomesInOneBatchHaveOneWinner(t *testing.T) {
	s := open(t, nil, Options{})
	for range 20 {
		c := mustClaim(t, s, request(stet.NewKey())).Claim()
		var batch []*op[write]
		for i := range 8 {
			batch = append(batch, &op[write]{v: write{end: &ending{claim: c, out: completed(fmt.Sprint(i)), keep: keep}}})
		}
		if err := s.writeBatch(t.Context(), batch); err != nil {
			t.Fatal(err)
		}
		stands := string(mustRead(t, s, c.ID).Result.Body)
		for _, o := range batch {
			result := string(o.v.end.out.Result.Body)
			if o.slow || (result == stands) != (o.err == nil) || o.err != nil && !errors.Is(o.err, store.ErrFenced) {
				t.Errorf("%s is stored, and %s got %v", stands, result, o.err)
			}
		}
	}
}

// Notifications are committed one after the other: there must be none unless
// a caller waits.
func TestOnlyWaitersAreNotified(t *testing.T) {
	s := open(t, nil, Options{})
	conn, err := s.Pool().Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	if _, err := conn.Exec(t.Context(), "LISTEN "+s.n.channel); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	finish := func(_ context.Context, _ pgx.Tx, rec store.Record) (store.Settlement, error) {
		return completed("x"), nil
	}
	watched := 0
	for i := range 6 {
		lease, tx := request(stet.NewKey()), request(stet.NewKey())
		c := mustClaim(t, s, lease).Claim()
		if i >= 3 {
			if err := s.mark(ctx, c.ID, c.Fence); err != nil {
				t.Fatal(err)
			}
			lock, err := s.Pool().Acquire(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := lock.Exec(ctx, "SELECT pg_advisory_lock_shared($1)", s.waitersLock(tx.ID)); err != nil {
				t.Fatal(err)
			}
			defer func() {
				_, _ = lock.Exec(ctx, "SELECT pg_advisory_unlock_all()")
				lock.Release()
			}()
		}
		mustSettle(t, s, c, "x")
		if _, err := s.RunTx(ctx, tx, keep, finish); err != nil {
			t.Fatal(err)
		}
		if i < 3 {
			continue
		}
		for _, id := range []store.ID{lease.ID, tx.ID} { // the first ones to arrive
			n, err := conn.Conn().WaitForNotification(ctx)
			if err != nil || n.Payload != id.String() {
				t.Fatalf("notified: %+v, %v; want %v", n, err, id)
			}
			watched++
		}
	}
	if watched != 6 {
		t.Errorf("%d notifications; want 6", watched)
	}
}

// The pool is the service's; that it is used up keeps no lease from being
// renewed.
func TestHeartbeatDoesNotNeedThePool(t *testing.T) {
	s := open(t, nil, Options{})
	c := mustClaim(t, s, request("k")).Claim()
	for range s.Pool().Config().MaxConns {
		conn, err := s.Pool().Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Release()
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if lost, err := s.Extend(ctx, []store.Claim{c}, time.Minute); err != nil || len(lost) != 0 {
		t.Errorf("Extend: %v, %v", lost, err)
	}
	mustSettle(t, s, c, "x")
}

func TestLostRepliesOfClaimsAndSettlesAreRepeated(t *testing.T) {
	s, _ := frail(t, time.Second)
	cut := func(mode int32) {
		for range s.o.Writers {
			c, err := s.own.Acquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			c.Conn().PgConn().Conn().(interface{ arm(int32) }).arm(mode)
			defer c.Release()
		}
	}
	for range 20 {
		for _, mode := range []int32{replyLost, queryLost} {
			req := request(stet.NewKey())
			cut(mode)
			rec := mustClaim(t, s, req)
			cut(mode)
			mustSettle(t, s, rec.Claim(), "x")
			if rec := mustRead(t, s, req.ID); rec.State != store.Completed || rec.Attempt != 1 {
				t.Errorf("%+v", rec)
			}
		}
	}
}

func (c *cutConn) arm(mode int32) { c.mode.Store(mode) }

var _ net.Conn = (*cutConn)(nil)

// A row with a short lock is renewed when the lock is released: a claim that
// counts as renewed must have a lease.
func TestHeartbeatRenewsBrieflyLockedRecords(t *testing.T) {
	s := open(t, nil, Options{})
	req := request("k")
	req.Lease = time.Hour
	c := mustClaim(t, s, req).Claim()
	free := mustClaim(t, s, request("free")).Claim()
	tx, err := s.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, err := tx.Exec(t.Context(), "SELECT FROM stet.records WHERE id = $1 FOR UPDATE", c.ID[:]); err != nil {
		t.Fatal(err)
	}
	looked := make(chan struct{}, 100)
	s.looked = func() { looked <- struct{}{} }
	done := make(chan error, 1)
	go func() {
		lost, err := s.Extend(context.Background(), []store.Claim{c, free}, 24*time.Hour)
		if len(lost) > 0 {
			err = fmt.Errorf("%d claims are said to be lost", len(lost))
		}
		done <- err
	}()
	<-looked // the row was skipped
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	for _, id := range []store.ID{c.ID, free.ID} {
		if left := mustRead(t, s, id).LeaseLeft; left < 12*time.Hour {
			t.Errorf("renewed to a day, and %v of the lease are left", left)
		}
	}
}

// A replay does not wait for its ROLLBACK. Close does.
func TestCloseWaitsForRollbacks(t *testing.T) {
	pool := database(t)
	s := open(t, pool, Options{})
	done := func(context.Context, pgx.Tx, store.Record) (store.Settlement, error) { return completed("x"), nil }
	if _, err := s.RunTx(t.Context(), request("k"), keep, done); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		s.txReplay.share.Store(0) // each replay begins a transaction
		if rec, err := s.RunTx(t.Context(), request("k"), keep, done); err != nil || rec.State != store.Completed {
			t.Fatalf("%v, %v", rec.State, err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if n := pool.Stat().AcquiredConns(); n != 0 {
		t.Errorf("%d connections of the service are in use after Close", n)
	}
}

func TestClosedStoreRefuses(t *testing.T) {
	s := open(t, nil, Options{})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Claim(t.Context(), request("k")); !errors.Is(err, errClosed) {
		t.Errorf("Claim after Close: %v", err)
	}
}
