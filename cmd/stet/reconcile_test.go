package main

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stet-go/stet/internal/test/rig"
)

// register is a service whose requests do not end before their client does, and which
// knows its executions by scope and key. For "mute", its reply proves
// nothing.
type register struct {
	*httptest.Server
	arrived chan struct{}

	mu    sync.Mutex
	runs  map[string]int
	asked int
}

func openRegister(t *testing.T) *register {
	b := &register{arrived: make(chan struct{}, 16), runs: map[string]int{}}
	b.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key := r.Header.Get("Idempotency-Key")
		op := r.Header.Get("Stet-Scope") + " " + key
		b.mu.Lock()
		defer b.mu.Unlock()
		if r.Method == http.MethodGet {
			b.asked++
			if key != "mute" {
				w.Header().Set("Stet-Operation", r.Header.Get("Stet-Operation"))
			}
			if b.runs[op] == 0 || op == "globex k" {
				w.Header().Set("Stet-Execution", "none")
				w.WriteHeader(http.StatusNotFound)
				return
			}
			w.Header().Set("Stet-Status", "201")
			fmt.Fprintf(w, "charged %s", op)
			return
		}
		b.runs[op]++
		if b.runs[op] > 1 {
			fmt.Fprintf(w, "run %d of %s", b.runs[op], op)
			return
		}
		b.mu.Unlock()
		_, _ = io.Copy(io.Discard, r.Body)
		b.arrived <- struct{}{}
		<-r.Context().Done()
		b.mu.Lock()
	}))
	t.Cleanup(b.Close)
	return b
}

func (b *register) ran(op string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.runs[op]
}

func payAs(t *testing.T, url, account, key string) (status int, body string, replayed bool) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/payments", strings.NewReader("pay"))
	if err != nil {
		t.Fatal(err)
	}
	req.GetBody = nil
	req.Header.Set("Idempotency-Key", key)
	req.Header.Set("X-Account", account)
	res, err := oneShot.Do(req)
	if err != nil {
		return 0, "", false
	}
	defer func() { _ = res.Body.Close() }()
	b, _ := io.ReadAll(res.Body)
	return res.StatusCode, string(b), res.Header.Get("Idempotent-Replayed") == "true"
}

// reconciling is what stet reconcile prints as JSON.
type reconciling struct {
	Looked, Completed, Failed, Again, Unknown, Changed, Errors, Blind, Unverified, Skipped int
}

// reconcileApart runs stet reconcile in a process of its own.
func reconcileApart(t *testing.T, args ...string) (did reconciling, status int, stderr string) {
	t.Helper()
	cmd := exec.Command(os.Args[0], append([]string{"reconcile", "-o", "json"}, args...)...)
	cmd.Env = append(os.Environ(), commandEnv+"=1")
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		exit, ok := errors.AsType[*exec.ExitError](err)
		if !ok {
			t.Fatal(err)
		}
		status = exit.ExitCode()
	}
	if err := json.Unmarshal(out.Bytes(), &did); err != nil {
		t.Fatalf("%v: %s %s", err, out.String(), errs.String())
	}
	return did, status, errs.String()
}

// The proxy is killed in the middle of runs. The service is asked about each with the stored
// scope and key. Each retry gets the outcome that the service reported.
func TestReconcileSettlesRunsOfAKilledProxy(t *testing.T) {
	stores := map[string]func(t *testing.T) string{
		"sqlite": func(t *testing.T) string { return filepath.Join(t.TempDir(), "s.db") },
		"redis":  func(t *testing.T) string { return "redis://" + rig.Redis(t).Addr() + "/7" },
		"postgres": func(t *testing.T) string {
			url := rig.Postgres(t).Database(t)
			must(t, "migrate", "up", "--store", url)
			return url
		},
	}
	for name, open := range stores {
		t.Run(name, func(t *testing.T) { settlesWhatWasLeft(t, open(t)) })
	}
}

func settlesWhatWasLeft(t *testing.T, store string) {
	b := openRegister(t)
	dir := t.TempDir()
	file, secret := filepath.Join(dir, "stet.yaml"), filepath.Join(dir, "key")
	text := fmt.Sprintf(`
upstream: {url: %q}
listen: 127.0.0.1:0
store: %q
scope: header:X-Account
encryption: {keys: [{name: k, file: %q}]}
routes:
  - path: /payments
    lease: 1s
    keep_key: true
    keep_scope: true
    verify: {url: /happened}
`, b.URL, store, secret)
	for name, text := range map[string]string{file: text, secret: base64.StdEncoding.EncodeToString([]byte("0123456789abcdef0123456789abcdef"))} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p := startProxy(t, "--config", file)
	var clients sync.WaitGroup
	for _, op := range [][2]string{{"acme", "k"}, {"globex", "k"}, {"acme", "mute"}} {
		clients.Go(func() { payAs(t, p.url, op[0], op[1]) })
	}
	for range 3 {
		<-b.arrived
	}
	p.kill()
	clients.Wait()
	var sum reconciling
	for end := time.Now().Add(time.Minute); sum.Completed+sum.Again < 2 || sum.Errors == 0; {
		did, status, stderr := reconcileApart(t, "--config", file)
		if (status == exitFailure) != (did.Errors > 0) || did.Errors > 0 && !strings.Contains(stderr, "Stet-Operation") || time.Now().After(end) {
			t.Fatalf("%+v, exit status %d: %s", did, status, stderr)
		}
		sum.Completed, sum.Again, sum.Errors, sum.Blind = sum.Completed+did.Completed, sum.Again+did.Again, sum.Errors+did.Errors, sum.Blind+did.Blind
	}
	if sum.Completed != 1 || sum.Again != 1 || sum.Blind != 0 {
		t.Errorf("%+v", sum)
	}
	p = startProxy(t, "--config", file)
	if status, body, replayed := payAs(t, p.url, "acme", "k"); status != 201 || body != "charged acme k" || !replayed {
		t.Errorf("what happened: %d %q, replayed %v", status, body, replayed)
	}
	if status, body, replayed := payAs(t, p.url, "globex", "k"); status != 200 || body != "run 2 of globex k" || replayed {
		t.Errorf("what did not happen: %d %q, replayed %v", status, body, replayed)
	}
	if status, body, _ := payAs(t, p.url, "acme", "mute"); status != 504 || !strings.Contains(body, "outcome-unknown") {
		t.Errorf("of which nothing was proven: %d %q", status, body)
	}
	for op, want := range map[string]int{"acme k": 1, "globex k": 2, "acme mute": 1} {
		if b.ran(op) != want {
			t.Errorf("%s ran %d times; want %d", op, b.ran(op), want)
		}
	}
}

func TestReconcileExplainsErrors(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "stet.yaml")
	text := "upstream: {url: 'http://127.0.0.1:1'}\nstore: " + filepath.Join(dir, "s.db") + "\nroutes: [{path: /payments, verify: {url: /happened}}]\nscope: header:X-Account\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, args := range map[string][]string{
		"which configuration?":    {"reconcile"},
		"--for must be positive":  {"reconcile", "--config", file, "--for", "0s"},
		"there is no file":        {"reconcile", "--config", file},
		"unknown command \"now\"": {"reconcile", "now"},
	} {
		if status, out, stderr := command(t, args...); status != exitUsage || out != "" || !strings.Contains(stderr, want) {
			t.Errorf("%v: %d %q %q; want %q", args, status, out, stderr, want)
		}
	}
	if status, _, stderr := command(t, "reconcile", "--config", file, "--store", "memory"); status != exitFailure || !strings.Contains(stderr, "stet.yaml:3: routes[0].verify: reconcile asks about operations whose scope is kept") {
		t.Errorf("with nothing kept: %d %s", status, stderr)
	}
	text = strings.Replace(text, "verify:", "keep_scope: true, keep_key: true, verify:", 1)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	status, out, stderr := command(t, "reconcile", "--config", file, "--store", "memory", "--dry-run")
	if want := "These changes would be made; nothing was changed.\n0 expired runs: 0 happened (0 completed, 0 failed), 0 did not happen and may run again, 0 left unknown, 0 changed in the meantime, 0 errors\n"; status != exitOK || out != want {
		t.Errorf("%d %q %s; want %q", status, out, stderr, want)
	}
}

// The proxy dies while the service runs an accepted operation. Its record has the stored scope
// and key.
func TestReconcileSettlesAcceptedOperations(t *testing.T) {
	b := openRegister(t)
	file := filepath.Join(t.TempDir(), "stet.yaml")
	text := fmt.Sprintf("upstream: {url: %q}\nlisten: 127.0.0.1:0\nstore: %q\nscope: header:X-Account\nroutes: [{path: /payments, lease: 1s, async: {}, verify: {url: /happened}}]\n",
		b.URL, filepath.Join(t.TempDir(), "s.db"))
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	p := startProxy(t, "--config", file)
	for _, account := range []string{"acme", "globex"} {
		if status, body, _ := payAs(t, p.url, account, "k"); status != 202 {
			t.Fatalf("%d %s", status, body)
		}
		<-b.arrived
	}
	p.kill()
	var sum reconciling
	for end := time.Now().Add(time.Minute); sum.Completed+sum.Again < 2; {
		did, status, stderr := reconcileApart(t, "--config", file)
		if status != exitOK || time.Now().After(end) {
			t.Fatalf("%+v, exit status %d: %s", did, status, stderr)
		}
		sum.Completed, sum.Again = sum.Completed+did.Completed, sum.Again+did.Again
	}
	if sum.Completed != 1 || sum.Again != 1 {
		t.Errorf("%+v", sum)
	}
	p = startProxy(t, "--config", file)
	if status, body, _ := payAs(t, p.url, "acme", "k"); status != 201 || body != "charged acme k" {
		t.Errorf("what happened: %d %q", status, body)
	}
	for end := time.Now().Add(time.Minute); ; {
		status, body, _ := payAs(t, p.url, "globex", "k")
		if status == 200 && body == "run 2 of globex k" {
			break
		}
		if status != 202 || time.Now().After(end) {
			t.Fatalf("what did not happen: %d %q", status, body)
		}
	}
	if b.ran("acme k") != 1 || b.ran("globex k") != 2 {
		t.Errorf("acme ran %d times, globex %d", b.ran("acme k"), b.ran("globex k"))
	}
}

// A proxy that takes the place of a killed one asks by itself, without a retry.
func TestProxySettlesRunsOfAKilledProxy(t *testing.T) {
	b := openRegister(t)
	file, store := filepath.Join(t.TempDir(), "stet.yaml"), filepath.Join(t.TempDir(), "s.db")
	text := fmt.Sprintf("upstream: {url: %q}\nlisten: 127.0.0.1:0\nstore: %q\nscope: header:X-Account\nreconcile: {every: 50ms}\n"+
		"routes: [{path: /payments, lease: 1s, keep_scope: true, keep_key: true, verify: {url: /happened}}]\n", b.URL, store)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	p := startProxy(t, "--config", file)
	done := make(chan struct{})
	go func() { defer close(done); payAs(t, p.url, "acme", "k") }()
	<-b.arrived
	p.kill()
	<-done
	p = startProxy(t, "--config", file)
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		status, out, stderr := command(t, "keys", "get", "--store", store, "--scope", "acme", "k", "-o", "json")
		if status != exitOK || time.Now().After(end) {
			t.Fatalf("%d %s %s\n%s", status, out, stderr, p.log())
		}
		if strings.Contains(out, `"completed"`) {
			if !strings.Contains(out, `"key":"k"`) && !strings.Contains(out, `"key": "k"`) {
				t.Errorf("the key is not shown: %s", out)
			}
			break
		}
	}
	if status, body, replayed := payAs(t, p.url, "acme", "k"); status != 201 || body != "charged acme k" || !replayed || b.ran("acme k") != 1 {
		t.Errorf("%d %q, replayed %v, %d runs", status, body, replayed, b.ran("acme k"))
	}
}
