package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/stet-go/stet/internal/test/rig"
)

// pageSQL are the statements of docs/verifier.md, in their order.
func pageSQL(t *testing.T) (statements []string) {
	t.Helper()
	page, err := os.ReadFile("../../docs/verifier.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, rest := range strings.Split(string(page), "```sql\n")[1:] {
		statement, _, _ := strings.Cut(rest, "```")
		statements = append(statements, statement)
	}
	if len(statements) != 4 {
		t.Fatalf("the page has %d statements; want the table, the request and two of the question", len(statements))
	}
	return statements
}

// lateness is where a request is held up, and how it ends.
type lateness struct{ written, rolledBack, paid, beforeRetry bool }

// pageService is a service made of the page's statements, whose first request is late.
type pageService struct {
	*httptest.Server
	sql  []string
	pool *pgxpool.Pool
	late lateness

	arrived, resume chan struct{}
	asked           chan struct{}
	ended           chan error
}

func openPageService(t *testing.T, late lateness) *pageService {
	s := &pageService{sql: pageSQL(t), late: late, arrived: make(chan struct{}), resume: make(chan struct{}), asked: make(chan struct{}, 1), ended: make(chan error, 1)}
	var err error
	if s.pool, err = pgxpool.New(t.Context(), rig.Postgres(t).Database(t)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.pool.Close)
	if _, err := s.pool.Exec(t.Context(), s.sql[0]); err != nil {
		t.Fatal(err)
	}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, do := context.WithoutCancel(r.Context()), s.request
		if r.Method == http.MethodGet {
			do = s.question
		}
		if err := do(ctx, w, r); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	}))
	t.Cleanup(s.Close)
	return s
}

// question answers whether an operation happened.
func (s *pageService) question(ctx context.Context, w http.ResponseWriter, r *http.Request) error {
	op := r.Header.Get("Stet-Operation")
	s.asked <- struct{}{}
	if _, err := s.pool.Exec(ctx, s.sql[2], op, r.Header.Get("Stet-Fence")); err != nil {
		return err
	}
	var refused bool
	var id, amount *int64
	if err := s.pool.QueryRow(ctx, s.sql[3], op).Scan(&refused, &id, &amount); err != nil {
		return err
	}
	w.Header().Set("Stet-Operation", op)
	if refused {
		w.Header().Set("Stet-Execution", "none")
		w.WriteHeader(http.StatusNotFound)
	}
	return nil
}

// request pays. The first attempt is held up.
func (s *pageService) request(ctx context.Context, _ http.ResponseWriter, r *http.Request) error {
	_, _ = io.Copy(io.Discard, r.Body)
	first := r.Header.Get("Stet-Attempt") == "1"
	hold := func(here bool) {
		if first && here {
			close(s.arrived)
			<-s.resume
		}
	}
	hold(!s.late.written)
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		var id int64
		if err := tx.QueryRow(ctx, s.sql[1], r.Header.Get("Stet-Operation"), r.Header.Get("Stet-Fence"), 100).Scan(&id); err != nil {
			return err
		}
		hold(s.late.written)
		if first && s.late.rolledBack {
			return errors.New("it fails")
		}
		return nil
	})
	if first {
		s.ended <- err
	}
	return err
}

// A request is late: its client has given up, the service was asked, and a retry has run.
// With the statements of the page it pays nothing, where it was held up.
func TestStatementsOfThePageMakeANoBinding(t *testing.T) {
	t.Parallel()
	for name, late := range map[string]lateness{
		"before it writes, to the end":        {},
		"before it writes, to the resolution": {beforeRetry: true},
		"after it has written, rolled back":   {written: true, rolledBack: true},
		"after it has written, committed":     {written: true, paid: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			paysOnce(t, openPageService(t, late))
		})
	}
}

func paysOnce(t *testing.T, s *pageService) {
	file := filepath.Join(t.TempDir(), "stet.yaml")
	text := fmt.Sprintf("upstream: {url: %q}\nlisten: 127.0.0.1:0\nstore: %q\nscope: single-tenant\n"+
		"routes: [{path: /payments, timeout: 500ms, verify: {url: /happened, by: operation, after: 0s}}]\n", s.URL, filepath.Join(t.TempDir(), "s.db"))
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	p := startProxy(t, "--config", file)
	if status, body, _ := payAs(t, p.url, "", "k"); status != 504 {
		t.Fatalf("what took too long: %d %s", status, body)
	}
	<-s.arrived
	if s.late.written { // the question waits for its row
		go func() { <-s.asked; close(s.resume) }()
	}
	did, status, stderr := reconcileApart(t, "--config", file)
	if want := (reconciling{Looked: 1, Completed: count(s.late.paid), Again: count(!s.late.paid)}); status != exitOK || did != want {
		t.Fatalf("%+v, exit status %d: %s", did, status, stderr)
	}
	ended := func() {
		if !s.late.written {
			close(s.resume)
		}
		if err := <-s.ended; (err == nil) != s.late.paid {
			t.Errorf("the late request: %v", err)
		}
	}
	if s.late.beforeRetry {
		ended()
	}
	if status, body, replayed := payAs(t, p.url, "", "k"); status != 200 || replayed != s.late.paid {
		t.Errorf("a retry: %d %q, replayed %v", status, body, replayed)
	}
	if !s.late.beforeRetry {
		ended()
	}
	var paid int
	if err := s.pool.QueryRow(t.Context(), "SELECT count(*) FROM payments WHERE NOT refused").Scan(&paid); err != nil || paid != 1 {
		t.Errorf("%d payments, %v", paid, err)
	}
}

func count(is bool) int {
	if is {
		return 1
	}
	return 0
}
