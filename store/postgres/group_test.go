package postgres

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/stetmsg"
	"github.com/stet-go/stet/store"
)

func requests(keys ...string) (reqs []store.ClaimRequest, keeps []store.Retention) {
	for _, k := range keys {
		reqs, keeps = append(reqs, request(k)), append(keeps, keep)
	}
	return reqs, keeps
}

func chargeEach(ctx context.Context, tx pgx.Tx, _ int, rec store.Record) (store.Settlement, error) {
	return charge(ctx, tx, rec)
}

func TestGroupIsOneCommit(t *testing.T) {
	s := ledger(t, Options{})
	boom := errors.New("boom")
	reqs, keeps := requests("a", "b", "c")
	for name, end := range map[string]func(){"error": func() {}, "panic": func() { panic(boom) }, "goexit": runtime.Goexit} {
		done := make(chan struct{})
		go func() {
			defer close(done)
			defer func() { _ = recover() }()
			_, err := s.RunGroup(context.Background(), reqs, keeps, func(ctx context.Context, tx pgx.Tx, i int, rec store.Record) (store.Settlement, error) {
				out, err := charge(ctx, tx, rec)
				if i == 2 {
					end()
					err = boom
				}
				return out, err
			})
			if !errors.Is(err, boom) {
				t.Errorf("%s: %v", name, err)
			}
		}()
		<-done
		if n := charges(t, s); n != 0 {
			t.Fatalf("%s: %d charges", name, n)
		}
	}
	recs, err := s.RunGroup(context.Background(), reqs, keeps, chargeEach)
	if err != nil || charges(t, s) != 3 {
		t.Fatalf("%v, %d charges", err, charges(t, s))
	}
	for i, rec := range recs {
		now := mustRead(t, s, reqs[i].ID)
		if now.State != store.Completed || string(now.Result.Body) != "charged" || now.Owner != reqs[i].Owner || now.Fence != rec.Fence ||
			!now.SettledAt.Equal(rec.SettledAt) || !now.ExpiresAt.Equal(rec.ExpiresAt) || !now.ForgetAt.Equal(rec.ForgetAt) || now.Scope != reqs[i].Scope {
			t.Errorf("the store has %+v\nreturned was %+v", now, rec)
		}
	}
	stettest.Eventually(t, "the pool has all its connections", func() bool { return s.Pool().Stat().AcquiredConns() == 0 })
}

// TestGroupThatAFunctionEndsIsNoSuccess: what follows would be committed by itself.
func TestGroupThatAFunctionEndsIsNoSuccess(t *testing.T) {
	for _, end := range []string{"ROLLBACK", "COMMIT"} {
		s := ledger(t, Options{})
		reqs, keeps := requests("a", "b", "c")
		_, err := s.RunGroup(context.Background(), reqs, keeps, func(ctx context.Context, tx pgx.Tx, i int, rec store.Record) (store.Settlement, error) {
			if i == 1 {
				_, _ = tx.Exec(ctx, end)
				return completed("charged"), nil
			}
			return chargeEach(ctx, tx, i, rec)
		})
		if !errors.Is(err, store.ErrUnknown) {
			t.Errorf("%s: %v", end, err)
		}
		for i, req := range reqs {
			if rec := mustRead(t, s, req.ID); rec.State != store.None {
				t.Errorf("%s: the operation %d is %v", end, i, rec.State)
			}
		}
		if n := charges(t, s); n > 1 { // its own commit
			t.Errorf("%s: %d charges", end, n)
		}
	}
}

func TestGroupLeavesOutKnownAndRunningOperations(t *testing.T) {
	s := ledger(t, Options{})
	mustSettle(t, s, mustClaim(t, s, request("settled")).Claim(), "before")
	mustClaim(t, s, request("leased"))
	entered, leave := make(chan struct{}), make(chan struct{})
	running := make(chan error, 1)
	go func() {
		_, err := s.RunTx(context.Background(), request("in a transaction"), keep, func(context.Context, pgx.Tx, store.Record) (store.Settlement, error) {
			close(entered)
			<-leave
			return completed("x"), nil
		})
		running <- err
	}()
	<-entered
	reqs, keeps := requests("settled", "new", "leased", "in a transaction")
	ran := 0
	recs, err := s.RunGroup(context.Background(), reqs, keeps, func(ctx context.Context, tx pgx.Tx, i int, rec store.Record) (store.Settlement, error) {
		ran++
		return chargeEach(ctx, tx, i, rec)
	})
	close(leave)
	if err := errors.Join(err, <-running); err != nil {
		t.Fatal(err)
	}
	if ran != 1 || charges(t, s) != 1 || recs[1].State != store.Completed {
		t.Errorf("%d ran, %d charges, %+v", ran, charges(t, s), recs)
	}
	for _, i := range []int{0, 2, 3} {
		if recs[i].State != store.None {
			t.Errorf("%d: %+v", i, recs[i])
		}
	}
}

// TestOtherTransactionsSeeThatAGroupRuns: a single one, and another group.
func TestOtherTransactionsSeeThatAGroupRuns(t *testing.T) {
	s := ledger(t, Options{})
	reqs, keeps := requests("a", "b")
	_, err := s.RunGroup(context.Background(), reqs, keeps, func(ctx context.Context, tx pgx.Tx, i int, rec store.Record) (store.Settlement, error) {
		if i == 1 {
			other := request("a")
			got, err := s.RunTx(ctx, other, keep, charge)
			if err != nil || got.State != store.Running || got.Owner == other.Owner {
				t.Errorf("a single transaction beside the group: %+v, %v", got, err)
			}
			others, keeps := requests("a", "c")
			recs, err := s.RunGroup(ctx, others, keeps, chargeEach)
			if err != nil || recs[0].State != store.None || recs[1].State != store.Completed {
				t.Errorf("another group beside it: %+v, %v", recs, err)
			}
		}
		return chargeEach(ctx, tx, i, rec)
	})
	if err != nil || charges(t, s) != 3 {
		t.Errorf("%v, %d charges", err, charges(t, s))
	}
}

func TestGroupThatEmitsIsLeftToSingleTransactions(t *testing.T) {
	s := ledger(t, Options{})
	reqs, keeps := requests("a")
	_, err := s.RunGroup(context.Background(), reqs, keeps, func(ctx context.Context, tx pgx.Tx, i int, rec store.Record) (store.Settlement, error) {
		out, err := chargeEach(ctx, tx, i, rec)
		out.Outbox = []byte("a message")
		return out, err
	})
	if !errors.Is(err, store.ErrInvalid) || charges(t, s) != 0 {
		t.Errorf("%v, %d charges", err, charges(t, s))
	}
}

// TestConsumerThatGroupsHasEachEffectOnce: with repetitions, and handlers that
// fail, panic and emit now and then.
func TestConsumerThatGroupsHasEachEffectOnce(t *testing.T) {
	s := open(t, nil, Options{})
	execSQL(t, s.Pool(), "CREATE TABLE effects (key text)")
	engine := stettest.Engine(t, s, stet.Options{SweepEvery: -1})
	var calls atomic.Int64
	var transactions sync.Map
	consumer, err := stetmsg.NewTx(stettest.TxEngine(engine, s), stetmsg.Options[string]{
		Operation:   func(m string) (stet.Op, error) { return stet.Op{Scope: "orders", Key: m}, nil },
		Concurrency: 32, Group: 8, MaxAttempts: -1, Backoff: func(int) time.Duration { return time.Millisecond },
		ErrorLog: slog.New(slog.DiscardHandler),
	}, func(ctx context.Context, tx pgx.Tx, m string) ([]byte, error) {
		if _, err := tx.Exec(ctx, "INSERT INTO effects VALUES ($1)", stet.FromContext(ctx).Op().Key); err != nil {
			return nil, err
		}
		switch calls.Add(1) % 37 {
		case 0:
			return nil, errors.New("the warehouse did not answer")
		case 20:
			panic("the warehouse is on fire")
		}
		transactions.Store(tx.Conn().PgConn().PID(), true)
		return []byte(m), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	const n, copies = 300, 3
	var wg sync.WaitGroup
	slots := make(chan struct{}, 32)
	for i := range n * copies {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			for deliveries := 1; ; deliveries++ {
				d := consumer.Decide(t.Context(), "order-"+strconv.Itoa(i%n), deliveries)
				if d.Action == stetmsg.Ack {
					return
				}
				if d.Action != stetmsg.Retry {
					t.Errorf("%v: %v", d.Action, d.Err)
					return
				}
			}
		})
	}
	wg.Wait()
	var rows, distinct, records int
	if err := s.Pool().QueryRow(t.Context(), "SELECT count(*), count(DISTINCT key), (SELECT count(*) FROM stet.records WHERE state = 2) FROM effects").Scan(&rows, &distinct, &records); err != nil {
		t.Fatal(err)
	}
	if rows != n || distinct != n || records != n {
		t.Errorf("%d effects of %d messages, %d records; want %d", rows, distinct, records, n)
	}
	var commits int
	if err := s.Pool().QueryRow(t.Context(), "SELECT count(DISTINCT xmin::text) FROM effects").Scan(&commits); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d handler calls, %d effects in %d commits", calls.Load(), rows, commits)
	if commits > n*3/4 {
		t.Errorf("%d effects in %d commits: they were hardly grouped", n, commits)
	}
}

// TestTransactionsReadNoMoreOfAYoungTableThanTheirRecords: the server knows nothing
// yet of a table that has just been made, keeps the plans that it thinks up for it,
// and has the settings of the service's connections.
func TestTransactionsReadNoMoreOfAYoungTableThanTheirRecords(t *testing.T) {
	config, err := pgxpool.ParseConfig(rig.Postgres(t).Database(t))
	if err != nil {
		t.Fatal(err)
	}
	config.MaxConns = 1
	config.AfterConnect = func(ctx context.Context, c *pgx.Conn) error {
		_, err := c.Exec(ctx, "SET plan_cache_mode = force_generic_plan") // as after some executions
		return err
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	s := open(t, pool, Options{})
	// Once the server has counted a few rows, it rightly reads them one after the other.
	execSQL(t, pool, "ALTER TABLE "+s.n.records+" SET (autovacuum_enabled = off)")
	execSQL(t, pool, "CREATE TABLE charges (name text)")
	read := func() (rows int) {
		execSQL(t, pool, "SELECT pg_stat_force_next_flush()")
		if err := pool.QueryRow(t.Context(), "SELECT seq_tup_read FROM pg_stat_user_tables WHERE relname = 'records'").Scan(&rows); err != nil {
			t.Fatal(err)
		}
		return rows
	}
	before := read()
	for i := range 30 {
		reqs, keeps := requests(fmt.Sprint("a", i), fmt.Sprint("b", i), fmt.Sprint("c", i))
		if _, err := s.RunGroup(t.Context(), reqs, keeps, chargeEach); err != nil {
			t.Fatal(err)
		}
		if _, err := s.RunTx(t.Context(), request(fmt.Sprint("d", i)), keep, charge); err != nil {
			t.Fatal(err)
		}
		if err := s.InTx(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
			_, err := s.AcceptTx(ctx, tx, request(fmt.Sprint("e", i)), []byte("work"), 0)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		rec := taken(t, s)
		if err := s.InTx(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
			return errors.Join(s.SaveTx(ctx, tx, rec.Claim(), store.Notes{Version: 1, Data: []byte("notes")}, false), s.SettleTx(ctx, tx, rec.Claim(), completed("done"), keep))
		}); err != nil {
			t.Fatal(err)
		}
	}
	if n := read() - before; n > 0 {
		t.Errorf("%d rows were read one after the other", n)
	}
}

// TestGroupsLeaveLocksToOthers: the server's room for locks is everybody's.
func TestGroupsLeaveLocksToOthers(t *testing.T) {
	config, err := pgxpool.ParseConfig(rig.Postgres(t).Database(t))
	if err != nil {
		t.Fatal(err)
	}
	config.MaxConns = 20
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	s := open(t, pool, Options{})
	s.commitTimeout = 5 * time.Minute // a group that is given up may have its locks still
	var room int
	if err := pool.QueryRow(t.Context(), sqlLockTable).Scan(&room); err != nil {
		t.Fatal(err)
	}
	size := room / 8 / 3
	var inside atomic.Int32
	var three sync.WaitGroup
	three.Add(3)
	var wg sync.WaitGroup
	for g := range 12 {
		wg.Go(func() {
			var keys []string
			for i := range size {
				keys = append(keys, fmt.Sprint(g, "/", i))
			}
			reqs, keeps := requests(keys...)
			recs, err := s.RunGroup(context.Background(), reqs, keeps, func(ctx context.Context, tx pgx.Tx, i int, _ store.Record) (store.Settlement, error) {
				if i > 0 {
					return completed("x"), nil
				}
				if inside.Add(1) <= 3 {
					three.Done()
				}
				three.Wait() // three are on their way
				locks := 0
				err := s.own.QueryRow(ctx, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())").Scan(&locks)
				if locks > room/8+3 { // a committing transaction tries one more lock, to see whether callers wait
					t.Errorf("groups have %d of the %d locks", locks, room)
				}
				return completed("x"), err
			})
			if err != nil || recs[size-1].State != store.Completed {
				t.Errorf("RunGroup: %v", err)
			}
		})
	}
	wg.Wait()
}

// TestGroupDoesNotWaitLongForAHeldKey: it fails instead, and its members are left to
// single transactions.
func TestGroupDoesNotWaitLongForAHeldKey(t *testing.T) {
	s := ledger(t, Options{})
	tx, err := s.Pool().Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, err := s.AcceptTx(t.Context(), tx, request("held"), []byte("work"), 0); err != nil {
		t.Fatal(err)
	}
	reqs, keeps := requests("a", "held", "b")
	if _, err := s.RunGroup(t.Context(), reqs, keeps, chargeEach); !answered(err) || sqlState(err) != codeLocked {
		t.Errorf("RunGroup: %v; want it to give up before it is unknown whether it was committed", err)
	}
	if n := charges(t, s); n != 0 {
		t.Errorf("%d charges", n)
	}
}
