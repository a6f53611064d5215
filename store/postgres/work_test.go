package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
)

// taken is the record of an operation that a worker has.
func taken(t testing.TB, s store.WorkStore) store.Record {
	t.Helper()
	req := request(stet.NewKey())
	mustAccept(t, s, req, "work")
	return mustTake(t, s, req.ID)
}

// finish ends a run in a transaction: the charge and the outcome, on a connection that is cut at
// the commit.
func finish(s *Store, c store.Claim, mode int32) error {
	return s.InTx(context.Background(), func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "INSERT INTO charges VALUES ('charge')"); err != nil {
			return err
		}
		err := s.SettleTx(ctx, tx, c, completed("charged"), keep)
		tx.Conn().PgConn().Conn().(*cutConn).mode.Store(mode)
		return err
	})
}

// A worker whose COMMIT was not acknowledged returns the operation: it learns what
// became of the transaction, and so either it is run again or it has been done.
func TestReturnLearnsTheFateOfALostCommit(t *testing.T) {
	s, _ := frail(t, 10*time.Second)
	committed, tries := 0, 60
	for range tries {
		for _, mode := range []int32{replyLost, queryLost} {
			rec := taken(t, s)
			if err := finish(s, rec.Claim(), mode); err == nil {
				t.Fatal("a commit that was not answered: no error")
			}
			err := s.Return(t.Context(), rec.Claim(), 0)
			now := mustRead(t, s, rec.ID)
			switch {
			case errors.Is(err, store.ErrFenced) && now.State == store.Completed && mode == replyLost:
				committed++
			case err != nil || now.State != store.Accepted:
				t.Fatalf("mode %d: Return: %v, and the record is %+v", mode, err, now)
			}
			if n := charges(t, s); n != committed {
				t.Fatalf("%d charges; %d were committed", n, committed)
			}
		}
	}
	if committed < tries/2 {
		t.Errorf("only %d of %d were committed", committed, tries)
	}
}

// If the server does not notice that its client is gone, the transaction would hold
// the record for as long as TCP does.
func TestWorkOfALostClientIsNotHeldUp(t *testing.T) {
	s, _ := frail(t, 2*time.Second)
	for range 2 {
		rec := taken(t, s)
		if err := finish(s, rec.Claim(), clientGone); err == nil {
			t.Fatal("a commit that was not answered: no error")
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := s.Return(ctx, rec.Claim(), 0); err != nil {
			t.Errorf("Return: %v", err)
		}
		if next := mustTake(t, s, rec.ID); next.Attempt != 2 || charges(t, s) != 0 {
			t.Errorf("the next attempt: %+v, %d charges", next, charges(t, s))
		}
	}
}

// A caller with an unacknowledged COMMIT need not wait for it any more.
func TestInTxWaitsForALostCommitToEnd(t *testing.T) {
	s, _ := frail(t, 10*time.Second)
	execSQL(t, s.Pool(), `CREATE FUNCTION take_long() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		BEGIN PERFORM pg_sleep(0.3); EXCEPTION WHEN query_canceled THEN PERFORM pg_sleep(0.3); END; -- its client asks for that
		RETURN NULL; END $$`)
	execSQL(t, s.Pool(), `CREATE CONSTRAINT TRIGGER take_long AFTER INSERT ON charges DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION take_long()`)
	for range 2 {
		rec := taken(t, s)
		if err := finish(s, rec.Claim(), replyLost); err == nil {
			t.Fatal("a commit that was not answered: no error")
		}
		locked := 0
		if err := s.Pool().QueryRow(t.Context(), "SELECT count(*) FROM pg_locks WHERE relation = 'charges'::regclass").Scan(&locked); err != nil || locked > 0 {
			t.Errorf("InTx has returned, and the transaction is still there (%v)", err)
		}
	}
}

func TestReturnWaitsForTheTransactionThatSettles(t *testing.T) {
	s := open(t, nil, Options{})
	for _, commit := range []bool{true, false} {
		rec := taken(t, s)
		tx, err := s.Pool().Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback(context.Background()) }()
		if err := s.SettleTx(t.Context(), tx, rec.Claim(), completed("x"), keep); err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- s.Return(context.Background(), rec.Claim(), 0) }()
		for waiting := 0; waiting == 0; {
			if err := s.Pool().QueryRow(t.Context(), "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'transactionid'").Scan(&waiting); err != nil {
				t.Fatal(err)
			}
			select {
			case err := <-done:
				t.Fatalf("Return did not wait: %v", err)
			default:
			}
		}
		want, state := store.ErrFenced, store.Completed
		if !commit {
			want, state = nil, store.Accepted
		}
		if err := end(t.Context(), tx, commit); err != nil {
			t.Fatal(err)
		}
		if err := <-done; !errors.Is(err, want) {
			t.Errorf("Return: %v; want %v", err, want)
		}
		if now := mustRead(t, s, rec.ID); now.State != state {
			t.Errorf("afterwards: %+v", now)
		}
	}
}

func end(ctx context.Context, tx pgx.Tx, commit bool) error {
	if commit {
		return tx.Commit(ctx)
	}
	return tx.Rollback(ctx)
}

// What a long transaction is about to settle must not hold up other workers, however
// many ask for it.
func TestLockedWorkHoldsUpNoOtherWorker(t *testing.T) {
	s := open(t, nil, Options{})
	rec := taken(t, s)
	tx, err := s.Pool().Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if err := s.SettleTx(t.Context(), tx, rec.Claim(), completed("x"), keep); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	for range 2 * workConns {
		wg.Go(func() { _ = s.Return(ctx, rec.Claim(), 0) })
		wg.Go(func() { _, _ = s.Cancel(ctx, rec.Claim(), completed("x"), keep) })
	}
	short, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	for range 20 {
		req := request(stet.NewKey())
		if _, err := s.Accept(short, req, []byte("work"), 0); err != nil {
			t.Fatalf("Accept: %v", err)
		}
		other, err := s.Take(short, store.TakeRequest{ID: req.ID, Owner: store.NewOwner(), Lease: time.Minute})
		if err != nil {
			t.Fatalf("Take: %v", err)
		}
		if err := s.Return(short, other.Claim(), time.Hour); err != nil {
			t.Fatalf("Return: %v", err)
		}
	}
}

func TestDueIsBoundedInBytes(t *testing.T) {
	s := open(t, nil, Options{})
	large := strings.Repeat("x", dueBytes/4+1)
	for i := range 6 {
		mustAccept(t, s, request(fmt.Sprint(i)), large)
	}
	mustAccept(t, s, request("huge"), strings.Repeat("x", dueBytes+1))
	for _, want := range []int{3, 3, 1, 0} {
		recs, err := s.Due(t.Context(), 100, time.Hour)
		if err != nil || len(recs) != want {
			t.Fatalf("%d records, %v; want %d", len(recs), err, want)
		}
	}
}

// A waiting caller receives the end of the run, of any kind.
func TestEndsOfTakenRunsAreNotified(t *testing.T) {
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
	for name, end := range map[string]func(store.Claim) error{
		"returned": func(c store.Claim) error { return s.Return(ctx, c, 0) },
		"released": func(c store.Claim) error { return s.Release(ctx, c, keep) },
		"settled":  func(c store.Claim) error { return s.Settle(ctx, c, completed("x"), keep) },
		"finished": func(c store.Claim) error {
			return s.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error { return s.SettleTx(ctx, tx, c, completed("x"), keep) })
		},
	} {
		quiet, rec := taken(t, s), taken(t, s)
		if err := s.mark(ctx, rec.ID, rec.Fence); err != nil {
			t.Fatal(err)
		}
		for _, c := range []store.Claim{quiet.Claim(), rec.Claim()} {
			if err := end(c); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		n, err := conn.Conn().WaitForNotification(ctx)
		if err != nil || n.Payload != rec.ID.String() {
			t.Fatalf("%s: notified: %+v, %v; want %v", name, n, err, rec.ID)
		}
		if name == "returned" || name == "released" { // the next run has no watchers yet
			next := mustTake(t, s, rec.ID)
			mustSettle(t, s, next.Claim(), "y")
		}
	}
}

// The steps after the first, and the way back to it, leave records unchanged.
func TestStepsKeepRecords(t *testing.T) {
	pool := database(t)
	steps, err := Migrations(Options{})
	if err != nil {
		t.Fatal(err)
	}
	apply := func(sql string) {
		t.Helper()
		execSQL(t, pool, sql, pgx.QueryExecModeSimpleProtocol)
	}
	apply(steps[0].Up)
	id := request("old").ID
	execSQL(t, pool, `INSERT INTO stet.records (id, scope, fingerprint, owner, fence, claimed_at, settled_at, expires_at, forget_at, attempt, state, body)
		VALUES ($1, sha256(''), '\x01'::bytea || sha256(''), substr(sha256(''), 1, 16), 7, now(), now(), now() + interval '1 day', now() + interval '1 day', 1, 2, 'x')`, id[:])
	apply("SELECT setval('stet.records_fence', 7)")
	if _, err := New(t.Context(), pool, Options{}); err == nil || !strings.Contains(err.Error(), "stet migrate up") {
		t.Errorf("New on tables that lack a step: %v", err)
	}
	s := open(t, pool, Options{})
	if rec := mustRead(t, s, id); rec.State != store.Completed || string(rec.Result.Body) != "x" {
		t.Errorf("the record is now %+v", rec)
	}
	mustAccept(t, s, request("accepted"), "work")
	sent := taken(t, s).Claim()
	out := completed("y")
	out.Outbox = []byte("messages")
	if err := s.Settle(t.Context(), sent, out, keep); err != nil {
		t.Fatal(err)
	}
	tx := beginTx(t, s)
	bySQL := mustBegin(t, tx, opOf("k", ""), "run")
	if _, err := tx.Exec(t.Context(), "SELECT stet.stet_emit($1, 'a'), stet.stet_settle($1, 200)", bySQL.Claim); err != nil {
		t.Fatal(err)
	}
	mustCommit(t, tx)
	rows := rowsOf(t, s)
	for _, step := range []string{steps[3].Down, steps[2].Down, steps[1].Down, steps[1].Up, steps[2].Up, steps[3].Up} {
		apply(step)
	}
	if now := rowsOf(t, s); now != rows {
		t.Errorf("after there and back the records are\n%s\nwant\n%s", now, rows)
	}
	mustBegin(t, s.Pool(), opOf("k", ""), "replay")
}
