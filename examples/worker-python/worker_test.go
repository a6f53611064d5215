package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const (
	patience = time.Minute
	token    = "a token for the tests"
)

func TestPythonWorkerRunsWhatWasAccepted(t *testing.T) {
	url := serve(t)
	for range 2 {
		send(t, url, "order-1", `{"book":"Emma"}`, http.StatusAccepted)
	}
	send(t, url, "order-2", `{}`, http.StatusAccepted)
	send(t, url, "order-1", `{"book":"Persuasion"}`, http.StatusUnprocessableEntity)
	worker(t, url)
	for key, want := range map[string]string{
		"order-1": `{"shipped": "Emma", "charge": "charge for Emma"}`,
		"order-2": `"an order for nothing"`,
	} {
		if got := outcome(t, url, key); strings.ReplaceAll(got, " ", "") != strings.ReplaceAll(want, " ", "") {
			t.Errorf("%s: %s", key, got)
		}
	}
}

// What one client sends must not keep the orders of others from being run.
func TestOrderThatPythonDoesNotReadEndsNoWorker(t *testing.T) {
	url := serve(t)
	send(t, url, "deep", strings.Repeat("[", 5000)+strings.Repeat("]", 5000), http.StatusAccepted)
	send(t, url, "bytes", "{\"book\":\"\xff\"}", http.StatusAccepted)
	worker(t, url)
	time.Sleep(time.Second) // the first is taken
	send(t, url, "order", `{"book":"Emma"}`, http.StatusAccepted)
	outcome(t, url, "order")
}

// serve runs the service until the test ends.
func serve(t *testing.T) (url string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	listening := make(chan string, 1)
	done := make(chan error, 1)
	file := filepath.Join(t.TempDir(), "orders.db")
	go func() {
		done <- run(ctx, "127.0.0.1:0", file, token, func(v ...any) {
			_, url, _ := strings.Cut(v[0].(string), "listening on ")
			listening <- url
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil && !errors.Is(err, context.DeadlineExceeded) { // a worker may be waiting
			t.Error(err)
		}
	})
	select {
	case url = <-listening:
	case err := <-done:
		done <- nil
		t.Fatal(err)
	}
	return url
}

func worker(t *testing.T, url string) {
	t.Helper()
	var out bytes.Buffer
	cmd := exec.Command("python3", "worker.py")
	cmd.Env = append(os.Environ(), "STET_URL="+url, "STET_TOKEN="+token)
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Log(out.String())
		}
	})
}

func send(t *testing.T, url, key, body string, want int) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/orders", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Idempotency-Key", key)
	w, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	_ = w.Body.Close()
	if w.StatusCode != want {
		t.Fatalf("%s: %d; want %d", key, w.StatusCode, want)
	}
}

// outcome waits for it.
func outcome(t *testing.T, url, key string) string {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		w, err := http.Get(url + "/orders/" + key)
		if err != nil {
			t.Fatal(err)
		}
		var st struct {
			State   string
			Outcome json.RawMessage
		}
		b, _ := io.ReadAll(w.Body)
		_ = w.Body.Close()
		if err := json.Unmarshal(b, &st); err != nil {
			t.Fatal(err, string(b))
		}
		if st.State == "completed" || st.State == "failed" {
			return string(st.Outcome)
		}
		if time.Now().After(end) {
			t.Fatalf("got %s; want not time.Now().After(end)", b)
		}
	}
}
