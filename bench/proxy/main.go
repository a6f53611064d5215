// Command proxy measures what stet proxy costs: the request rate through it, on
// the memory store, for first requests and for replays, beside that of the
// standard library's reverse proxy before the same service, over loopback HTTP in
// one process.
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/stet-go/stet/bench/internal/rounds"
	"github.com/stet-go/stet/internal/proxy"
	"github.com/stet-go/stet/store/memory"
)

var (
	connections = flag.Int("connections", 64, "connections, each with one request at a time")
	each        = flag.Duration("each", 1500*time.Millisecond, "how long one measurement takes")
	n           = flag.Int("rounds", 7, "rounds")
)

func main() {
	flag.Parse()
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "proxy:", err)
		os.Exit(1)
	}
}

var executed atomic.Int64

var content = bytes.Repeat([]byte("one line of the order\n"), 45) // about 1 KB

// service is what both proxies stand before.
func service(w http.ResponseWriter, r *http.Request) {
	executed.Add(1)
	_, _ = io.Copy(io.Discard, r.Body)
	w.Header().Set("Content-Type", "text/plain")
	w.Header().Set("Content-Length", strconv.Itoa(len(content)))
	w.WriteHeader(http.StatusCreated)
	_, _ = w.Write(content)
}

// plain is the reverse proxy without stet, with as many connections.
func plain(to string) (http.Handler, error) {
	u, err := url.Parse(to)
	if err != nil {
		return nil, err
	}
	return &httputil.ReverseProxy{
		Rewrite: func(pr *httputil.ProxyRequest) {
			pr.SetURL(u)
			pr.SetXForwarded()
		},
		Transport: &http.Transport{MaxIdleConns: 256, MaxIdleConnsPerHost: 256, DisableCompression: true},
	}, nil
}

func run() error {
	upstream := httptest.NewServer(http.HandlerFunc(service))
	defer upstream.Close()
	bare, err := plain(upstream.URL)
	if err != nil {
		return err
	}
	config, err := proxy.Parse("bench", strings.NewReader("upstream: {url: '"+upstream.URL+"'}\nscope: single-tenant\n"), os.LookupEnv)
	if err != nil {
		return err
	}
	protected, err := proxy.New(memory.New(memory.Options{MaxRecords: 50_000_000}), config, proxy.Options{ErrorLog: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	defer protected.Close()
	without := httptest.NewServer(bare)
	defer without.Close()
	with := httptest.NewServer(protected)
	defer with.Close()

	var next, turn atomic.Int64
	fresh := func() string { return strconv.FormatInt(next.Add(1), 10) }
	const kept = 1000 // replays go round these
	old := func() string { return "old-" + strconv.FormatInt(turn.Add(1)%kept, 10) }
	client := &http.Client{}
	for range kept {
		if err := post(client, with.URL, old()); err != nil {
			return err
		}
	}
	client.CloseIdleConnections()
	costs := map[string][]float64{}
	contender := func(name, url string, key func() string, runs bool) rounds.Contender {
		return rounds.Contender{Name: name, Measure: func() (float64, error) {
			before := executed.Load()
			rate, cost, err := load(url, key)
			costs[name] = append(costs[name], cost)
			if ran := executed.Load() - before; err == nil && (ran == 0) == runs {
				err = fmt.Errorf("%s: %d executions", name, ran)
			}
			return rate, err
		}}
	}
	rates, err := rounds.Compare(*n,
		contender("plain", without.URL, fresh, true),
		contender("unkeyed", with.URL, func() string { return "" }, true),
		contender("first", with.URL, fresh, true),
		contender("replay", with.URL, old, false))
	if err != nil {
		return err
	}
	fmt.Printf("%d connections, 1 KB each way, memory store, %d processors\n", *connections, runtime.GOMAXPROCS(0))
	for _, name := range []string{"plain", "unkeyed", "first", "replay"} {
		fmt.Printf("%-8s %8.0f requests/s   %5.0f µs of processor a request, client and service included\n",
			name, rounds.Median(rates[name]), rounds.Median(costs[name]))
	}
	rounds.Figure("proxy_plain_rate", rounds.Median(rates["plain"]), "requests/s")
	rounds.Figure("proxy_unkeyed_ratio", rounds.Ratio(rates["unkeyed"], rates["plain"]), "x plain")
	rounds.Figure("proxy_first_ratio", rounds.Ratio(rates["first"], rates["plain"]), "x plain")
	rounds.Figure("proxy_first_cost", rounds.Ratio(costs["first"], costs["plain"]), "x plain, processor time")
	rounds.Figure("proxy_replay_ratio", rounds.Ratio(rates["replay"], rates["plain"]), "x plain")
	return nil
}

func post(client *http.Client, url, key string) error {
	req, err := http.NewRequest( //nolint:noctx // a context would be measured, too
		http.MethodPost, url, bytes.NewReader(content))
	if err != nil {
		return err
	}
	req.Header["Content-Type"] = []string{"text/plain"}
	if key != "" {
		req.Header["Idempotency-Key"] = []string{key}
	}
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, res.Body)
	_ = res.Body.Close()
	if err == nil && res.StatusCode != http.StatusCreated {
		err = fmt.Errorf("status %d", res.StatusCode)
	}
	return err
}

// load sends requests over all connections for a while.
func load(url string, key func() string) (rate, cost float64, err error) {
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: *connections, MaxConnsPerHost: *connections}}
	defer client.CloseIdleConnections()
	runtime.GC()
	var wg sync.WaitGroup
	var done atomic.Int64
	errs := make([]error, *connections)
	began, before := time.Now(), processor()
	for i := range *connections {
		wg.Go(func() {
			for time.Since(began) < *each && errs[i] == nil {
				errs[i] = post(client, url, key())
				done.Add(1)
			}
		})
	}
	wg.Wait()
	requests := float64(done.Load())
	return requests / time.Since(began).Seconds(), float64((processor() - before).Microseconds()) / requests, errors.Join(errs...)
}

// processor is the processor time that this process has had.
func processor() time.Duration {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		return 0
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}
