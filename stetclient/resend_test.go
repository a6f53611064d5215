package stetclient_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stetclient"
)

// resending is a server that breaks each reused connection after it has read a
// request from it: net/http then sends a request with a key again by itself.
func resending(t *testing.T) (url string, requests *atomic.Int64) {
	t.Helper()
	requests = new(atomic.Int64)
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var serving atomic.Int64
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			serving.Add(1)
			r := bufio.NewReader(conn)
			for first := true; ; first = false {
				req, err := http.ReadRequest(r)
				if err != nil {
					break
				}
				_, _ = io.Copy(io.Discard, req.Body)
				requests.Add(1)
				if !first {
					break
				}
				_, _ = io.WriteString(conn, "HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n")
			}
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-done
	})
	return "http://" + l.Addr().String(), requests
}

func TestOneAttemptIsOneRequest(t *testing.T) {
	for _, body := range []string{"x"} {
		for _, attempts := range []int{1, 3} {
			t.Run(fmt.Sprintf("%d attempts, body %q", attempts, body), func(t *testing.T) {
				url, requests := resending(t)
				base := &http.Transport{}
				defer base.CloseIdleConnections()
				var seen atomic.Int64
				observe := func(context.Context, stetclient.Event) { seen.Add(1) }
				tr, err := stetclient.New(base, stetclient.Options{Observe: observe, Policy: stetclient.Policy{MaxAttempts: attempts, Base: time.Millisecond}})
				if err != nil {
					t.Fatal(err)
				}
				send := func() error {
					var r io.Reader
					if body != "" {
						r = strings.NewReader(body)
					}
					req, _ := http.NewRequestWithContext(t.Context(), "POST", url, r)
					_, _, err := do(t, tr, req)
					return err
				}
				if err := send(); err != nil {
					t.Fatal(err)
				}
				err = send() // on the connection that is now broken
				if attempts > 1 {
					if err != nil {
						t.Error(err)
					}
					if seen.Load() != 3 && body != "" {
						t.Errorf("%d attempts were seen, and there were 3", seen.Load())
					}
					return
				}
				wantError(t, err, stetclient.ReasonAttempts, stet.MayHaveExecuted)
				if n := requests.Load(); n != 2 {
					t.Errorf("the server read %d requests, want 2", n)
				}
			})
		}
	}
}

// TestRefusedConnectionAfterASentRequestMayHaveExecuted: a request that went out on
// a connection which then broke may have executed, whatever becomes of the next
// connection.
func TestRefusedConnectionAfterASentRequestMayHaveExecuted(t *testing.T) {
	for _, body := range []string{"", "x"} {
		t.Run(fmt.Sprintf("body %q", body), func(t *testing.T) {
			url, requests := resending(t)
			var dials atomic.Int64
			base := &http.Transport{DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
				if dials.Add(1) > 1 {
					return nil, errDial
				}
				return (&net.Dialer{}).DialContext(ctx, network, addr)
			}}
			defer base.CloseIdleConnections()
			tr, err := stetclient.New(base, stetclient.Options{Policy: stetclient.Policy{MaxAttempts: 3, Base: time.Millisecond}})
			if err != nil {
				t.Fatal(err)
			}
			for i := range 3 {
				var r io.Reader
				if body != "" {
					r = strings.NewReader(body)
				}
				req, _ := http.NewRequestWithContext(t.Context(), "POST", url, r)
				_, _, err := do(t, tr, req)
				switch i {
				case 0:
					if err != nil {
						t.Fatal(err)
					}
				case 1: // went out on the connection that then broke
					wantError(t, err, stetclient.ReasonAttempts, stet.MayHaveExecuted)
				case 2: // never went out
					wantError(t, err, stetclient.ReasonAttempts, stet.NotExecuted)
				}
			}
			if n := requests.Load(); n != 2 {
				t.Errorf("the server read %d requests, want 2", n)
			}
		})
	}
}
