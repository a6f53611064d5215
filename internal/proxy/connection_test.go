package proxy_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// fails is a service that answers what its clients ask for by X-Do, and closes a connection
// on which it has answered 500, when more comes on it: as uvicorn does, some time after the
// exception. It says how many connections there were.
func fails(t *testing.T) (url string, conns *atomic.Int64) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	conns = new(atomic.Int64)
	var all sync.WaitGroup
	t.Cleanup(func() {
		_ = l.Close()
		all.Wait()
	})
	answers := map[string]string{
		"":      "HTTP/1.1 201 Created\r\nContent-Length: 4\r\n\r\ndone",
		"fail":  "HTTP/1.1 500 Broke Off\r\nContent-Length: 5\r\n\r\nfails",
		"empty": "HTTP/1.1 500 Broke Off\r\nContent-Length: 0\r\n\r\n",
		"large": "HTTP/1.1 500 Broke Off\r\nContent-Length: 100000\r\n\r\n" + strings.Repeat("x", 100000),
		"parts": "HTTP/1.1 500 Broke Off\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nfai\r\n2\r\nls\r\n0\r\n\r\n",
	}
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			conns.Add(1)
			all.Go(func() {
				defer c.Close()
				in := bufio.NewReader(c)
				for do := ""; do == ""; {
					r, err := http.ReadRequest(in)
					if err != nil {
						return
					}
					_, _ = io.Copy(io.Discard, r.Body)
					do = r.Header.Get("X-Do")
					_, _ = io.WriteString(c, answers[do])
				}
				_, _ = in.ReadByte()
			})
		}
	})
	return "http://" + l.Addr().String(), conns
}

// What a service does to the connection after a 500 harms no other operation.
func TestOperationAfterAFailureOfTheServiceHasItsOwnConnection(t *testing.T) {
	url, _ := fails(t)
	for _, more := range []string{"", ", settles: service"} {
		f := start(t, "upstream: {url: "+url+"}\nscope: single-tenant\nroutes: [{path: /payments"+more+"}]\n")
		want := http.StatusCreated
		if more != "" {
			want = http.StatusInternalServerError // not-settled: it was asked, and settles nothing
		}
		for i, do := range []string{"fail", "large", "parts", "empty"} {
			for _, protected := range []bool{true, false} {
				method, path, key := "POST", "/payments", fmt.Sprintf("fails%d", i)
				if !protected {
					method, path, key = "GET", "/elsewhere", ""
				}
				if got := f.send(method, path, key, "", "X-Do", do); got.status < 500 {
					t.Errorf("%s %s is answered %d %s, %v", do, path, got.status, got.body, got.err)
				}
				if got := f.post(fmt.Sprintf("k%d-%v", i, protected), "{}"); got.status != want {
					t.Errorf("after %q on %s%s an operation gets %d %s, %v; want %d", do, path, more, got.status, got.body, got.err, want)
				}
			}
		}
	}
}

// The same while others send: none is harmed, whenever it gets a connection, though its content
// is too large to be kept, or the route not protected.
func TestFailuresOfTheServiceHarmNoConcurrentOperation(t *testing.T) {
	url, _ := fails(t)
	f := start(t, yamlFor(url, "http1", single))
	large := `"` + strings.Repeat("x", 100_000) + `"`
	var all sync.WaitGroup
	for client := range 8 {
		all.Go(func() {
			for i := range 100 {
				path, key, do, want := "/payments", fmt.Sprintf("%d-%d", client, i), "", http.StatusCreated
				if i%3 == 0 {
					do, want = []string{"fail", "large", "parts"}[i/3%3], http.StatusInternalServerError
				}
				content := []string{"{}", large}[i/2%2]
				if i%5 == 0 {
					path, key = "/elsewhere", ""
				}
				if got := f.send("POST", path, key, content, "X-Do", do); got.status != want {
					t.Errorf("%q on %s is answered %d %s, %v; want %d", do, path, got.status, got.body, got.err, want)
				}
			}
		})
	}
	all.Wait()
}

// A failure is what ends a connection, and no other answer.
func TestConnectionsAreReusedIfNothingFails(t *testing.T) {
	url, conns := fails(t)
	f := start(t, yamlFor(url, "http1", single))
	for i := range 20 {
		if got := f.post(fmt.Sprint("k", i), "{}"); got.status != http.StatusCreated {
			t.Fatalf("%d %s, %v", got.status, got.body, got.err)
		}
	}
	if n := conns.Load(); n != 1 {
		t.Errorf("%d connections for 20 operations, one after another; want 1", n)
	}
}
