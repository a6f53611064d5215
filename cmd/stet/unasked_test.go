package main

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"
)

// overlong is a service whose responses are longer than they say. Each of its
// connections that ends sends to ended.
func overlong(t *testing.T, more string, ended chan<- struct{}) (url string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() { // ends with the listener
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = c.Close(); ended <- struct{}{} }()
				for in := bufio.NewReader(c); ; {
					r, err := http.ReadRequest(in)
					if err != nil {
						return
					}
					_, _ = io.Copy(io.Discard, r.Body)
					_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"+more)
				}
			}()
		}
	}()
	return "http://" + l.Addr().String()
}

func TestUnsolicitedResponseIsNotLogged(t *testing.T) {
	ended := make(chan struct{}, 100)
	service := overlong(t, "iban DE02 of hunter2", ended)
	p := startProxy(t, "--config", configured(t, service, ""))
	for range 5 {
		if !answered(connect(t, p.url, "POST /payments HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")) {
			t.Fatalf("no answer: %s", p.log())
		}
		// On a connection that is still open, the next request would get the unsolicited response.
		select {
		case <-ended:
		case <-time.After(time.Minute):
			t.Fatalf("the connection is still open after a minute: %s", p.log())
		}
	}
	p.signal(syscall.SIGTERM)
	<-p.done
	said := p.log()
	if strings.Contains(said, "hunter2") {
		t.Errorf("the log has content: %s", said)
	}
	if !strings.Contains(said, `level=WARN msg="unsolicited response: `) || !strings.Contains(said, "upstream="+service+"\n") {
		t.Errorf("the log does not name the service: %s", said)
	}
	for line := range strings.Lines(said) {
		if !strings.HasPrefix(line, "time=") {
			t.Errorf("a line of another form: %s", line)
		}
	}
}
