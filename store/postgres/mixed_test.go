package postgres

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/store"
)

// While one runs, the other gets in flight, or a mismatch; the outcome that one has
// settled, the other replays.
func TestGoAndSQLSeeOneAnother(t *testing.T) {
	s := ledger(t, Options{})
	e := stettest.Engine(t, s, stet.Options{SweepEvery: -1})
	te, err := stet.WithTx(e, s)
	if err != nil {
		t.Fatal(err)
	}
	do := func(o stet.Op, during func()) (stet.Result[string], error) {
		return stet.DoTx(t.Context(), te, o, func(context.Context, pgx.Tx) (string, error) { during(); return "by Go", nil })
	}
	runs := func() { t.Error("it ran") }

	tx := beginTx(t, s)
	begun := mustBegin(t, tx, opOf("sql", "a"), "run")
	if _, err := do(opOf("sql", "a"), runs); stet.KindOf(err) != stet.KindInFlight {
		t.Errorf("DoTx beside stet_begin: %v; want KindInFlight", err)
	}
	if _, err := do(opOf("sql", "b"), runs); stet.KindOf(err) != stet.KindMismatch {
		t.Errorf("DoTx beside stet_begin, of another request: %v; want KindMismatch", err)
	}
	if _, err := tx.Exec(t.Context(), "SELECT stet.stet_settle($1, 200, NULL, 'application/json', '\"by SQL\"')", begun.Claim); err != nil {
		t.Fatal(err)
	}
	mustCommit(t, tx)
	if res, err := do(opOf("sql", "a"), runs); err != nil || !res.Replayed || res.Value != "by SQL" || res.Fence != *begun.Fence {
		t.Errorf("DoTx after stet_settle: %+v, %v", res, err)
	}

	_, err = do(opOf("go", "a"), func() {
		mustBegin(t, s.Pool(), opOf("go", "a"), "in_flight")
		mustBegin(t, s.Pool(), opOf("go", "b"), "mismatch")
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := mustBegin(t, s.Pool(), opOf("go", "a"), "replay"); string(got.Body) != `"by Go"` || *got.Status != 200 || *got.ContentType != "application/json" {
		t.Errorf("stet_begin after DoTx: %+v", got)
	}
}

// A response that Go has stored is returned by SQL with its header fields, and the
// other way round.
func TestResponsesAreReturnedByGoAndSQL(t *testing.T) {
	s := open(t, nil, Options{})
	e := stettest.Engine(t, s, stet.Options{SweepEvery: -1})
	var last stet.Op
	m, err := stethttp.New(e, stethttp.Options{Scope: stethttp.SingleTenant})
	if err != nil {
		t.Fatal(err)
	}
	h := m.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		last = stet.FromContext(r.Context()).Op()
		w.Header().Set("Location", "/p/7")
		w.Header().Add("Vary", "a")
		w.Header().Add("Vary", "caf\xe9")
		w.Header().Set("Content-Type", "text/plain")
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write([]byte("by Go"))
	}))
	post := func(key string) *http.Response {
		t.Helper()
		req := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/p", strings.NewReader("x"))
		req.Header.Set("Idempotency-Key", key)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, req)
		return w.Result()
	}
	_ = post("k1").Body.Close()
	got := mustBegin(t, s.Pool(), last, "replay")
	if *got.Status != 201 || *got.ContentType != "text/plain" || string(got.Body) != "by Go" ||
		fmt.Sprint(got.Headers["Location"], got.Headers["Vary"]) != "[/p/7] [a café]" {
		t.Errorf("stet_begin returns %+v", got)
	}

	o := last
	o.Key = "k2"
	tx := beginTx(t, s)
	begun := mustBegin(t, tx, o, "run")
	if _, err := tx.Exec(t.Context(), `SELECT stet.stet_settle($1, 402, '{"x-reason": ["no money"], "location": "/p/8", "vary": ["a", "café", "cafÃ©"]}', 'text/html', 'by SQL')`, begun.Claim); err != nil {
		t.Fatal(err)
	}
	mustCommit(t, tx)
	res := post("k2")
	defer res.Body.Close()
	var body bytes.Buffer
	if _, err := body.ReadFrom(res.Body); err != nil || res.StatusCode != 402 || body.String() != "by SQL" || res.Header.Get("Content-Type") != "text/html" ||
		res.Header.Get("X-Reason") != "no money" || res.Header.Get("Location") != "/p/8" || res.Header.Get("Idempotent-Replayed") != "true" ||
		!slices.Equal(res.Header["Vary"], []string{"a", "caf\xe9", "café"}) {
		t.Errorf("the middleware answers %d %v %q, %v", res.StatusCode, res.Header, body.String(), err)
	}
}

func TestEncryptedOutcomeIsRefusedBySQL(t *testing.T) {
	s := open(t, nil, Options{})
	keys := stet.Encryption{Keys: []stet.EncryptionKey{{Name: "k", Secret: bytes.Repeat([]byte{1}, 32)}}}
	e := stettest.Engine(t, s, stet.Options{SweepEvery: -1, Encryption: keys})
	if _, err := stet.Do(t.Context(), e, opOf("k", ""), func(context.Context) (string, error) { return "x", nil }); err != nil {
		t.Fatal(err)
	}
	_, err := sqlBegin(t.Context(), s.Pool(), opOf("k", ""))
	wantCode(t, "an encrypted outcome", err, "ST004")
	execSQL(t, s.Pool(), "UPDATE stet.records SET head = '\\x09'")
	_, err = sqlBegin(t.Context(), s.Pool(), opOf("k", ""))
	wantCode(t, "a head of another version", err, "ST005")
	execSQL(t, s.Pool(), "UPDATE stet.records SET head = '\\x010000000001058f'")
	_, err = sqlBegin(t.Context(), s.Pool(), opOf("k", ""))
	wantCode(t, "a head that ends early", err, "ST005")
}

func TestWaiterIsWokenBySettleOfSQL(t *testing.T) {
	s := open(t, nil, Options{})
	tx := beginTx(t, s)
	begun := mustBegin(t, tx, opOf("k", ""), "run")
	id := store.ID(idOf("k"))
	woken := make(chan error, 1)
	told, leave, err := s.listener.join(id, true)
	if err != nil {
		t.Fatal(err)
	}
	defer leave()
	stettest.Eventually(t, "the waiter's lock", func() bool {
		var held bool
		err := s.Pool().QueryRow(t.Context(), "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ShareLock' AND granted)").Scan(&held)
		return err == nil && held
	})
	go func() { <-told; woken <- nil }()
	if _, err := tx.Exec(t.Context(), "SELECT stet.stet_settle($1)", begun.Claim); err != nil {
		t.Fatal(err)
	}
	mustCommit(t, tx)
	select {
	case <-woken:
	case <-time.After(30 * time.Second):
		t.Error("the waiter was not woken")
	}
}

func TestFunctionsWorkThroughPgBouncer(t *testing.T) {
	pool := bounced(t, rig.Postgres(t))
	s := open(t, pool, Options{PgBouncer: true})
	tx := beginTx(t, s)
	begun := mustBegin(t, tx, opOf("k", ""), "run")
	mustBegin(t, pool, opOf("k", ""), "in_flight")
	if _, err := tx.Exec(t.Context(), "SELECT stet.stet_settle($1, 204)", begun.Claim); err != nil {
		t.Fatal(err)
	}
	mustCommit(t, tx)
	mustBegin(t, pool, opOf("k", ""), "replay")
}

// charging charges under the operation's key, and tells whether it is known to be charged.
type charging = func(ctx context.Context, o stet.Op) (done bool, err error)

func chargeByGo(te *stet.TxEngine[pgx.Tx]) charging {
	return func(ctx context.Context, o stet.Op) (done bool, err error) {
		_, err = stet.DoTx(ctx, te, o, func(ctx context.Context, tx pgx.Tx) (string, error) {
			_, err := tx.Exec(ctx, "INSERT INTO charges VALUES ($1)", o.Key)
			return "charged", err
		})
		return err == nil, err
	}
}

func chargeBySQL(s *Store) charging {
	return func(ctx context.Context, o stet.Op) (done bool, err error) {
		err = pgx.BeginFunc(ctx, s.Pool(), func(tx pgx.Tx) error {
			begun, err := sqlBegin(ctx, tx, o)
			if err != nil {
				return err
			}
			if done = begun.Action == "replay"; begun.Action != "run" {
				return nil
			}
			if _, err := tx.Exec(ctx, "INSERT INTO charges VALUES ($1)", o.Key); err != nil {
				return err
			}
			_, err = tx.Exec(ctx, "SELECT stet.stet_settle($1, 200, NULL, 'application/json', '\"charged\"')", begun.Claim)
			done = true
			return err
		})
		return done && err == nil, err
	}
}

// Go and SQL race for the same keys, and sessions are killed at any point. Each key is
// charged once.
func TestGoAndSQLTogetherChargeOnce(t *testing.T) {
	s := ledger(t, Options{})
	e := stettest.Engine(t, s, stet.Options{SweepEvery: -1})
	te, err := stet.WithTx(e, s)
	if err != nil {
		t.Fatal(err)
	}
	const keys, callers = 60, 8
	byGo, bySQL := chargeByGo(te), chargeBySQL(s)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var bySQLDone, byGoDone, kills atomic.Int64
	var wg, killer sync.WaitGroup
	loadTest, calm := context.WithCancel(ctx)
	killer.Go(func() {
		for loadTest.Err() == nil {
			tag, err := s.own.Exec(ctx, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
				WHERE datname = current_database() AND pid <> pg_backend_pid() AND (query LIKE '%charges%' OR query LIKE '%stet_%' OR query ILIKE '%commit%') ORDER BY random() LIMIT 1`)
			if err == nil {
				kills.Add(tag.RowsAffected())
			}
		}
	})
	for range callers {
		wg.Go(func() {
			for _, k := range rand.Perm(keys) {
				o := opOf(fmt.Sprint("key ", k), "")
				for done := false; !done && ctx.Err() == nil; {
					if rand.IntN(2) == 0 {
						if done, _ = byGo(ctx, o); done {
							byGoDone.Add(1)
						}
					} else if done, _ = bySQL(ctx, o); done {
						bySQLDone.Add(1)
					}
				}
			}
		})
	}
	wg.Wait()
	calm()
	killer.Wait()
	if ctx.Err() != nil {
		t.Fatal("it did not come to an end")
	}
	if bySQLDone.Load() == 0 || byGoDone.Load() == 0 || kills.Load() < 20 {
		t.Errorf("%d by SQL, %d by Go, %d sessions killed; want some of each, and 20 killed", bySQLDone.Load(), byGoDone.Load(), kills.Load())
	}
	var charged, twice, settled int
	s.Pool().Reset() // of connections that were killed
	err = s.Pool().QueryRow(t.Context(), `SELECT (SELECT count(*) FROM charges), (SELECT count(*) FROM (SELECT FROM charges GROUP BY name HAVING count(*) > 1) d),
		(SELECT count(*) FROM stet.records WHERE state = 2)`).Scan(&charged, &twice, &settled)
	if err != nil || charged != keys || twice != 0 || settled != keys {
		t.Errorf("%d charges, %d keys twice, %d outcomes, %v; want %d, none, %d", charged, twice, settled, err, keys, keys)
	}
	t.Logf("%d sessions killed; %d answers by SQL, %d by Go", kills.Load(), bySQLDone.Load(), byGoDone.Load())
}

// A run under a lease that was marked unknown and released in the meantime cannot settle by SQL any
// more: what the transaction wrote goes with it.
func TestClaimThatWasFencedCannotSettleBySQL(t *testing.T) {
	s := ledger(t, Options{})
	rec := mustClaim(t, s, request("k"))
	tx := beginTx(t, s)
	if _, err := tx.Exec(t.Context(), "INSERT INTO charges VALUES ('late')"); err != nil {
		t.Fatal(err)
	}
	if err := s.Release(t.Context(), rec.Claim(), keep); err != nil { // as who supervises it does
		t.Fatal(err)
	}
	_, err := tx.Exec(t.Context(), "SELECT stet.stet_settle($1, 200)", rec.Claim().String())
	wantCode(t, "a claim that was released", err, "ST002")
	if err := tx.Commit(t.Context()); !errors.Is(err, pgx.ErrTxCommitRollback) {
		t.Errorf("COMMIT after that: %v; want a rollback", err)
	}
	if n := charges(t, s); n != 0 {
		t.Errorf("%d charges; want none", n)
	}
	// Conversely, a lease claim waits for the transaction, and gets its outcome.
	rec = mustClaim(t, s, request("other"))
	tx = beginTx(t, s)
	if _, err := tx.Exec(t.Context(), "SELECT stet.stet_settle($1, 200)", rec.Claim().String()); err != nil {
		t.Fatal(err)
	}
	released := make(chan error, 1)
	go func() { released <- s.Release(context.WithoutCancel(t.Context()), rec.Claim(), keep) }()
	mustCommit(t, tx)
	if err := <-released; !errors.Is(err, store.ErrFenced) {
		t.Errorf("Release after stet_settle: %v; want ErrFenced", err)
	}
}

// Above READ COMMITTED a transaction that has looked before another one has committed
// does not see that, and must not run.
func TestFunctionsConflictAboveReadCommitted(t *testing.T) {
	s := ledger(t, Options{})
	for _, level := range []pgx.TxIsoLevel{pgx.RepeatableRead, pgx.Serializable} {
		key := string(level)
		late, err := s.Pool().BeginTx(t.Context(), pgx.TxOptions{IsoLevel: level})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := late.Exec(t.Context(), "INSERT INTO charges VALUES ('late')"); err != nil { // which takes its snapshot
			t.Fatal(err)
		}
		tx := beginTx(t, s)
		begun := mustBegin(t, tx, opOf(key, ""), "run")
		if _, err := tx.Exec(t.Context(), "SELECT stet.stet_settle($1)", begun.Claim); err != nil {
			t.Fatal(err)
		}
		mustCommit(t, tx)
		_, err = sqlBegin(t.Context(), late, opOf(key, ""))
		wantCode(t, key, err, codeSerialization)
		if err := late.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		mustBegin(t, s.Pool(), opOf(key, ""), "replay")
	}
	if n := charges(t, s); n != 0 {
		t.Errorf("%d charges; want none", n)
	}
}

// A claim under a lease waits for a transaction that has begun its key by SQL, and gets
// the outcome. Other keys do not wait.
func TestClaimUnderALeaseWaitsForSQL(t *testing.T) {
	s := open(t, nil, Options{})
	tx := beginTx(t, s)
	begun := mustBegin(t, tx, opOf("k", ""), "run")
	req := request("k")
	req.ID, req.Fingerprint = store.ID(idOf("k")), opOf("k", "").Fingerprint
	type claimed struct {
		rec store.Record
		err error
	}
	got := make(chan claimed, 1)
	go func() {
		rec, err := s.Claim(context.WithoutCancel(t.Context()), req)
		got <- claimed{rec, err}
	}()
	stettest.Eventually(t, "the claim to wait for the transaction", func() bool {
		var waits bool
		err := s.Pool().QueryRow(t.Context(), "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'transactionid' AND NOT granted)").Scan(&waits)
		return err == nil && waits
	})
	mustClaim(t, s, request("other"))
	if _, err := tx.Exec(t.Context(), "SELECT stet.stet_settle($1, 200, body => 'paid')", begun.Claim); err != nil {
		t.Fatal(err)
	}
	mustCommit(t, tx)
	if c := <-got; c.err != nil || c.rec.State != store.Completed || string(c.rec.Result.Body) != "paid" {
		t.Errorf("the claim returned %+v, %v; want what SQL has settled", c.rec, c.err)
	}
}
