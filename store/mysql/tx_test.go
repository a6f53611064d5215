package mysql

import (
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/store"
)

// ledger is a store with a table of the service's own.
func ledger(t testing.TB, dsn ...string) *Store {
	t.Helper()
	s := openStore(t, Options{}, dsn...)
	exec(t, s.DB(), "CREATE TABLE charges (id INT AUTO_INCREMENT PRIMARY KEY, op VARCHAR(64), KEY (op)) ENGINE=InnoDB")
	return s
}

func charges(t testing.TB, db *sql.DB) (n int) {
	t.Helper()
	if err := db.QueryRow("SELECT count(*) FROM charges").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// charge is the body of a transaction that works.
func charge(ctx context.Context, tx *sql.Tx, rec store.Record) (store.Settlement, error) {
	_, err := tx.ExecContext(ctx, "INSERT INTO charges (op) VALUES (?)", rec.ID.String())
	return completed("charged"), err
}

func never(t *testing.T) func(context.Context, *sql.Tx, store.Record) (store.Settlement, error) {
	return func(context.Context, *sql.Tx, store.Record) (store.Settlement, error) {
		t.Error("the function was called")
		return completed(""), nil
	}
}

func TestTransactionOfAnOwnerThatHasClaimedRunsNothing(t *testing.T) {
	s := ledger(t)
	first := request("k")
	claimed := mustClaim(t, s, first)
	if _, err := s.RunTx(t.Context(), first, keep, never(t)); !errors.Is(err, store.ErrUnknown) {
		t.Errorf("running under the same owner: %v", err)
	}
	if err := s.Release(t.Context(), claimed.Claim(), keep); err != nil {
		t.Fatal(err)
	}
	if rec, err := s.RunTx(t.Context(), first, keep, never(t)); err != nil || rec.State != store.Retryable {
		t.Errorf("by the owner that released it: %+v, %v", rec, err)
	}
}

func TestFunctionMustNotEndItsTransaction(t *testing.T) {
	cases := []struct {
		name    string
		end     func(*sql.Tx) error
		unknown bool
		state   store.State
		charges int
		says    string
	}{
		{"Commit", (*sql.Tx).Commit, true, store.Running, 1, "committed the transaction"},
		{"Rollback", (*sql.Tx).Rollback, false, store.None, 0, "rolled the transaction back"},
		{"COMMIT in SQL", func(tx *sql.Tx) error { _, err := tx.Exec("COMMIT"); return err }, true, store.Completed, 1, ""},
		{"ROLLBACK in SQL", func(tx *sql.Tx) error { _, err := tx.Exec("ROLLBACK"); return err }, true, store.None, 0, "rolled back"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s := ledger(t)
			rec, err := s.RunTx(t.Context(), request("k"), keep, func(ctx context.Context, tx *sql.Tx, r store.Record) (store.Settlement, error) {
				out, err := charge(ctx, tx, r)
				return out, errors.Join(err, c.end(tx))
			})
			if c.says == "" { // the writes of fn and of the store are all there
				if err != nil || rec.State != store.Completed {
					t.Errorf("RunTx: %+v, %v", rec, err)
				}
			} else if err == nil || errors.Is(err, store.ErrUnknown) != c.unknown || !strings.Contains(err.Error(), c.says) {
				t.Errorf("RunTx: %v", err)
			}
			if rec := mustRead(t, s, request("k").ID); rec.State != c.state || charges(t, s.DB()) != c.charges {
				t.Errorf("left behind: %+v, %d charges", rec, charges(t, s.DB()))
			}
		})
	}
}

// After a deadlock MySQL has rolled back the whole transaction, and commits each later statement by itself.
func TestDeadlockThatTheFunctionIgnoresIsUnknown(t *testing.T) {
	s := ledger(t)
	exec(t, s.DB(), "CREATE TABLE rows_of_two (n INT PRIMARY KEY, v INT) ENGINE=InnoDB")
	exec(t, s.DB(), "INSERT INTO rows_of_two VALUES (1, 0), (2, 0)")
	other, err := s.DB().Begin()
	if err != nil {
		t.Fatal(err)
	}
	defer other.Rollback()
	for range 20 { // the transaction that has written less is rolled back
		if _, err := other.Exec("INSERT INTO charges (op) VALUES ('other')"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := other.Exec("UPDATE rows_of_two SET v = 1 WHERE n = 2"); err != nil {
		t.Fatal(err)
	}
	var ignored error
	_, err = s.RunTx(t.Context(), request("k"), keep, func(ctx context.Context, tx *sql.Tx, r store.Record) (store.Settlement, error) {
		if _, err := tx.ExecContext(ctx, "UPDATE rows_of_two SET v = 2 WHERE n = 1"); err != nil {
			return store.Settlement{}, err
		}
		waits := make(chan error, 1)
		go func() {
			_, err := other.Exec("UPDATE rows_of_two SET v = 1 WHERE n = 1")
			waits <- err
		}()
		for blocked := 0; blocked == 0; {
			if err := s.DB().QueryRow("SELECT count(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'").Scan(&blocked); err != nil {
				return store.Settlement{}, err
			}
		}
		_, ignored = tx.ExecContext(ctx, "UPDATE rows_of_two SET v = 2 WHERE n = 2")
		if err := <-waits; err != nil {
			return store.Settlement{}, err
		}
		return charge(ctx, tx, r)
	})
	if numberOf(ignored) != errDeadlock {
		t.Fatalf("no deadlock: %v", ignored)
	}
	if !errors.Is(err, store.ErrUnknown) || !strings.Contains(err.Error(), "deadlock") {
		t.Errorf("RunTx: %v", err)
	}
}

// lost is how many COMMITs, and as many answers to them, a test loses.
var lost = flag.Int("lost", 5, "COMMITs of MariaDB to lose on their way, and as many answers to them")

func TestLostCommitIsReadBack(t *testing.T) {
	server := rig.MariaDB(t)
	direct := server.Database(t)
	proxy := rig.NewMariaDBProxy(t, server.Addr())
	s := ledger(t, strings.Replace(direct, server.Addr(), proxy.Addr(), 1))
	for i := range 2 * *lost {
		req, before := request(fmt.Sprint("k", i)), charges(t, s.DB())
		arrives := i%2 == 0
		if arrives {
			proxy.LoseReplies("COMMIT", 1)
		} else {
			proxy.LoseRequests("COMMIT", 1)
		}
		rec, err := s.RunTx(t.Context(), req, keep, charge)
		switch made := charges(t, s.DB()) - before; {
		case arrives && (err != nil || rec.State != store.Completed || made != 1):
			t.Errorf("the answer to COMMIT was lost: %+v, %v, %d charges", rec, err, made)
		case !arrives && (err == nil || errors.Is(err, store.ErrUnknown) || made != 0):
			t.Errorf("COMMIT was lost: %v, %d charges", err, made)
		}
	}
	if n := proxy.LostReplies() + proxy.LostRequests(); n != 2**lost {
		t.Errorf("the proxy lost %d COMMITs; want %d", n, 2**lost)
	}
}

// The client is gone, and the server does not know: the transaction is open until it is ended.
func TestTransactionOfADeadConnectionIsEnded(t *testing.T) {
	server := rig.MariaDB(t)
	direct := server.Database(t)
	through := ledger(t, direct)
	proxy := rig.NewMariaDBProxy(t, server.Addr())
	db, err := sql.Open("mysql", strings.Replace(direct, server.Addr(), proxy.Addr(), 1))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	s := OverSQL(through, func(ctx context.Context) (*sql.Tx, error) { return db.BeginTx(ctx, nil) })
	_, err = s.RunTx(t.Context(), request("k"), keep, func(ctx context.Context, tx *sql.Tx, r store.Record) (store.Settlement, error) {
		defer proxy.Stall()
		return charge(ctx, tx, r)
	})
	defer proxy.Resume()
	if err == nil || errors.Is(err, store.ErrUnknown) || charges(t, through.DB()) != 0 {
		t.Errorf("RunTx: %v, %d charges; want it to be known that nothing was committed", err, charges(t, through.DB()))
	}
	for end := time.Now().Add(time.Minute); ; { // the server ends it a moment after the command
		rec, err := through.RunTx(t.Context(), request("k"), keep, charge)
		if err == nil && rec.State == store.Completed {
			break
		}
		if err != nil || !rec.InTx || time.Now().After(end) {
			t.Fatalf("the next RunTx: %+v, %v", rec, err)
		}
	}
}

// Transactions of different keys, at REPEATABLE READ with locking reads of the service, beside batches.
func TestConcurrentTransactionsDoNotDeadlock(t *testing.T) {
	s := ledger(t)
	s.DB().SetMaxOpenConns(32)
	const n = 64
	var wg sync.WaitGroup
	for i := range n {
		key := fmt.Sprint(i)
		for range 2 {
			wg.Go(func() {
				if rec, err := s.RunTx(t.Context(), request("tx"+key), keep, charge); err != nil || rec.State != store.Completed && !rec.InTx {
					t.Errorf("RunTx: %+v, %v", rec, err)
				}
			})
		}
		wg.Go(func() {
			rec, err := s.Claim(t.Context(), request("lease"+key))
			if err == nil {
				err = s.Settle(t.Context(), rec.Claim(), completed("x"), keep)
			}
			if err != nil {
				t.Error(err)
			}
		})
		wg.Go(func() {
			if _, err := s.Sweep(t.Context(), 100); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if got := charges(t, s.DB()); got != n {
		t.Errorf("%d charges for %d operations", got, n)
	}
}

// A call about a record that a transaction has locked waits for its end, and others do not wait for that call.
func TestOnlyCallsOfALockedRecordWait(t *testing.T) {
	s := ledger(t)
	locked := mustClaim(t, s, request("locked"))
	tx, err := s.DB().Begin()
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	if err := s.SettleTx(t.Context(), tx, locked.Claim(), completed("by tx"), keep); err != nil {
		t.Fatal(err)
	}
	type result struct {
		rec store.Record
		err error
	}
	var waiting []chan result
	for range 20 {
		c := make(chan result, 1)
		waiting = append(waiting, c)
		go func() {
			rec, err := s.Claim(context.Background(), request("locked"))
			c <- result{rec, err}
		}()
	}
	began := time.Now()
	for i := range 20 {
		mustSettle(t, s, mustClaim(t, s, request(fmt.Sprint(i))).Claim(), "x")
	}
	if took := time.Since(began); took > 3*time.Second {
		t.Errorf("20 other operations took %v", took)
	}
	other := mustClaim(t, s, request("other"))
	lost, err := s.Extend(t.Context(), []store.Claim{other.Claim(), locked.Claim()}, time.Hour)
	if partial, ok := errors.AsType[*store.PartialError](err); !ok || len(lost) != 0 || len(partial.Claims) != 1 || partial.Claims[0] != locked.Claim() {
		t.Errorf("Extend beside a locked record: %v, %v; want it named, and not lost", lost, err)
	}
	if rec := mustRead(t, s, other.ID); rec.LeaseLeft < 50*time.Minute {
		t.Errorf("beside a locked record a claim was not renewed: %v left", rec.LeaseLeft)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	for _, c := range waiting {
		if r := <-c; r.err != nil || r.rec.State != store.Completed {
			t.Errorf("a claim that waited for a transaction: %+v, %v", r.rec, r.err)
		}
	}
	if tx, err = s.DB().Begin(); err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	if err := s.SettleTx(t.Context(), tx, other.Claim(), completed("by tx"), keep); err != nil {
		t.Fatal(err)
	}
	brief, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := s.Settle(brief, other.Claim(), completed("x"), keep); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a settle that waits for too long: %v", err)
	}
}

// The settings of a service's connections are its own: another character set, no strict mode, found rows in
// place of changed ones.
func TestServiceConnectionsMayHaveOtherSettings(t *testing.T) {
	dsn := rig.MariaDB(t).Database(t)
	s := ledger(t, dsn)
	db, err := sql.Open("mysql", dsn+"?charset=latin1&clientFoundRows=true&sql_mode=%27ANSI_QUOTES,NO_BACKSLASH_ESCAPES,PIPES_AS_CONCAT%27&time_zone=%27%2B05:00%27&sql_safe_updates=1")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	over := OverSQL(s, func(ctx context.Context) (*sql.Tx, error) {
		return db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelSerializable})
	})
	req := request("k")
	req.Label = store.Label{Class: "café", Name: "POST /zahlungen/ü", Ref: "order\\'1\" ü"}
	out := completed("\x00'\\\" \xff ü")
	rec, err := over.RunTx(t.Context(), req, keep, func(ctx context.Context, tx *sql.Tx, rec store.Record) (store.Settlement, error) {
		_, err := charge(ctx, tx, rec)
		return out, err
	})
	if err != nil {
		t.Fatal(err)
	}
	now := mustRead(t, s, req.ID)
	if now.Label != req.Label || !now.Result.Equal(out.Result) || now.SettledAt != rec.SettledAt || now.ExpiresAt != rec.ExpiresAt {
		t.Errorf("stored: %+v; want %+v", now, rec)
	}
	if d := time.Since(now.SettledAt).Abs(); d > 10*time.Second {
		t.Errorf("settled %v from now", d)
	}
	accepted := request("job")
	if err := over.InTx(t.Context(), func(ctx context.Context, tx *sql.Tx) error {
		_, err := over.AcceptTx(ctx, tx, accepted, []byte("work"), 0)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	taken := mustTake(t, s, accepted.ID)
	if err := over.InTx(t.Context(), func(ctx context.Context, tx *sql.Tx) error {
		return errors.Join(over.SaveTx(ctx, tx, taken.Claim(), store.Notes{Version: 1, Data: []byte("n")}, false), over.SettleTx(ctx, tx, taken.Claim(), out, keep))
	}); err != nil {
		t.Error(err)
	}
	if now := mustRead(t, s, accepted.ID); now.State != store.Completed || !now.Result.Equal(out.Result) {
		t.Errorf("the job is %+v", now)
	}
}

func TestRunningKeyIsReportedWithoutWaiting(t *testing.T) {
	s := ledger(t)
	req, other := request("k"), request("k")
	other.Fingerprint = store.NewFingerprint([]byte("another request"))
	_, err := s.RunTx(t.Context(), req, keep, func(ctx context.Context, tx *sql.Tx, r store.Record) (store.Settlement, error) {
		ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
		defer cancel()
		if rec, err := s.RunTx(ctx, request("k"), keep, never(t)); err != nil || rec.State != store.Running || !rec.InTx {
			t.Errorf("beside the transaction: %+v, %v", rec, err)
		}
		if _, err := s.RunTx(ctx, other, keep, never(t)); !errors.Is(err, store.ErrMismatch) {
			t.Errorf("another fingerprint beside the transaction: %v", err)
		}
		return charge(ctx, tx, r)
	})
	if err != nil {
		t.Error(err)
	}
}

// A deadlock rolls back the writes of the function, and later statements are committed one by one.
func TestSettleAfterIgnoredDeadlockFails(t *testing.T) {
	s := ledger(t)
	exec(t, s.DB(), "INSERT INTO charges (id, op) VALUES (1, 'a'), (2, 'b')")
	rec := mustClaim(t, s, request("k"))
	other, err := s.DB().Begin()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Rollback() }()
	lockRow := func(tx *sql.Tx, id int) error {
		_, err := tx.Exec("UPDATE charges SET op = CONCAT(op, 'x') WHERE id = ?", id)
		return err
	}
	for range 20 { // the other one has more writes, so this one is the victim
		exec(t, s.DB(), "INSERT INTO charges (op) VALUES ('c')")
	}
	if _, err := other.Exec("UPDATE charges SET op = 'y' WHERE id >= 2"); err != nil {
		t.Fatal(err)
	}
	err = s.InTx(t.Context(), func(ctx context.Context, tx *sql.Tx) error {
		if err := lockRow(tx, 1); err != nil {
			return err
		}
		waits := make(chan error, 1)
		go func() { waits <- lockRow(other, 1) }()
		time.Sleep(200 * time.Millisecond)
		if err := lockRow(tx, 2); numberOf(err) != errDeadlock {
			t.Errorf("the second lock: %v; want a deadlock", err)
		}
		if err := <-waits; err != nil {
			t.Error(err)
		}
		return s.SettleTx(ctx, tx, rec.Claim(), completed("x"), keep)
	})
	if err == nil {
		t.Error("the transaction was rolled back, and its end is a success")
	}
	if now := mustRead(t, s, rec.ID); now.State != store.Running {
		t.Errorf("the record is %v; want Running", now.State)
	}
}
