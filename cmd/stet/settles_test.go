package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/stet-go/stet/internal/fault"
	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/internal/test/stettest"
)

// till is a service that settles, and its database. Its ledger has no unique
// constraint.
type till struct {
	*httptest.Server
	url  string        // of the database
	pool *pgxpool.Pool // of the test
	own  *pgxpool.Pool // of the service

	mu    sync.Mutex
	tries map[string]int
	work  map[string]work
}

// work is what the service does with its nth request of a key, if it is not just that it
// pays.
type work func(w http.ResponseWriter, r *http.Request, n int) error

// openTill opens the service, whose connections to the database go by way of addr, if
// that is given.
func openTill(t *testing.T, url, through string) *till {
	t.Helper()
	must(t, "migrate", "up", "--store", url)
	b := &till{url: url, tries: map[string]int{}, work: map[string]work{}}
	own := url
	if through != "" {
		own = rig.Through(through, url)
	}
	for pool, url := range map[**pgxpool.Pool]string{&b.pool: url, &b.own: own} {
		var err error
		if *pool, err = pgxpool.New(t.Context(), url); err != nil {
			t.Fatal(err)
		}
		t.Cleanup((*pool).Close)
	}
	execSQL(t, b.pool, "CREATE TABLE ledger (key text)")
	b.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key := r.Header.Get("Idempotency-Key")
		b.mu.Lock()
		b.tries[key]++
		n, do := b.tries[key], b.work[key]
		b.mu.Unlock()
		if do == nil {
			do = func(w http.ResponseWriter, r *http.Request, n int) error { return b.pay(r, n, nil, nil) }
		}
		if err := do(w, r, n); err != nil {
			t.Logf("the service: %s, try %d: %v", key, n, err)
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	}))
	t.Cleanup(b.Close)
	return b
}

// pay writes and settles in one transaction. It calls settle before it settles, and
// commit before it commits.
func (b *till) pay(r *http.Request, n int, settle, commit func()) error {
	key, claim := r.Header.Get("Idempotency-Key"), r.Header.Get("Stet-Claim")
	return pgx.BeginFunc(context.Background(), b.own, func(tx pgx.Tx) error {
		if _, err := tx.Exec(context.Background(), "INSERT INTO ledger VALUES ($1)", key); err != nil {
			return err
		}
		if settle != nil {
			settle()
		}
		_, err := tx.Exec(context.Background(), "SELECT stet.stet_settle($1, 201, NULL, 'text/plain', convert_to($2, 'UTF8'))", claim, fmt.Sprintf("payment %s by try %d", key, n))
		if err == nil && commit != nil {
			commit()
		}
		return err
	})
}

func (b *till) does(key string, do work) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.work[key] = do
}

// start starts a sidecar in front of it.
func (b *till) start(t *testing.T, route string) *instance {
	t.Helper()
	file := filepath.Join(t.TempDir(), "stet.yaml")
	text := fmt.Sprintf("upstream: {url: %q}\nlisten: 127.0.0.1:0\nstore: %s\nscope: single-tenant\nroutes: [{path: /payments, settles: service, %s}]\n", b.URL, b.url, route)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return startProxy(t, "--config", file)
}

// paid sends a payment until it is paid, and checks that it was paid once and that later
// requests get this outcome.
func (b *till) paid(t *testing.T, p *instance, key string) {
	t.Helper()
	var first string
	for end := time.Now().Add(30 * time.Second); first == ""; time.Sleep(5 * time.Millisecond) {
		switch status, body, _ := pay(t, p.url, key); {
		case status == 201:
			first = body
		case status != 409 && status != 503 || time.Now().After(end):
			t.Fatalf("%s: %d %s\n%s", key, status, body, p.log())
		}
	}
	if status, body, replayed := pay(t, p.url, key); status != 201 || body != first || !replayed {
		t.Errorf("%s: first %q, then %d %q, replayed %v", key, first, status, body, replayed)
	}
	if n := b.payments(t, key); n != 1 {
		t.Errorf("%s was paid %d times", key, n)
	}
}

func (b *till) payments(t *testing.T, key string) (n int) {
	t.Helper()
	if err := b.pool.QueryRow(t.Context(), "SELECT count(*) FROM ledger WHERE key = $1", key).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// wantAnswer pays once, and wants this answer: the end of a problem's type, or the body.
func wantAnswer(t *testing.T, p *instance, key string, status int, said string) {
	t.Helper()
	if got, body, _ := pay(t, p.url, key); got != status || !strings.Contains(body, said) {
		t.Fatalf("%s: %d %q; want %d, %q", key, got, body, status, said)
	}
}

func stale(err error) bool {
	pg := new(pgconn.PgError)
	return errors.As(err, &pg) && pg.Code == "ST002"
}

// At each point where a sidecar dies, the payment is made once, and the next sidecar returns it.
func TestSidecarThatDiesAnywhereLeavesNothingUnknown(t *testing.T) {
	b := openTill(t, rig.Postgres(t).Database(t), "")
	next := b.start(t, "lease: 500ms")
	slow := func(_ http.ResponseWriter, r *http.Request, n int) error {
		return b.pay(r, n, func() { time.Sleep(400 * time.Millisecond) }, nil) // some heartbeats
	}
	fails := func(w http.ResponseWriter, r *http.Request, n int) error {
		if n == 1 {
			return errors.New("out of order")
		}
		return b.pay(r, n, nil, nil)
	}
	for point, do := range map[fault.Point]work{
		fault.ClaimBefore: nil, fault.ClaimAfter: nil, fault.HandlerBefore: nil, fault.HandlerAfter: nil, fault.ResponseBefore: nil, fault.ResponseAfter: nil,
		fault.HeartbeatBefore: slow, fault.HeartbeatAfter: slow, fault.ReleaseBefore: fails, fault.ReleaseAfter: fails,
	} {
		t.Run(string(point), func(t *testing.T) {
			key := string(point)
			b.does(key, do)
			t.Setenv(dieEnv, key)
			dying := b.start(t, "lease: 500ms")
			status, body, _ := pay(t, dying.url, key)
			select {
			case <-dying.done:
			case <-time.After(time.Minute):
				t.Fatalf("the sidecar does not pass this point; it answered %d %q", status, body)
			}
			b.paid(t, next, key)
		})
	}
}

// A service may be away, between its write and its COMMIT, for longer than the time of
// its route and the lease of its claim.
func TestServiceThatIsPausedCannotSettleLate(t *testing.T) {
	b := openTill(t, rig.Postgres(t).Database(t), "")
	p := b.start(t, "lease: 300ms, timeout: 400ms")
	resume, ended := make(chan struct{}), make(chan error, 1)
	b.does("k", func(w http.ResponseWriter, r *http.Request, n int) error {
		if n > 1 {
			return b.pay(r, n, nil, nil)
		}
		err := b.pay(r, n, func() { <-resume }, nil)
		ended <- err
		return err
	})
	wantAnswer(t, p, "k", 503, "#not-executed")
	wantAnswer(t, p, "k", 201, "payment k by try 2")
	close(resume)
	if err := <-ended; !stale(err) {
		t.Errorf("settling late: %v; want ST002", err)
	}
	b.paid(t, p, "k")
}

// The service has settled and pauses before its COMMIT. Until the commit ends, the outcome is
// open, and a retry gets 409.
func TestServiceThatIsPausedBeforeItsCommitIsInFlight(t *testing.T) {
	b := openTill(t, rig.Postgres(t).Database(t), "")
	p := b.start(t, "lease: 300ms, timeout: 400ms")
	for key, commits := range map[string]bool{"commits": true, "rolls-back": false} {
		resume, ended, settled := make(chan struct{}), make(chan error, 1), new(atomic.Bool)
		b.does(key, func(_ http.ResponseWriter, r *http.Request, n int) error {
			if settled.Load() {
				return b.pay(r, n, nil, nil)
			}
			first := false // to settle
			err := pgx.BeginFunc(context.Background(), b.own, func(tx pgx.Tx) error {
				const sql = "WITH paid AS (INSERT INTO ledger VALUES ($1)) SELECT stet.stet_settle($2, 201, NULL, 'text/plain', 'paid by the first')"
				if _, err := tx.Exec(context.Background(), sql, key, r.Header.Get("Stet-Claim")); err != nil {
					return err
				}
				settled.Store(true)
				first = true
				if <-resume; !commits {
					return errors.New("rolled back")
				}
				return nil
			})
			if first {
				ended <- err
			}
			return err
		})
		stettest.Eventually(t, "a try that settles in time", func() bool {
			status, body, _ := pay(t, p.url, key)
			if status != 409 && status != 503 {
				t.Fatalf("%s: %d %s", key, status, body)
			}
			return settled.Load()
		})
		time.Sleep(400 * time.Millisecond) // the lease has run out, too
		began := time.Now()
		for range 3 {
			wantAnswer(t, p, key, 409, "#in-flight")
		}
		if took := time.Since(began); took > 12*time.Second { // no more than 4 s each
			t.Errorf("%s: three retries took %v: they wait for the service", key, took)
		}
		var action string
		if err := b.pool.QueryRow(t.Context(), `SELECT action FROM stet.stet_begin('single-tenant', $1,
			(SELECT fingerprint FROM stet.records WHERE id = stet.stet_id('single-tenant', $1)))`, key).Scan(&action); err != nil || action != "in_flight" {
			t.Errorf("%s: stet_begin: %q, %v; want in_flight", key, action, err)
		}
		if n := b.payments(t, key); n != 0 {
			t.Errorf("%s: paid %d times before the COMMIT", key, n)
		}
		close(resume)
		if err := <-ended; commits != (err == nil) {
			t.Errorf("%s: %v", key, err)
		}
		b.paid(t, p, key)
		if commits {
			wantAnswer(t, p, key, 201, "paid by the first")
		}
	}
}

func TestUnacknowledgedCommitIsFoundInTheRecord(t *testing.T) {
	url := rig.Postgres(t).Database(t)
	pg := rig.NewPostgresProxy(t, url[strings.Index(url, "@")+1:strings.LastIndex(url, "/")])
	b := openTill(t, url, pg.Addr())
	p := b.start(t, "lease: 500ms")
	pg.LoseReplies("COMMIT", 1)
	wantAnswer(t, p, "done", 201, "payment done by try 1") // the service has answered 500
	if pg.LostReplies() != 1 || b.payments(t, "done") != 1 {
		t.Errorf("%d replies lost, paid %d times", pg.LostReplies(), b.payments(t, "done"))
	}
	b.paid(t, p, "done")
	pg.LoseRequests("COMMIT", 1)
	wantAnswer(t, p, "not-done", 503, "#not-executed")
	if pg.LostRequests() != 1 || b.payments(t, "not-done") != 0 {
		t.Errorf("%d requests lost, paid %d times", pg.LostRequests(), b.payments(t, "not-done"))
	}
	b.paid(t, p, "not-done")
}

// Two sidecars: one stands still while its service works, for longer than its lease.
func TestPausedSidecarReturnsTheStoredOutcome(t *testing.T) {
	b := openTill(t, rig.Postgres(t).Database(t), "")
	first, second := b.start(t, "lease: 300ms"), b.start(t, "lease: 300ms")
	arrived, resume, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	b.does("k", func(_ http.ResponseWriter, r *http.Request, n int) error {
		if n > 1 {
			return b.pay(r, n, nil, nil)
		}
		close(arrived)
		err := b.pay(r, n, func() { <-resume }, nil)
		ended <- err
		return err
	})
	answer := make(chan string, 1)
	go func() {
		status, body, _ := pay(t, first.url, "k")
		answer <- fmt.Sprint(status, " ", body)
	}()
	<-arrived
	first.signal(syscall.SIGSTOP)
	b.paid(t, second, "k")
	close(resume)
	if err := <-ended; !stale(err) {
		t.Errorf("settling under the old claim: %v; want ST002", err)
	}
	first.signal(syscall.SIGCONT)
	if got := <-answer; got != "201 payment k by try 2" {
		t.Errorf("the client of the paused sidecar got %q", got)
	}
	b.paid(t, first, "k")
}

// What a dead sidecar has left a service can take over that uses SQL alone.
func TestStetBeginTakesOverFromADeadSidecar(t *testing.T) {
	b := openTill(t, rig.Postgres(t).Database(t), "")
	t.Setenv(dieEnv, string(fault.HandlerBefore))
	dying := b.start(t, "lease: 500ms")
	pay(t, dying.url, "k")
	<-dying.done
	t.Setenv(dieEnv, "")
	var action, claim string
	var attempt int
	for action = "in_flight"; action == "in_flight"; time.Sleep(5 * time.Millisecond) {
		if err := pgx.BeginFunc(t.Context(), b.pool, func(tx pgx.Tx) error {
			err := tx.QueryRow(t.Context(), `SELECT action, coalesce(claim, ''), coalesce(attempt, 0) FROM stet.stet_begin('single-tenant', 'k',
				(SELECT fingerprint FROM stet.records))`).Scan(&action, &claim, &attempt)
			if err != nil || action != "run" {
				return err
			}
			_, err = tx.Exec(t.Context(), "WITH paid AS (INSERT INTO ledger VALUES ('k')) SELECT stet.stet_settle($1, 201, NULL, 'text/plain', 'by SQL')", claim)
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	if action != "run" || attempt != 2 {
		t.Errorf("stet_begin: %q, attempt %d; want run, 2", action, attempt)
	}
	p := b.start(t, "lease: 500ms")
	b.paid(t, p, "k")
	wantAnswer(t, p, "k", 201, "by SQL")
}
