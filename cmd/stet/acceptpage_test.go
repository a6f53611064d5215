package main

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stet-go/stet/internal/test/rig"
)

// TestProgramOfThePageIsAcceptedAndDone runs the program of docs/accept.md behind its
// configuration.
func TestProgramOfThePageIsAcceptedAndDone(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "accept.md"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	block := func(language, name string, edit ...string) string {
		t.Helper()
		m := regexp.MustCompile("(?s)```" + language + "\n(.*?)```").FindSubmatch(page)
		if m == nil {
			t.Fatalf("the page has no %s", language)
		}
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(strings.NewReplacer(edit...).Replace(string(m[1]))), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	addr, err := rig.FreeAddr()
	if err != nil {
		t.Fatal(err)
	}
	config := block("yaml", "stet.yaml", "127.0.0.1:3000", addr)
	p := startProxy(t, "--config", config, "--listen", "127.0.0.1:0", "--store", filepath.Join(dir, "stet.db"))
	service := exec.Command("python3", block("python", "service.py"))
	_, port, _ := strings.Cut(addr, ":")
	service.Env = append(os.Environ(), "PORT="+port, "PROXY="+p.url)
	out, err := service.StdoutPipe()
	if err == nil {
		err = service.Start()
	}
	if err != nil {
		t.Fatalf("python3 is needed; run: make services (%v)", err)
	}
	t.Cleanup(func() { _ = service.Process.Kill(); _ = service.Wait() })
	if _, err := io.ReadFull(out, make([]byte, len("listening"))); err != nil {
		t.Fatal(err)
	}
	send := func(method, path, body string, header ...string) (int, string) {
		t.Helper()
		return sendTo(t, method, p.url+path, body, header...)
	}
	const order = `{"copies": 5, "seconds": 0.6}`
	if status, body := send("POST", "/orders", order); status != 202 {
		t.Fatalf("%d %s", status, body)
	}
	seen := false
	for end := time.Now().Add(30 * time.Second); !seen && time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		var told struct {
			State    string
			Progress *struct{ Message string }
		}
		status, body := send("GET", "/operations/by-key", "")
		if err := json.Unmarshal([]byte(body), &told); err != nil || status != 200 {
			t.Fatalf("%d %s", status, body)
		}
		seen = told.State == "running" && told.Progress != nil && strings.HasSuffix(told.Progress.Message, "of 5 packed")
	}
	if !seen {
		t.Errorf("no progress was seen: %s", p.log())
	}
	if status, body := send("POST", "/orders", order, "Prefer", "wait=10"); status != 201 || body != `{"packed": 5}` {
		t.Errorf("the outcome is %d %s\n%s", status, body, p.log())
	}
}

// sendTo sends a request of the account a with the key k1, and one more header field.
func sendTo(t *testing.T, method, url, body string, header ...string) (int, string) {
	t.Helper()
	r, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("X-Account", "a")
	r.Header.Set("Idempotency-Key", "k1")
	if len(header) > 0 {
		r.Header.Set(header[0], header[1])
	}
	res, err := oneShot.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(bytes.TrimSpace(b))
}
