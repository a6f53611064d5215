package main

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	_ "modernc.org/sqlite"
)

const address = "127.0.0.1:8080" // of the program and of README's commands

var (
	program  = regexp.MustCompile("(?s)```go\n(package main\n.*?)```")
	commands = regexp.MustCompile("(?s)```console\n(.*?)```")
)

// TestReadmeProgramPaysOnce builds README's program, runs README's commands, and compares
// each line that README shows of their output. Only the port differs.
func TestReadmeProgramPaysOnce(t *testing.T) {
	readme, err := os.ReadFile(filepath.Join("..", "..", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile("main.go")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(source), "\n")
	if m := program.FindSubmatch(readme); m == nil || string(m[1]) != text {
		t.Fatal("README.md has not the program of examples/quickstart/main.go")
	}
	dir := t.TempDir()
	at := serve(t, dir, string(source))
	shown := commands.FindSubmatch(readme)
	if shown == nil {
		t.Fatal("README.md has no commands")
	}
	for _, part := range strings.Split(string(shown[1]), "$ ")[1:] {
		command, lines, _ := strings.Cut(part, "\n")
		if strings.HasSuffix(command, "go run ./quickstart") {
			continue
		}
		out, err := exec.CommandContext(t.Context(), "sh", "-c", strings.ReplaceAll(command, address, at)).CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v (the commands need curl)\n%s", command, err, out)
		}
		got := strings.ReplaceAll(string(out), "\r", "")
		for line := range strings.Lines(lines) {
			if !strings.Contains(got, line) {
				t.Errorf("%s: no line %q in\n%s", command, line, got)
			}
		}
	}
	db, err := sql.Open("sqlite", filepath.Join(dir, "shop.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	var n int
	if err := db.QueryRowContext(t.Context(), "SELECT count(*) FROM payments").Scan(&n); err != nil || n != 1 {
		t.Errorf("%d payments, %v; want 1", n, err)
	}
}

// serve runs the program in dir on a free port, and returns the address.
func serve(t *testing.T, dir, source string) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := listener.Addr().String()
	_ = listener.Close()
	here, err := filepath.Abs("main.go")
	if err != nil {
		t.Fatal(err)
	}
	moved, overlay := filepath.Join(dir, "main.go"), filepath.Join(dir, "overlay.json")
	replace, err := json.Marshal(map[string]any{"Replace": map[string]string{here: moved}})
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{moved: []byte(strings.ReplaceAll(source, address, at)), overlay: replace} {
		if err := os.WriteFile(name, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	binary := filepath.Join(dir, "quickstart")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-overlay", overlay, "-o", binary, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	ctx, stop := context.WithCancel(context.Background())
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, binary)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stop()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("the program wrote %s", out.String())
		}
	})
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if conn, err := net.Dial("tcp", at); err == nil {
			_ = conn.Close()
			return at
		}
		if time.Now().After(deadline) {
			t.Fatal("the program does not listen")
		}
	}
}
