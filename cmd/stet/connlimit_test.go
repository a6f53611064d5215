package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stet-go/stet/internal/proxy"
	"github.com/stet-go/stet/internal/test/stettest"
)

// configured writes a configuration for an upstream.
func configured(t *testing.T, upstream, more string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "stet.yaml")
	text := fmt.Sprintf("upstream: {url: %q}\nlisten: 127.0.0.1:0\nstore: %q\nscope: single-tenant\n%s", upstream, filepath.Join(t.TempDir(), "s.db"), more)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// connect opens a connection and sends bytes.
func connect(t *testing.T, url, request string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(30 * time.Second))
	if _, err := io.WriteString(c, request); err != nil {
		t.Fatal(err)
	}
	return c
}

// answered reports whether a response comes.
func answered(c net.Conn) bool {
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return false
	}
	_, _ = io.Copy(io.Discard, res.Body)
	return res.Body.Close() == nil && res.StatusCode < 300
}

func TestConnectionsAreBounded(t *testing.T) {
	arrived, leave := make(chan struct{}, 10), make(chan struct{})
	b := openBooks(t, func() { arrived <- struct{}{}; <-leave })
	p := startProxy(t, "--config", configured(t, b.URL, "limits: {connections: 3}\n"))
	const get = "GET / HTTP/1.1\r\nHost: x\r\n\r\n"
	var busy []net.Conn
	for range 2 {
		busy = append(busy, connect(t, p.url, get))
		<-arrived
	}
	idle := connect(t, p.url, "")
	_, _ = io.WriteString(idle, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	<-arrived
	// There is no room, and none is idle.
	if answered(connect(t, p.url, "")) {
		t.Error("a fourth connection was let in")
	}
	p.saysNow(`level=WARN msg="connections are refused: `)
	close(leave)
	for _, c := range append(busy, idle) {
		if !answered(c) {
			t.Error("a connection that was let in gets no answer")
		}
	}
	// Now all are idle, so the oldest of them make room.
	for range 3 {
		if !answered(connect(t, p.url, get)) {
			t.Error("idle connections leave no room")
		}
	}
	res, err := oneShot.Get(p.admin + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if text, _ := io.ReadAll(res.Body); !strings.Contains(string(text), "stet_proxy_connections_refused_total 1\n") || !strings.Contains(string(text), "stet_proxy_busy_total 0\n") {
		t.Errorf("got %s; want strings.Contains(string(text), \"stet_proxy_connections_refused_total 1\\n\"), strings.Contains(string(text), \"stet_proxy_busy_total 0\\n\")", text)
	}
}

// A client that sends a byte now and then holds its connections for a limited time.
func TestConnectionsThatTrickleMakeRoom(t *testing.T) {
	b, arrived := openBooks(t, func() {}), make(chan struct{}, 10)
	b.Config.Handler = http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		arrived <- struct{}{}
		_, _ = io.Copy(io.Discard, r.Body)
	})
	p := startProxy(t, "--config", configured(t, b.URL, "limits: {connections: 3, upload: 500ms}\n"))
	for range 3 {
		c := connect(t, p.url, "PUT /other HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n")
		_ = c.SetDeadline(time.Now().Add(10 * time.Minute)) // no client timeout
		go func() {                                         // ends with the connection
			for tick := time.NewTicker(20 * time.Millisecond); ; <-tick.C {
				if _, err := io.WriteString(c, "x"); err != nil {
					return
				}
			}
		}()
		<-arrived // it is not idle
	}
	stettest.Eventually(t, "an honest client to be served", func() bool {
		c, err := net.Dial("tcp", strings.TrimPrefix(p.url, "http://"))
		if err != nil {
			return false
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(5 * time.Second))
		_, err = io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
		return err == nil && answered(c)
	})
}

// A connection that sends nothing, or part of a header, does not block other clients.
func TestConnectionsWithoutARequestMakeRoom(t *testing.T) {
	b := openBooks(t, func() {})
	p := startProxy(t, "--config", configured(t, b.URL, "limits: {connections: 3}\n"))
	for range 5 {
		connect(t, p.url, "")
		connect(t, p.url, "GET / HTTP/1.1\r\nHost:")
	}
	for range 5 {
		if !answered(connect(t, p.url, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")) {
			t.Error("no answer beside connections that ask for nothing")
		}
	}
}

// Clients that take and send nothing hold up no restart, and make it no failure.
func TestTerminatedProxyWaitsForNoClientThatIsStuck(t *testing.T) {
	large := strings.Repeat("x", 1<<20)
	b := openBooks(t, func() {})
	b.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		for range 64 {
			_, _ = io.WriteString(w, large)
		}
	})
	p := startProxy(t, "--config", configured(t, b.URL, ""))
	reading := connect(t, p.url, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	if _, err := io.ReadFull(reading, make([]byte, 1000)); err != nil {
		t.Fatal(err)
	}
	connect(t, p.url, "POST /payments HTTP/1.1\r\nHost: x\r\nIdempotency-Key: k\r\nContent-Length: 1000\r\n\r\nhalf")
	connect(t, p.url, "PUT /upload HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\nhalf")
	began := time.Now()
	p.signal(syscall.SIGTERM)
	<-p.done
	if took := time.Since(began); took > 25*time.Second {
		t.Errorf("it took %v", took)
	}
	if status := p.cmd.ProcessState.ExitCode(); status != exitOK {
		t.Errorf("exit status %d: %s", status, p.log())
	}
}

// A stream of the service's that never ends is no operation.
func TestEndlessStreamIsCutOffAtTheEndOfTheDrain(t *testing.T) {
	b := openBooks(t, func() {})
	b.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "data\n")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	p := startProxy(t, "--config", configured(t, b.URL, "drain: 500ms\n"))
	stream := connect(t, p.url, "GET /events HTTP/1.1\r\nHost: x\r\n\r\n")
	if _, err := io.ReadFull(stream, make([]byte, 10)); err != nil {
		t.Fatal(err)
	}
	p.signal(syscall.SIGTERM)
	<-p.done
	if status := p.cmd.ProcessState.ExitCode(); status != exitOK || !strings.Contains(p.log(), "no operation was in progress") {
		t.Errorf("exit status %d: %s", status, p.log())
	}
}

func TestPasswordOfAMalformedURLIsNotInTheError(t *testing.T) {
	for _, url := range []string{"redis://user:hunter2%zz@127.0.0.1:6379/0", "redis://user:hunter2@127.0.0.1:port", "redis://:hunter2@127.0.0.1:1/hunter2"} {
		if _, err := openStore(t.Context(), proxy.Store{URL: url}); err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("got %v; want err != nil, not strings.Contains(err.Error(), \"hunter2\")", err)
		}
	}
}
