package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/store"
)

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within 20 s: %s", what)
		}
	}
}

func TestClaimsAreRefusedWhileTheServerMayLoseCommits(t *testing.T) {
	t.Parallel()
	server := rig.NewPostgres(t, rig.PostgresOptions{})
	for name, c := range map[string]struct{ off, on string }{
		"synchronous_commit of the database": {"ALTER DATABASE postgres SET synchronous_commit = off", "ALTER DATABASE postgres RESET synchronous_commit"},
		"synchronous_commit of the server":   {"ALTER SYSTEM SET synchronous_commit = off", "ALTER SYSTEM RESET synchronous_commit"},
		"fsync":                              {"ALTER SYSTEM SET fsync = off", "ALTER SYSTEM RESET fsync"},
	} {
		url := server.URL("postgres")
		s := open(t, connect(t, url), Options{})
		ctx, cancel := context.WithCancel(t.Context())
		watched := make(chan struct{})
		go func() { defer close(watched); s.durability.watch(ctx, s, 50*time.Millisecond) }()
		claim := func() error {
			_, err := s.Claim(t.Context(), request(name))
			_, inTx := s.RunTx(t.Context(), request(name+", in a transaction"), keep, func(context.Context, pgx.Tx, store.Record) (store.Settlement, error) {
				return completed("x"), nil
			})
			if (err == nil) != (inTx == nil) || err != nil && (!errors.Is(err, errLossy) || !errors.Is(err, store.ErrNotDone) || !errors.Is(inTx, errLossy)) {
				t.Errorf("%s: Claim: %v; RunTx: %v", name, err, inTx)
			}
			return err
		}
		running := mustClaim(t, s, request(name+", running"))
		stored := request(name + ", stored")
		mustSettle(t, s, mustClaim(t, s, stored).Claim(), "x")
		execSQL(t, s.Pool(), c.off)
		execSQL(t, s.Pool(), "SELECT pg_reload_conf()")
		eventually(t, name+": claims are refused", func() bool { return s.durability.refusal() != nil })
		if claim() == nil {
			t.Errorf("%s: a claim was granted", name)
		}
		mustSettle(t, s, running.Claim(), "x") // what runs may end
		stored.Owner = store.NewOwner()
		if rec, err := s.Claim(t.Context(), stored); err != nil || rec.State != store.Completed {
			t.Errorf("%s: a replay returned state %v, %v; want completed", name, rec.State, err)
		}
		execSQL(t, s.Pool(), c.on)
		execSQL(t, s.Pool(), "SELECT pg_reload_conf()")
		eventually(t, name+": claims are granted", func() bool { return s.durability.refusal() == nil })
		if err := claim(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		cancel()
		<-watched
	}
}

// askers are the calls that ask for a key, by name. A run that they start fails the test.
func askers(t *testing.T, s *Store) map[string]func(store.ClaimRequest) (store.Record, error) {
	t.Helper()
	db := stdlib.OpenDBFromPool(s.Pool())
	t.Cleanup(func() { _ = db.Close() })
	over := OverSQL(s, func(ctx context.Context) (*sql.Tx, error) { return db.BeginTx(ctx, nil) })
	ran := func() (store.Settlement, error) {
		t.Error("a run started")
		return completed("y"), nil
	}
	return map[string]func(store.ClaimRequest) (store.Record, error){
		"Claim":  func(req store.ClaimRequest) (store.Record, error) { return s.Claim(t.Context(), req) },
		"Accept": func(req store.ClaimRequest) (store.Record, error) { return s.Accept(t.Context(), req, nil, 0) },
		"AcceptTx": func(req store.ClaimRequest) (rec store.Record, err error) {
			_ = pgx.BeginFunc(t.Context(), s.Pool(), func(tx pgx.Tx) error {
				rec, err = s.AcceptTx(t.Context(), tx, req, nil, 0)
				return err
			})
			return rec, err
		},
		"RunTx": func(req store.ClaimRequest) (store.Record, error) {
			return s.RunTx(t.Context(), req, keep, func(context.Context, pgx.Tx, store.Record) (store.Settlement, error) { return ran() })
		},
		"RunTx over database/sql": func(req store.ClaimRequest) (store.Record, error) {
			return over.RunTx(t.Context(), req, keep, func(context.Context, *sql.Tx, store.Record) (store.Settlement, error) { return ran() })
		},
	}
}

// refuse has s refuse claims, as its watch does.
func refuse(s *Store) {
	err := errLossy
	s.durability.lost.Store(&err)
}

func TestRefusedClaims_RecordsStillGetTheirAnswer(t *testing.T) {
	t.Parallel()
	s := open(t, nil, Options{})
	asks := askers(t, s)
	// Each call has its records: some of them change the state.
	of := func(name, key string) store.ClaimRequest { return request(name + ", " + key) }
	for name := range asks {
		mustSettle(t, s, mustClaim(t, s, of(name, "stored")).Claim(), "x")
		mustClaim(t, s, of(name, "running"))
		mustAccept(t, s, of(name, "accepted"), "work")
		expired := of(name, "expired")
		expired.Lease = time.Millisecond
		mustClaim(t, s, expired)
		if err := s.Release(t.Context(), mustClaim(t, s, of(name, "released")).Claim(), keep); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(5 * time.Millisecond) // the leases expire
	started, end := make(chan struct{}), make(chan struct{})
	ended := make(chan error, 1)
	go func() {
		_, err := s.RunTx(t.Context(), request("in a transaction"), keep, func(context.Context, pgx.Tx, store.Record) (store.Settlement, error) {
			close(started)
			<-end
			return completed("x"), nil
		})
		ended <- err
	}()
	<-started
	refuse(s)
	for name, ask := range asks {
		for key, want := range map[string]store.State{"stored": store.Completed, "running": store.Running, "accepted": store.Accepted, "expired": store.Unknown} {
			req := of(name, key)
			rec, err := ask(req)
			if err != nil || rec.State != want || rec.Owner == req.Owner {
				t.Errorf("%s, %s: got %v, %v; want %v", name, key, rec.State, err, want)
			}
			req.Fingerprint[0]++
			if rec, err := ask(req); !errors.Is(err, store.ErrMismatch) || rec.State != want {
				t.Errorf("%s, %s, with another fingerprint: got %v, %v; want a mismatch", name, key, rec.State, err)
			}
		}
		for _, key := range []string{"new", "released"} {
			if rec, err := ask(of(name, key)); !errors.Is(err, errLossy) || !errors.Is(err, store.ErrNotDone) || rec.State != 0 {
				t.Errorf("%s, %s: got %v, %v; want errLossy, nothing done", name, key, rec.State, err)
			}
		}
		if rec := mustRead(t, s, of(name, "new").ID); rec.State != 0 {
			t.Errorf("%s has written a record: %+v", name, rec)
		}
		if strings.HasPrefix(name, "RunTx") {
			if rec, err := ask(request("in a transaction")); err != nil || rec.State != store.Running || !rec.InTx {
				t.Errorf("%s, in a transaction: got %v, %v; want running", name, rec.State, err)
			}
		}
	}
	close(end)
	if err := <-ended; err != nil {
		t.Errorf("a run that had started: %v", err)
	}
}

// A claim that an earlier try has written starts no run. The error is not ErrNotDone, so that the
// engine releases the claim.
func TestRefusedClaims_ClaimOfAnEarlierTryStartsNoRun(t *testing.T) {
	t.Parallel()
	s := open(t, nil, Options{})
	req := request("k")
	mustClaim(t, s, req)
	refuse(s)
	for name, ask := range askers(t, s) {
		rec, err := ask(req)
		inTx := strings.HasPrefix(name, "RunTx") // it reports the claim as unknown, refused or not
		if rec.State != 0 && !inTx || errors.Is(err, store.ErrNotDone) || errors.Is(err, errLossy) == inTx || errors.Is(err, store.ErrUnknown) != inTx {
			t.Errorf("%s: got %v, %v", name, rec.State, err)
		}
	}
}

// Calls that share a statement, on keys of their own and on the same ones.
func TestRefusedClaims_Concurrent(t *testing.T) {
	t.Parallel()
	s := open(t, nil, Options{Writers: 1})
	mustSettle(t, s, mustClaim(t, s, request("stored")).Claim(), "x")
	refuse(s)
	var calls sync.WaitGroup
	for i := range 200 {
		calls.Go(func() {
			if rec, err := s.Claim(t.Context(), request("stored")); err != nil || rec.State != store.Completed {
				t.Errorf("stored: got %v, %v; want completed", rec.State, err)
			}
			if rec, err := s.Claim(t.Context(), request(fmt.Sprint("new ", i%100))); !errors.Is(err, store.ErrNotDone) {
				t.Errorf("new: got %v, %v; want nothing done", rec.State, err)
			}
		})
	}
	calls.Wait()
	for i := range 100 {
		if rec := mustRead(t, s, request(fmt.Sprint("new ", i)).ID); rec.State != 0 {
			t.Fatalf("a record was written: %+v", rec)
		}
	}
}

// No new connection can be made to a server that may lose commits. A call that needs one must not
// close the connections of other calls.
func TestRefusedClaims_FailedConnectionLeavesTheOthers(t *testing.T) {
	t.Parallel()
	pool := database(t)
	s := open(t, pool, Options{})
	mustSettle(t, s, mustClaim(t, s, request("stored")).Claim(), "x")
	execSQL(t, pool, `DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET synchronous_commit = off', current_database()); END $$`)
	refuse(s)
	all := s.own.AcquireAllIdle(t.Context())
	if len(all) == 0 {
		t.Fatal("the store has no connection")
	}
	_, err := s.Claim(t.Context(), request("stored"))
	for _, c := range all {
		c.Release()
	}
	if !errors.Is(err, errLossy) || !errors.Is(err, store.ErrNotDone) {
		t.Errorf("without a connection: %v; want errLossy, nothing done", err)
	}
	if rec, err := s.Claim(t.Context(), request("stored")); err != nil || rec.State != store.Completed {
		t.Errorf("with the existing connections: got %v, %v; want completed", rec.State, err)
	}
}
