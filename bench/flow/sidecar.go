package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// sidecar is a stet proxy in a process of its own.
type sidecar struct {
	url, admin string
	cmd        *exec.Cmd
	gone       chan struct{} // closed when it has ended
	mu         sync.Mutex
	said       bytes.Buffer // what it has warned of
}

// build makes the program, in dir.
func build(ctx context.Context, dir string) (path string, err error) {
	root, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/stet-go/stet").Output()
	if err != nil {
		return "", err
	}
	path = filepath.Join(dir, "stet")
	cmd := exec.CommandContext(ctx, "go", "build", "-o", path, "./cmd/stet")
	cmd.Dir = strings.TrimSpace(string(root))
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w: %s", err, out)
	}
	return path, nil
}

// config is what differs between the sidecars that are measured.
type config struct {
	store    string
	upstream string
	worker   string // inside or elsewhere
	limits   string // in YAML; "": all defaults
	at       int    // operations at the service at a time
}

func (c config) yaml() string {
	return fmt.Sprintf(`listen: 127.0.0.1:0
admin: {listen: 127.0.0.1:0}
upstream: {url: %q}
store: {url: %q}
scope: single-tenant
worker: %s
limits: {%s}
routes:
  - path: /orders
    max_wait: %v
    async: {concurrency: %d}
`, c.upstream, c.store, c.worker, c.limits, longest, c.at)
}

// The lines with which it says where it listens.
var listening = regexp.MustCompile(`listening for (admin|traffic)" url=(http://127\.0\.0\.1:\d+)`)

// start starts a sidecar and returns when it listens. stop ends it.
func start(ctx context.Context, program, dir string, c config) (*sidecar, error) {
	path := filepath.Join(dir, "stet.yaml")
	if err := os.WriteFile(path, []byte(c.yaml()), 0o600); err != nil {
		return nil, err
	}
	s := &sidecar{cmd: exec.Command(program, "proxy", "--config", path), gone: make(chan struct{})} //nolint:noctx // stop ends it
	out, err := s.cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	ready := make(chan struct{})
	go s.listen(out, ready) // ends with the process
	late, cancel := context.WithTimeoutCause(ctx, time.Minute, errors.New("the sidecar does not listen"))
	defer cancel()
	select {
	case <-ready:
		return s, nil
	case <-s.gone:
		return nil, fmt.Errorf("the sidecar has ended: %s", s.log())
	case <-late.Done():
		return nil, errors.Join(context.Cause(late), s.stop())
	}
}

// listen reads what the sidecar says until its end, and keeps the beginning of it.
func (s *sidecar) listen(out io.Reader, ready chan<- struct{}) {
	defer close(s.gone)
	for lines := bufio.NewScanner(out); lines.Scan(); {
		s.mu.Lock()
		if s.said.Len() < 8<<10 {
			fmt.Fprintln(&s.said, lines.Text())
		}
		s.mu.Unlock()
		m := listening.FindStringSubmatch(lines.Text())
		switch {
		case m == nil || s.url != "":
		case m[1] == "admin":
			s.admin = m[2]
		default:
			s.url = m[2]
			close(ready)
		}
	}
	_ = s.cmd.Wait()
}

func (s *sidecar) log() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.said.String()
}

// stop ends it: politely, and then not.
func (s *sidecar) stop() error {
	_ = s.cmd.Process.Signal(syscall.SIGTERM) // fails only if it is gone
	select {
	case <-s.gone:
		return nil
	case <-time.After(time.Minute):
	}
	_ = s.cmd.Process.Kill()
	<-s.gone
	return fmt.Errorf("the sidecar did not end within a minute: %s", s.log())
}

// state is what the sidecar has of the machine.
type state struct {
	rss, peak  float64 // MiB; peak since the last reset
	heap       float64 // MiB of Go's heap at which garbage is collected next: twice of what lives
	goroutines float64
	processor  time.Duration
}

// look reads the state of the process.
func (s *sidecar) look() (st state, err error) {
	proc := fmt.Sprintf("/proc/%d/", s.cmd.Process.Pid)
	b, err := os.ReadFile(proc + "status")
	if err != nil {
		return st, fmt.Errorf("the sidecar has ended: %w: %s", err, s.log())
	}
	st.rss, st.peak = field(b, "VmRSS:")/1024, field(b, "VmHWM:")/1024
	if b, err = os.ReadFile(proc + "stat"); err != nil {
		return st, err
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	if f := strings.Fields(rest); len(f) > 12 {
		user, _ := strconv.Atoi(f[11])
		system, _ := strconv.Atoi(f[12])
		st.processor = time.Duration(user+system) * time.Second / 100
	}
	b, err = s.metrics()
	st.goroutines, st.heap = field(b, "go_goroutines"), field(b, "go_memstats_next_gc_bytes")/(1<<20)
	return st, err
}

// metrics reads what the sidecar counts.
func (s *sidecar) metrics() ([]byte, error) {
	res, err := http.Get(s.admin + "/metrics") //nolint:noctx // of a sidecar that answers
	if err != nil {
		return nil, fmt.Errorf("%w; %s", err, s.log())
	}
	defer func() { _ = res.Body.Close() }()
	b, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("the metrics: %d: %s; %s", res.StatusCode, b, s.log())
	}
	return b, err
}

// forgetPeak has the peak begin anew.
func (s *sidecar) forgetPeak() error {
	return os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", s.cmd.Process.Pid), []byte("5"), 0)
}

// field is the number behind a name at the beginning of a line; 0 if it is not there.
func field(text []byte, name string) float64 {
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == name {
			v, _ := strconv.ParseFloat(f[1], 64)
			return v
		}
	}
	return 0
}
