package main

import (
	"bufio"
	"bytes"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stet-go/stet/internal/fault"
)

var kills = flag.Int("proxy.kills", 20, "how often TestKilledProxyNeverHasAnythingExecutedTwice kills the proxy")

// instance is a proxy in a process of its own.
type instance struct {
	t     *testing.T
	cmd   *exec.Cmd
	url   string
	admin string

	mu   sync.Mutex
	said bytes.Buffer
	done chan struct{}
}

var listening = regexp.MustCompile(`msg="listening for (traffic|admin)" url=(\S+)`)

func startProxy(t *testing.T, args ...string) *instance {
	t.Helper()
	return startServing(t, "proxy", append([]string{"--admin-listen", "127.0.0.1:0", "--drain-delay", "0s"}, args...)...)
}

// startServing starts a command that serves until the test ends it.
func startServing(t *testing.T, name string, args ...string) *instance {
	t.Helper()
	return startDying(t, "", name, args...)
}

// startDying starts a command that dies at a point, unless that is "".
func startDying(t *testing.T, point fault.Point, name string, args ...string) *instance {
	t.Helper()
	p := &instance{t: t, done: make(chan struct{})}
	p.cmd = exec.Command(os.Args[0], append([]string{name}, args...)...)
	p.cmd.Env = append(os.Environ(), commandEnv+"=1")
	if point != "" {
		p.cmd.Env = append(p.cmd.Env, dieEnv+"="+string(point))
	}
	r, err := p.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ready := make(chan struct{})
	go func() {
		defer close(p.done)
		for lines := bufio.NewScanner(r); lines.Scan(); {
			p.mu.Lock()
			fmt.Fprintln(&p.said, lines.Text())
			p.mu.Unlock()
			switch m := listening.FindStringSubmatch(lines.Text()); {
			case m == nil && strings.Contains(lines.Text(), "stet "+name+" works for "):
				close(ready)
			case m == nil:
			case m[1] == "admin":
				p.admin = m[2]
			default:
				p.url = m[2]
				close(ready)
			}
		}
		_ = p.cmd.Wait()
	}()
	t.Cleanup(p.kill)
	select {
	case <-ready:
	case <-p.done:
		if point == "" {
			t.Fatalf("it ended: %s", p.log())
		}
	case <-time.After(60 * time.Second):
		t.Fatalf("not ready after a minute: %s", p.log())
	}
	return p
}

func (p *instance) log() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.said.String()
}

func (p *instance) kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

func (p *instance) signal(sig os.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil {
		p.t.Fatal(err)
	}
}

// saysNow waits for a line of the log.
func (p *instance) saysNow(text string) {
	p.t.Helper()
	for end := time.Now().Add(60 * time.Second); !strings.Contains(p.log(), text); time.Sleep(2 * time.Millisecond) {
		select {
		case <-p.done:
			if !strings.Contains(p.log(), text) {
				p.t.Fatalf("the process ended (%v), and %q is not in the log: %s", p.cmd.ProcessState, text, p.log())
			}
		default:
		}
		if time.Now().After(end) {
			p.t.Fatalf("%q is not in the log after a minute: %s", text, p.log())
		}
	}
}

var oneShot = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 30 * time.Second}

// pay sends a payment; status 0 is no answer.
func pay(t *testing.T, url, key string) (status int, body string, replayed bool) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/payments", strings.NewReader("pay "+key))
	if err != nil {
		t.Fatal(err)
	}
	req.GetBody = nil
	req.Header.Set("Idempotency-Key", key)
	res, err := oneShot.Do(req)
	if err != nil {
		return 0, "", false
	}
	defer func() { _ = res.Body.Close() }()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		return 0, "", false
	}
	return res.StatusCode, string(b), res.Header.Get("Idempotent-Replayed") == "true"
}

// books is a service that counts its executions by key.
type books struct {
	*httptest.Server
	mu   sync.Mutex
	runs map[string]int
}

func openBooks(t *testing.T, work func()) *books {
	t.Helper()
	b := &books{runs: map[string]int{}}
	b.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key := r.Header.Get("Idempotency-Key")
		b.mu.Lock()
		b.runs[key]++
		n := b.runs[key]
		b.mu.Unlock()
		work()
		w.WriteHeader(http.StatusCreated)
		fmt.Fprintf(w, "charge %d of %s", n, key)
	}))
	t.Cleanup(b.Close)
	return b
}

func (b *books) count(key string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.runs[key]
}

func TestProxyWorksWithNothingButAnUpstream(t *testing.T) {
	t.Chdir(t.TempDir())
	b := openBooks(t, func() {})
	p := startProxy(t, "--upstream", b.URL, "--listen", "127.0.0.1:0", "--scope", "single-tenant")
	if status, body, replayed := pay(t, p.url, "k"); status != 201 || body != "charge 1 of k" || replayed {
		t.Errorf("got %d %q; want status == 201, body == \"charge 1 of k\", not replayed", status, body)
	}
	p.kill()
	// Its records are in the working directory.
	p = startProxy(t, "--upstream", b.URL, "--listen", "127.0.0.1:0", "--scope", "single-tenant")
	if status, body, replayed := pay(t, p.url, "k"); status != 201 || body != "charge 1 of k" || !replayed || b.count("k") != 1 {
		t.Errorf("%d %q, replayed %v", status, body, replayed)
	}
	for path, want := range map[string]string{"/healthz": "ok", "/readyz": "ready", "/metrics": "replayed", "/metrics?counts": "stet_proxy_unprotected_total 0"} {
		res, err := oneShot.Get(p.admin + path)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if res.StatusCode != 200 || !strings.Contains(string(body), want) {
			t.Errorf("%s: %d %s", path, res.StatusCode, body)
		}
	}
	p.kill()
	// Whose key it is has no default.
	if status, _, stderr := command(t, "proxy", "--upstream", b.URL, "--listen", "127.0.0.1:0"); status == exitOK || !strings.Contains(stderr, "whose keys are they?") {
		t.Errorf("without --scope: %d %s", status, stderr)
	}
	p = startProxy(t, "--upstream", b.URL, "--listen", "127.0.0.1:0", "--scope", "authorization")
	if status, body, _ := pay(t, p.url, "k2"); status != 403 || !strings.Contains(body, "scope-missing") {
		t.Errorf("%d %q\n%s", status, body, p.log())
	}
}

func TestTerminatedProxyLetsRequestsEnd(t *testing.T) {
	arrived, leave := make(chan struct{}, 1), make(chan struct{})
	b := openBooks(t, func() { arrived <- struct{}{}; <-leave })
	p := startProxy(t, "--upstream", b.URL, "--listen", "127.0.0.1:0", "--scope", "single-tenant", "--store", filepath.Join(t.TempDir(), "s.db"))
	answer := make(chan int, 1)
	go func() {
		status, _, _ := pay(t, p.url, "k")
		answer <- status
	}()
	<-arrived
	p.signal(syscall.SIGTERM)
	p.saysNow("draining")
	if status, _, _ := pay(t, p.url, "k2"); status != 0 {
		t.Errorf("a new request while draining: %d", status)
	}
	close(leave)
	if status := <-answer; status != 201 {
		t.Errorf("the request got %d", status)
	}
	<-p.done
	if status := p.cmd.ProcessState.ExitCode(); status != exitOK {
		t.Errorf("exit status %d: %s", status, p.log())
	}
}

func TestHangupReloadsAllOrNothing(t *testing.T) {
	b := openBooks(t, func() {})
	dir := t.TempDir()
	file := filepath.Join(dir, "stet.yaml")
	write := func(routes string) {
		t.Helper()
		text := fmt.Sprintf("upstream: {url: %q}\nlisten: 127.0.0.1:0\nstore: %s\nscope: single-tenant\nroutes: %s\nunrouted: pass\n", b.URL, filepath.Join(dir, "s.db"), routes)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	twice := func(key string) bool {
		pay(t, addressOf(t, file), key)
		pay(t, addressOf(t, file), key)
		return b.count(key) == 2
	}
	write("[{path: /other}]")
	p := startProxy(t, "--config", file)
	urls.Store(file, p.url)
	if !twice("a") {
		t.Error("/payments is protected, and should not be yet")
	}
	write("[{path: /payments, lease: 1ns}]")
	p.signal(syscall.SIGHUP)
	p.saysNow("was not reloaded")
	if !strings.Contains(p.log(), "stet.yaml:5: routes[0].lease") || !twice("b") {
		t.Errorf("half of it was loaded: %s", p.log())
	}
	write("[{path: /payments}]")
	p.signal(syscall.SIGHUP)
	p.saysNow("the configuration was reloaded")
	if twice("c") {
		t.Error("/payments is not protected")
	}
}

var urls sync.Map // of proxies, by their configuration

func addressOf(t *testing.T, file string) string {
	t.Helper()
	u, _ := urls.Load(file)
	return u.(string)
}

// Clients pay, impatiently and in parallel, while the proxy is killed and started
// again. Whichever responses they get, the service sees no key twice.
func TestKilledProxyNeverHasAnythingExecutedTwice(t *testing.T) {
	t.Parallel()
	b := openBooks(t, func() { time.Sleep(rand.N(5 * time.Millisecond)) })
	dir := t.TempDir()
	addr := freeAddr(t)
	file := filepath.Join(dir, "stet.yaml")
	text := fmt.Sprintf("upstream: {url: %q}\nlisten: %s\nstore: %s\nscope: single-tenant\nroutes: [{path: /payments, lease: 300ms}]\n", b.URL, addr, filepath.Join(dir, "s.db"))
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s := &payers{t: t, url: "http://" + addr, told: map[string]string{}}
	p := startProxy(t, "--config", file)
	stop := make(chan struct{})
	var clients sync.WaitGroup
	for c := range 8 {
		clients.Go(func() { s.client(c, stop) })
	}
	for range *kills {
		time.Sleep(20*time.Millisecond + rand.N(60*time.Millisecond)) // load, not synchronisation
		p.kill()
		p = startProxy(t, "--config", file)
	}
	close(stop)
	clients.Wait()
	unknown := s.judge(b)
	t.Logf("%d kills, %d keys, %d unknown for good", *kills, len(s.told), unknown)
	if len(s.told) < *kills {
		t.Errorf("only %d keys", len(s.told))
	}
}

// payers are clients and the responses they got, by key: "" for none yet.
type payers struct {
	t   *testing.T
	url string

	mu   sync.Mutex
	told map[string]string
}

// client pays one thing after the other; each up to five times.
func (s *payers) client(c int, stop chan struct{}) {
	for i := 0; ; i++ {
		select {
		case <-stop:
			return
		default:
		}
		key := fmt.Sprintf("c%d-%d", c, i)
		for range 5 {
			s.pay(key)
		}
	}
}

// pay pays, and reports whether the answer is a last word.
func (s *payers) pay(key string) bool {
	status, body, _ := pay(s.t, s.url, key)
	s.mu.Lock()
	defer s.mu.Unlock()
	before, known := s.told[key]
	if !known {
		s.told[key] = ""
	}
	switch {
	case status == 201 && before != "" && before != body:
		s.t.Errorf("%s got %q, and then %q", key, before, body)
	case status == 201:
		s.told[key] = body
		return true
	case status == 504 && before != "":
		s.t.Errorf("%s got %q, and then that it is unknown", key, before)
	}
	return status == 504
}

// judge asks for every key until there is a last word, and compares the words
// with the books.
func (s *payers) judge(b *books) (unknown int) {
	for key := range s.told {
		for end := time.Now().Add(60 * time.Second); !s.pay(key); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				s.t.Fatalf("%s has no last word after a minute", key)
			}
		}
		if s.told[key] == "" {
			unknown++
		}
		if n := b.count(key); n > 1 || n == 0 && s.told[key] != "" {
			s.t.Errorf("%s was executed %d times, and told %q", key, n, s.told[key])
		}
	}
	return unknown
}
