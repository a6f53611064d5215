//go:build unix

package proxy_test

import (
	"bytes"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stet-go/stet/internal/proxy"
	"github.com/stet-go/stet/store/memory"
)

// BenchmarkProxy reports the processor time of a request, client and service
// included: through the standard library's reverse proxy, through this one
// without a key, and with one.
func BenchmarkProxy(b *testing.B) {
	content := bytes.Repeat([]byte("x"), 1024)
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header()["Content-Length"] = []string{"1024"}
		_, _ = w.Write(content)
	}))
	defer upstream.Close()
	u, _ := url.Parse(upstream.URL)
	plain := httptest.NewServer(&httputil.ReverseProxy{
		Rewrite:    func(pr *httputil.ProxyRequest) { pr.SetURL(u); pr.SetXForwarded() },
		Transport:  &http.Transport{MaxIdleConnsPerHost: 256, DisableCompression: true},
		BufferPool: pool{},
	})
	defer plain.Close()
	c, err := proxy.Parse("bench", strings.NewReader("upstream: {url: '"+upstream.URL+"'}\nscope: single-tenant\n"), os.LookupEnv)
	if err != nil {
		b.Fatal(err)
	}
	p, err := proxy.New(memory.New(memory.Options{MaxRecords: 10_000_000}), c, proxy.Options{ErrorLog: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.Fatal(err)
	}
	defer p.Close()
	protected := httptest.NewServer(p)
	defer protected.Close()
	var next atomic.Int64
	for _, bc := range []struct {
		name, url string
		key       func() string
	}{
		{"plain", plain.URL, func() string { return "" }},
		{"unkeyed", protected.URL, func() string { return "" }},
		{"first", protected.URL, func() string { return strconv.FormatInt(next.Add(1), 10) }},
		{"replay", protected.URL, func() string { return "1" }},
	} {
		b.Run(bc.name, func(b *testing.B) {
			client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256}}
			defer client.CloseIdleConnections()
			b.ReportAllocs()
			before := processor()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					req, _ := http.NewRequestWithContext(b.Context(), "POST", bc.url, bytes.NewReader(content))
					if key := bc.key(); key != "" {
						req.Header["Idempotency-Key"] = []string{key}
					}
					res, err := client.Do(req)
					if err != nil {
						b.Error(err)
						return
					}
					_, _ = io.Copy(io.Discard, res.Body)
					_ = res.Body.Close()
				}
			})
			b.ReportMetric(float64(processor()-before)/float64(b.N), "cpu-µs/op")
		})
	}
}

// pool reuses buffers, as the proxy does.
type pool struct{}

var buffers = make(chan []byte, 256)

func (pool) Get() []byte {
	select {
	case b := <-buffers:
		return b
	default:
		return make([]byte, 32<<10)
	}
}

func (pool) Put(b []byte) {
	select {
	case buffers <- b:
	default:
	}
}

// processor is the time that this process has had, in microseconds.
func processor() int64 {
	var r syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &r)
	return (r.Utime.Sec+r.Stime.Sec)*1e6 + int64(r.Utime.Usec+r.Stime.Usec) //nolint:unconvert // of another type elsewhere
}
