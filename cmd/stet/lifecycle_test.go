package main

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
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

	"github.com/stet-go/stet/internal/test/stettest"
)

// supervisor receives the states that a process sends to systemd.
func supervisor(t *testing.T) <-chan string {
	t.Helper()
	dir, err := os.MkdirTemp("", "stet-notify-") // the path of a socket has at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	name := filepath.Join(dir, "s")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	t.Setenv("NOTIFY_SOCKET", name)
	states := make(chan string, 1000)
	go func() {
		buf := make([]byte, 100)
		for {
			n, err := conn.Read(buf)
			if err != nil {
				return
			}
			select {
			case states <- string(buf[:n]):
			default:
			}
		}
	}()
	return states
}

// receives waits for a state.
func receives(t *testing.T, states <-chan string, want string) {
	t.Helper()
	for end := time.After(time.Minute); ; {
		select {
		case got := <-states:
			if got == want {
				return
			}
		case <-end:
			t.Fatalf("%s was not sent", want)
		}
	}
}

func TestTerminatedProxy_DuringTheDrainDelay_ServesAndIsNotReady(t *testing.T) {
	states := supervisor(t)
	t.Setenv("WATCHDOG_USEC", "20000")
	b := openBooks(t, func() {})
	p := startProxy(t, "--config", configured(t, b.URL, ""), "--drain-delay", "10m")
	receives(t, states, "READY=1")
	receives(t, states, "WATCHDOG=1")
	p.signal(syscall.SIGHUP)
	receives(t, states, "RELOADING=1")
	receives(t, states, "READY=1")
	p.signal(syscall.SIGTERM)
	receives(t, states, "STOPPING=1")
	p.saysNow("not ready any more")
	if status, body, _ := pay(t, p.url, "k"); status != 201 {
		t.Errorf("a new request during the delay: %d %s", status, body)
	}
	if status, body := read(t, oneShot, p.admin+"/readyz?verbose"); status != 503 || !strings.HasPrefix(body, "draining\nstore: it answers\nsweep: ") {
		t.Errorf("readyz: %d %s", status, body)
	}
	p.signal(syscall.SIGTERM)
	p.saysNow("msg=draining")
	<-p.done
	if status := p.cmd.ProcessState.ExitCode(); status != exitOK {
		t.Errorf("exit status %d: %s", status, p.log())
	}
}

func TestInterruptedProxy_HasNoDrainDelay(t *testing.T) {
	b := openBooks(t, func() {})
	p := startProxy(t, "--config", configured(t, b.URL, ""), "--drain-delay", "10m")
	p.signal(os.Interrupt)
	<-p.done
	if status := p.cmd.ProcessState.ExitCode(); status != exitOK || strings.Contains(p.log(), "not ready any more") {
		t.Errorf("exit status %d: %s", status, p.log())
	}
}

func read(t *testing.T, client *http.Client, url string) (status int, body string) {
	t.Helper()
	res, err := client.Get(url)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		return 0, err.Error()
	}
	return res.StatusCode, string(text)
}

func TestRenewedCertificateIsUsedWithoutASignal(t *testing.T) {
	b := openBooks(t, func() {})
	certificate, key := ownCertificate(t)
	file := configured(t, b.URL, fmt.Sprintf("tls: {certificate: %s, key: %s}\n", certificate, key))
	p := startProxy(t, "--config", file)
	replace := func(certificate, key, by, byKey string) {
		t.Helper()
		for to, from := range map[string]string{certificate: by, key: byKey} {
			if err := os.Rename(from, to); err != nil {
				t.Fatal(err)
			}
		}
	}
	renewed, renewedKey := ownCertificate(t)
	pem, err := os.ReadFile(renewed)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	trusting := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: roots}}, Timeout: time.Minute}
	if status, body := read(t, trusting, p.url); status != 0 || !strings.Contains(body, "x509") {
		t.Errorf("before the change: %d %s", status, body)
	}
	replace(certificate, key, renewed, renewedKey)
	p.saysNow(`msg="the configuration was reloaded" why="a file that the configuration names has changed"`)
	if status, body := read(t, trusting, p.url); status != 201 {
		t.Errorf("after the change: %d %s", status, body)
	}
	text, err := os.ReadFile(file)
	if err == nil {
		err = os.WriteFile(file, append(text, "unrouted: protect\n"...), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	p.saysNow("the configuration file has changed and is not in use")
}

func TestAccessLogHasTheClientAndNoKeys(t *testing.T) {
	b := openBooks(t, func() {})
	log := filepath.Join(t.TempDir(), "access.jsonl")
	file := configured(t, b.URL, fmt.Sprintf("trust_forwarded: true\nlog: {access: %s}\nroutes: [{path: /payments, name: pay}]\n", log))
	p := startProxy(t, "--config", file)
	ask := func(key string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, p.url+"/payments?token=hidden", strings.NewReader("hidden"))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Idempotency-Key", key)
		req.Header.Set("X-Forwarded-For", "192.0.2.1, 203.0.113.9") // the first is what the client claims
		res, err := oneShot.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
	}
	lines := func(name string, n int) (all []map[string]any) {
		t.Helper()
		stettest.Eventually(t, fmt.Sprintf("%s to have %d lines", name, n), func() bool {
			text, err := os.ReadFile(name)
			if err != nil && !os.IsNotExist(err) {
				t.Fatal(err)
			}
			if strings.Contains(string(text), "hidden") {
				t.Fatalf("a key, a query or content is in the log: %s", text)
			}
			all = nil
			for line := range strings.Lines(string(text)) {
				var one map[string]any
				if strings.HasSuffix(line, "\n") && json.Unmarshal([]byte(line), &one) == nil {
					all = append(all, one)
				}
			}
			return len(all) == n
		})
		return all
	}
	ask("hidden-key")
	ask("hidden-key")
	for i, line := range lines(log, 2) {
		if line["client"] != "203.0.113.9" || line["class"] != "pay" || line["status"] != 201.0 || line["path"] != "/payments" || line["replayed"] != (i == 1) || line["bytes"].(float64) < 10 {
			t.Errorf("line %d: %v", i, line)
		}
	}
	if err := os.Rename(log, log+".1"); err != nil {
		t.Fatal(err)
	}
	p.signal(syscall.SIGHUP)
	p.saysNow("the configuration was reloaded")
	ask("hidden-key")
	lines(log, 1)
	lines(log+".1", 2)
}

func TestLogLevelChangesWithAReload(t *testing.T) {
	states := supervisor(t)
	file := configured(t, "http://127.0.0.1:1", "")
	p := startProxy(t, "--config", file)
	receives(t, states, "READY=1")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	reload := func(more, wait string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(string(text)+more), 0o600); err != nil {
			t.Fatal(err)
		}
		p.signal(syscall.SIGHUP)
		receives(t, states, "RELOADING=1")
		receives(t, states, "READY=1")
		if wait != "" {
			p.saysNow(wait)
		}
	}
	reload("log: {level: loud}\n", `is none of debug, info, warn and error`)
	reload("log: {level: error}\nlimits: {stall: 7s}\n", "limits.stall: it cannot change")
	reload("log: {level: error}\n", "")
	reload("log: {level: error}\nlimits: {upload: 7s}\n", "limits.upload: it cannot change")
	if strings.Contains(p.log(), "was reloaded") {
		t.Errorf("a line of the level info: %s", p.log())
	}
	reload("log: {level: debug}\n", "the configuration was reloaded")
}

func TestWatchedFilesAreReadWhenTheyStopChanging(t *testing.T) {
	dir := t.TempDir()
	names := []string{filepath.Join(dir, "cert"), filepath.Join(dir, "key"), filepath.Join(dir, "none")}
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(names[0], "1")
	write(names[1], "1")
	var w watched
	w.use(names)
	expect := func(what string, want bool) {
		t.Helper()
		if got := w.changed(names); got != want {
			t.Errorf("%s: %v", what, got)
		}
	}
	expect("no change", false)
	write(names[0], "2")
	expect("the certificate alone", false)
	write(names[1], "2")
	expect("then its key", false)
	expect("no change since", true)
	expect("the same change again", false)
	write(names[0], "3")
	w.names(names) // by a reload that has read "2"
	expect("a change during a reload", false)
	expect("no change since", true)
}
