package main

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stet-go/stet/internal/test/rig"
)

// accepting writes the configuration of a proxy that accepts, with workers elsewhere.
func accepting(t *testing.T, upstream, store, route, async string) (file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "stet.yaml")
	text := fmt.Sprintf("upstream: {url: %q}\nlisten: 127.0.0.1:0\nstore: %q\nscope: single-tenant\nworker: elsewhere\ndrain: 20s\nroutes: [{path: /payments, lease: 1s, timeout: 20s, %s async: {min_backoff: 10ms, max_backoff: 50ms, %s}}]\n",
		upstream, store, route, async)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// outcomeOf polls a payment until it has ended, and wants a replay.
func outcomeOf(t *testing.T, p *instance, key string) (status int, body string) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		status, body, _ = pay(t, p.url, key)
		if status != 202 && status != 409 && !strings.Contains(body, "outcome-unknown") {
			return status, body
		}
		if time.Now().After(end) {
			t.Fatalf("%s has no outcome: %d %s\n%s", key, status, body, p.log())
		}
	}
}

// TestWorkersElsewhereRunAcceptedOperations: on each store that processes share, also when
// the worker that has begun it dies.
func TestWorkersElsewhereRunAcceptedOperations(t *testing.T) {
	t.Parallel()
	for name, place := range map[string]func(t *testing.T) string{
		"sqlite": func(t *testing.T) string { return filepath.Join(t.TempDir(), "stet.db") },
		"redis":  func(t *testing.T) string { return "redis://" + rig.Redis(t).Addr() + "/0" },
		"postgres": func(t *testing.T) string {
			url := rig.Postgres(t).Database(t)
			must(t, "migrate", "up", "--store", url)
			return url
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var runs atomic.Int32
			begun, held := make(chan struct{}, 1), make(chan struct{})
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if n := runs.Add(1); r.Header.Get("Idempotency-Key") == name+"-dies" && n == 2 {
					begun <- struct{}{}
					<-held
				}
				w.WriteHeader(201)
				_, _ = io.WriteString(w, "attempt "+r.Header.Get("Stet-Attempt"))
			}))
			defer s.Close()
			defer close(held)
			file := accepting(t, s.URL, place(t), "", "repeatable: true")
			p := startProxy(t, "--config", file)
			if status, body, _ := pay(t, p.url, name); status != 202 {
				t.Fatalf("%d %s", status, body)
			}
			time.Sleep(1500 * time.Millisecond) // longer than a worker inside would take
			if status, body, _ := pay(t, p.url, name); status != 202 || runs.Load() > 0 {
				t.Errorf("without a worker: %d %s after %d runs", status, body, runs.Load())
			}
			w := startServing(t, "worker", "--config", file)
			if status, body := outcomeOf(t, p, name); status != 201 || body != "attempt 1" {
				t.Errorf("%d %s", status, body)
			}
			pay(t, p.url, name+"-dies")
			<-begun
			w.kill()
			startServing(t, "worker", "--config", file)
			if status, body := outcomeOf(t, p, name+"-dies"); status != 201 || body != "attempt 2" || runs.Load() != 3 {
				t.Errorf("%d %s after %d runs", status, body, runs.Load())
			}
		})
	}
}

// TestRunOfADeadWorkerIsVerified: where the service may not get an operation again, it is
// asked, and its answer is the outcome.
func TestRunOfADeadWorkerIsVerified(t *testing.T) {
	t.Parallel()
	var runs atomic.Int32
	begun, held := make(chan struct{}, 1), make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/verify" {
			w.Header().Set("Stet-Operation", r.Header.Get("Stet-Operation"))
			w.Header().Set("Stet-Status", "201")
			_, _ = io.WriteString(w, "verified")
			return
		}
		runs.Add(1)
		begun <- struct{}{}
		<-held
	}))
	defer s.Close()
	defer close(held)
	file := accepting(t, s.URL, filepath.Join(t.TempDir(), "stet.db"), "verify: {url: /verify, after: 0s},", "")
	p, w := startProxy(t, "--config", file), startServing(t, "worker", "--config", file)
	pay(t, p.url, "k")
	<-begun
	w.kill()
	startServing(t, "worker", "--config", file)
	if status, body := outcomeOf(t, p, "k"); status != 201 || body != "verified" || runs.Load() != 1 {
		t.Errorf("%d %s after %d runs", status, body, runs.Load())
	}
}

// TestWorkerEndsRunningOperations: SIGTERM takes no more, and lets the service answer.
func TestWorkerEndsRunningOperations(t *testing.T) {
	begun, held := make(chan struct{}, 1), make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		begun <- struct{}{}
		<-held
		w.WriteHeader(201)
	}))
	defer s.Close()
	file := accepting(t, s.URL, filepath.Join(t.TempDir(), "stet.db"), "", "")
	p, w := startProxy(t, "--config", file), startServing(t, "worker", "--config", file)
	pay(t, p.url, "k")
	<-begun
	w.signal(syscall.SIGTERM)
	w.saysNow("draining")
	close(held)
	<-w.done
	if status, body := outcomeOf(t, p, "k"); status != 201 || w.cmd.ProcessState.ExitCode() != 0 {
		t.Errorf("%d %s; the worker ended with %v: %s", status, body, w.cmd.ProcessState, w.log())
	}
}

// TestLateServiceOfADeadWorkerCannotSettle: the run that came after it has paid.
func TestLateServiceOfADeadWorkerCannotSettle(t *testing.T) {
	url := rig.Postgres(t).Database(t)
	b := openTill(t, url, "")
	begun, late, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	b.does("k", func(w http.ResponseWriter, r *http.Request, n int) error {
		if n > 1 {
			return b.pay(r, n, nil, nil)
		}
		err := b.pay(r, n, func() { close(begun); <-late }, nil)
		ended <- err
		return err
	})
	file := accepting(t, b.URL, url, "settles: service,", "")
	p, w := startProxy(t, "--config", file), startServing(t, "worker", "--config", file)
	pay(t, p.url, "k")
	<-begun
	w.kill()
	startServing(t, "worker", "--config", file)
	status, body := outcomeOf(t, p, "k")
	close(late)
	if err := <-ended; !stale(err) {
		t.Errorf("the late one: %v, want ST002", err)
	}
	if status != 201 || body != "payment k by try 2" || b.payments(t, "k") != 1 {
		t.Errorf("%d %s; paid %d times", status, body, b.payments(t, "k"))
	}
}

// TestWorkerNeedsTheStoreOfTheProxy: it refuses a store that no proxy can reach.
func TestWorkerNeedsTheStoreOfTheProxy(t *testing.T) {
	if status, _, stderr := command(t, "worker"); status != exitUsage || !strings.Contains(stderr, "--config") {
		t.Errorf("without a configuration: %d %s", status, stderr)
	}
	file := filepath.Join(t.TempDir(), "stet.yaml")
	if err := os.WriteFile(file, []byte("upstream: {url: http://127.0.0.1:1}\nscope: single-tenant\nstore: memory\nroutes: [{path: /a, async: {}}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if status, _, stderr := command(t, "worker", "--config", file); status != exitUsage || !strings.Contains(stderr, "memory store belongs to one process") {
		t.Errorf("on memory: %d %s", status, stderr)
	}
	if _, err := os.Stat("memory"); !errors.Is(err, os.ErrNotExist) {
		t.Error("a file was made")
	}
}
