package stethttp_test

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/store/memory"
)

// pipes is a listener whose connections have no buffers.
type pipes struct{ conns chan net.Conn }

func (p pipes) Accept() (net.Conn, error) {
	if conn, ok := <-p.conns; ok {
		return conn, nil
	}
	return nil, net.ErrClosed
}

func (p pipes) Close() error   { return nil }
func (p pipes) Addr() net.Addr { return &net.TCPAddr{} }

// dial sends a request with the key "k".
func (p pipes) dial() net.Conn {
	client, server := net.Pipe()
	p.conns <- server
	_, _ = io.WriteString(client, "POST / HTTP/1.1\r\nHost: x\r\nIdempotency-Key: k\r\nContent-Length: 0\r\n\r\n")
	return client
}

// A client that does not read a stream cannot make the outcome
// unknown: the run's time is not its own.
func TestClientThatTakesNothingLeavesTheOutcomeKnown(t *testing.T) {
	const size = 100 << 10
	stream := func(w http.ResponseWriter, chunk int) {
		for range size / chunk {
			if _, err := io.WriteString(w, strings.Repeat("x", chunk)); err != nil {
				return
			}
			w.(http.Flusher).Flush()
		}
	}
	for name, c := range map[string]struct {
		maxResult, chunk int
		take             time.Duration // one byte each
		status           int
		problem          string
	}{
		"takes nothing":              {1 << 20, 1 << 10, 0, 200, ""},
		"takes bytes":                {1 << 20, 1 << 10, time.Second, 200, ""},
		"takes nothing of too much":  {1 << 10, 1 << 10, 0, 410, "result-expired"},
		"takes bytes of too much":    {1 << 10, 1 << 10, time.Second, 410, "result-expired"},
		"takes nothing of one write": {1 << 20, size, 0, 200, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				engine := stettest.Engine(t, memory.New(memory.Options{}), stet.Options{Policy: stet.Policy{MaxResult: c.maxResult, RunTimeout: 5 * time.Minute}})
				m := stethttp.Must(stethttp.New(engine, stethttp.Options{Scope: stethttp.SingleTenant}))
				returned := make(chan struct{}, 2)
				server := &http.Server{Handler: m.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					stream(w, c.chunk)
					returned <- struct{}{}
				}))}
				l, got := pipes{make(chan net.Conn)}, make(chan int)
				go func() { _ = server.Serve(l) }()
				slow := l.dial()
				go func() {
					n := 0
					for b := make([]byte, 1); c.take > 0; n++ {
						time.Sleep(c.take)
						if _, err := slow.Read(b); err != nil {
							break
						}
					}
					got <- n
				}()
				select {
				case <-returned:
				case <-time.After(3 * time.Minute):
					t.Error("the client holds the handler")
				}
				time.Sleep(10 * time.Minute)
				again := l.dial()
				r := readReply(bufio.NewReader(again))
				if r.status != c.status || r.name() != c.problem || c.problem == "" && len(r.body) != size {
					t.Errorf("the retry got %d %s (%v), %d bytes", r.status, r.name(), r.err, len(r.body))
				}
				_ = again.Close()
				_ = slow.Close()
				if n := <-got; n >= size {
					t.Errorf("the slow client got %d bytes", n)
				}
				close(l.conns)
				_ = server.Close()
			})
		})
	}
}
