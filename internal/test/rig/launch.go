package rig

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
)

// patience bounds what a test waits for.
const patience = time.Minute

// Program is a program, in any language, that has said on one of its outputs that it
// is listening, and where.
type Program struct {
	// URL is where it listens.
	URL string

	cmd  *exec.Cmd
	gone chan struct{} // closed when it has ended
	mu   sync.Mutex
	said bytes.Buffer
}

var listening = regexp.MustCompile(`listening .*(http://127\.0\.0\.1:\d+)`)

// Launch starts a program, waits until it has written a line like "listening on
// http://127.0.0.1:8080", and kills it at the end of the test.
func Launch(t testing.TB, cmd *exec.Cmd) *Program {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = w, w
	err = cmd.Start()
	_ = w.Close()
	if err != nil {
		_ = r.Close()
		t.Fatal(err)
	}
	p := &Program{cmd: cmd, gone: make(chan struct{})}
	where := make(chan string, 1)
	go func() { // ends with the program, whose output it reads
		defer close(p.gone)
		for lines := bufio.NewScanner(r); lines.Scan(); {
			p.mu.Lock()
			fmt.Fprintln(&p.said, lines.Text())
			p.mu.Unlock()
			if m := listening.FindStringSubmatch(lines.Text()); m != nil && len(where) == 0 {
				where <- m[1]
			}
		}
		_ = cmd.Wait()
		_ = r.Close()
	}()
	t.Cleanup(p.Kill)
	select {
	case p.URL = <-where:
	case <-p.gone:
		t.Fatalf("%s has ended: %s", cmd, p.Log())
	case <-time.After(patience):
		t.Fatalf("%s does not listen: %s", cmd, p.Log())
	}
	return p
}

// Log is its output.
func (p *Program) Log() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.said.String()
}

// Says waits until it has written text.
func (p *Program) Says(t testing.TB, text string) {
	t.Helper()
	for end := time.Now().Add(patience); !strings.Contains(p.Log(), text); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("it did not say %q, but: %s", text, p.Log())
		}
	}
}

// Signal sends it a signal.
func (p *Program) Signal(t testing.TB, sig os.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil {
		t.Fatal(err)
	}
}

// Kill kills it, and waits until it has ended.
func (p *Program) Kill() {
	_ = p.cmd.Process.Kill()
	<-p.gone
}

// runLimit is how long a program may take. The longest take 4 minutes on a busy machine.
const runLimit = 15 * time.Minute

// Run executes a program in a folder, with more in its environment, and returns its
// output.
func Run(t testing.TB, dir string, env []string, name string, args ...string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Fatalf("there is no %s; run: make services", name)
	}
	ctx, cancel := context.WithTimeout(t.Context(), runLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		kill(processes(dir)...) // its child processes
		t.Fatalf("%s has not ended after %v:\n%s", cmd, runLimit, out)
	}
	if err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, out)
	}
	return string(out)
}

// built is the program of cmd/stet, built once for all tests of the binary.
var built struct {
	sync.Mutex
	path string
}

// Stet builds cmd/stet as a release has it, but with symbols, and returns its path.
func Stet(t testing.TB) string {
	t.Helper()
	built.Lock()
	defer built.Unlock()
	if built.path != "" {
		return built.path
	}
	shared.mu.Lock()
	r, err := ofBinary()
	shared.mu.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	root := strings.TrimSpace(Run(t, ".", nil, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/stet-go/stet"))
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error { // go test keeps a result until what the test itself reads is another
		if d != nil && d.IsDir() && d.Name() == ".git" {
			return fs.SkipDir
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(r.dir, "stet")
	Run(t, root, []string{"CGO_ENABLED=0", "GOWORK=off"}, "go", "build", "-trimpath", "-o", path, "./cmd/stet")
	built.path = path
	return path
}
