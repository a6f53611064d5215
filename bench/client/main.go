// Command client measures what stetclient costs a call that succeeds at its
// first attempt: over a RoundTripper that answers at once, which shows the cost
// itself, and over the standard transport on the loopback interface, which shows
// how much that is beside a request.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/bench/internal/rounds"
	"github.com/stet-go/stet/stetclient"
)

var (
	each = flag.Duration("each", 500*time.Millisecond, "how long one measurement takes")
	n    = flag.Int("rounds", 9, "rounds")
)

func main() {
	flag.Parse()
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "client:", err)
		os.Exit(1)
	}
}

var (
	text   = strings.Repeat("x", 1000) // of request and response
	header = http.Header{"Content-Type": {"application/json"}}
)

// instant is a RoundTripper that answers at once.
type instant struct {
	res  http.Response
	body strings.Reader
}

func (i *instant) RoundTrip(req *http.Request) (*http.Response, error) {
	_ = req.Body.Close() // holds nothing
	i.body.Reset(text)
	i.res = http.Response{StatusCode: http.StatusCreated, Header: header, Body: io.NopCloser(&i.body), ContentLength: int64(len(text)), Request: req}
	return &i.res, nil
}

func run() error {
	base := &instant{}
	through, err := stetclient.New(base, stetclient.Options{})
	if err != nil {
		return err
	}
	timed, err := stetclient.New(base, stetclient.Options{Policy: stetclient.Policy{AttemptTimeout: time.Minute}})
	if err != nil {
		return err
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, text)
	}))
	defer server.Close()
	plain := server.Client().Transport
	real, err := stetclient.New(plain, stetclient.Options{})
	if err != nil {
		return err
	}
	allocs := make(map[string][]float64)
	contender := func(name string, rt http.RoundTripper, url, key string) rounds.Contender {
		return rounds.Contender{Name: name, Measure: func() (float64, error) {
			rate, mallocs, err := load(rt, url, key)
			allocs[name] = append(allocs[name], mallocs)
			return rate, err
		}}
	}
	rates, err := rounds.Compare(*n,
		contender("instant", base, "http://service.test/", ""),
		contender("stetclient", through, "http://service.test/", ""),
		contender("with AttemptTimeout", timed, "http://service.test/", ""),
		contender("loopback", plain, server.URL, stet.NewKey()),
		contender("loopback, stetclient", real, server.URL, ""))
	if err != nil {
		return err
	}
	fmt.Printf("1 KB each way, one caller, %d processors\n", runtime.GOMAXPROCS(0))
	cost := func(name string) float64 { return 1e6 / rounds.Median(rates[name]) } // µs
	for _, name := range []string{"instant", "stetclient", "with AttemptTimeout", "loopback", "loopback, stetclient"} {
		fmt.Printf("%-21s %8.2f µs a call   %5.1f allocations\n", name, cost(name), rounds.Median(allocs[name]))
	}
	rounds.Figure("client_overhead", cost("stetclient")-cost("instant"), "us/call")
	rounds.Figure("client_allocations", rounds.Median(allocs["stetclient"])-rounds.Median(allocs["instant"]), "allocations/call")
	rounds.Figure("client_timeout_overhead", cost("with AttemptTimeout")-cost("instant"), "us/call")
	rounds.Figure("client_timeout_allocations", rounds.Median(allocs["with AttemptTimeout"])-rounds.Median(allocs["instant"]), "allocations/call")
	rounds.Figure("client_loopback_ratio", rounds.Ratio(rates["loopback, stetclient"], rates["loopback"]), "x plain")
	rounds.Figure("client_loopback_allocations", rounds.Median(allocs["loopback, stetclient"])-rounds.Median(allocs["loopback"]), "allocations/call")
	return nil
}

// load makes calls for a while. A caller without stetclient sends a key of its
// own, always the same one, so that the server has as much to read.
func load(rt http.RoundTripper, url, key string) (rate, mallocs float64, err error) {
	body := strings.NewReader(text)
	req, err := http.NewRequest( //nolint:noctx // a context would be measured, too
		http.MethodPost, url, body)
	if err != nil {
		return 0, 0, err
	}
	req.Header["Content-Type"] = []string{"application/json"}
	req.Header["Accept"] = []string{"application/json"}
	if key != "" {
		req.Header["Idempotency-Key"] = []string{strconv.Quote(key)}
	}
	own := req.Body
	buf := make([]byte, 2*len(text))
	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	began := time.Now()
	calls := 0
	for ; calls&0xf != 0 || time.Since(began) < *each; calls++ {
		body.Reset(text)
		req.Body = own
		res, err := rt.RoundTrip(req)
		if err != nil {
			return 0, 0, err
		}
		if err := drain(res, buf); err != nil {
			return 0, 0, err
		}
	}
	took := time.Since(began)
	runtime.ReadMemStats(&after)
	return float64(calls) / took.Seconds(), float64(after.Mallocs-before.Mallocs) / float64(calls), nil
}

// drain reads a response without an allocation of its own.
func drain(res *http.Response, buf []byte) error {
	n := 0
	for {
		m, err := res.Body.Read(buf)
		n += m
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
	}
	if err := res.Body.Close(); err != nil {
		return err
	}
	if n != len(text) {
		return fmt.Errorf("read %d bytes", n)
	}
	return nil
}
