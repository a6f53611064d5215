// Command overhead measures what stethttp costs on the memory store: the
// request rate of a handler behind it, for first requests and for replays,
// beside that of the bare handler, over loopback HTTP in one process.
package main

import (
	"bytes"
	"encoding/json"
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
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/bench/internal/rounds"
	"github.com/stet-go/stet/stethttp"
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
		fmt.Fprintln(os.Stderr, "overhead:", err)
		os.Exit(1)
	}
}

// payment is the request; its JSON has about 1 KB.
type payment struct {
	Account string   `json:"account"`
	Amount  int      `json:"amount"`
	Lines   []string `json:"lines"`
}

// receipt is the response, of about 1 KB too.
type receipt struct {
	ID int64 `json:"id"`
	payment
}

var executed atomic.Int64

func handler(w http.ResponseWriter, r *http.Request) {
	var p payment
	if err := json.NewDecoder(r.Body).Decode(&p); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	_ = json.NewEncoder(w).Encode(receipt{executed.Add(1), p})
}

func run() error {
	engine, err := stet.New(memory.New(memory.Options{MaxRecords: 50_000_000}), stet.Options{})
	if err != nil {
		return err
	}
	defer engine.Close()
	m, err := stethttp.New(engine, stethttp.Options{Scope: stethttp.SingleTenant})
	if err != nil {
		return err
	}
	bare := httptest.NewServer(http.HandlerFunc(handler))
	defer bare.Close()
	protected := httptest.NewServer(m.Handler(http.HandlerFunc(handler)))
	defer protected.Close()

	var next atomic.Int64
	fresh := func() string { return strconv.FormatInt(next.Add(1), 10) }
	const kept = 1000 // replays go round these
	if err := warm(protected.URL, kept); err != nil {
		return err
	}
	var turn atomic.Int64
	old := func() string { return "old-" + strconv.FormatInt(turn.Add(1)%kept, 10) }

	allocs, cpu := make(map[string][]float64), make(map[string][]float64)
	contender := func(name, url string, key func() string, runs bool) rounds.Contender {
		return rounds.Contender{Name: name, Measure: func() (float64, error) {
			before := executed.Load()
			spent := processorTime()
			rate, requests, mallocs, err := load(url, key)
			cpu[name] = append(cpu[name], float64(processorTime()-spent)/float64(requests)/1000)
			if ran := executed.Load() - before; err == nil && (ran == 0) == runs {
				err = fmt.Errorf("%d executions", ran)
			}
			allocs[name] = append(allocs[name], mallocs/float64(requests))
			return rate, err
		}}
	}
	rates, err := rounds.Compare(*n,
		contender("bare", bare.URL, fresh, true),
		contender("first", protected.URL, fresh, true),
		contender("replay", protected.URL, old, false))
	if err != nil {
		return err
	}
	fmt.Printf("%d connections, 1 KB JSON, memory store, %d processors\n", *connections, runtime.GOMAXPROCS(0))
	for _, name := range []string{"bare", "first", "replay"} {
		fmt.Printf("%-7s %8.0f requests/s   %5.1f allocations and %5.1f µs of processor time a request, the client's included\n",
			name, rounds.Median(rates[name]), rounds.Median(allocs[name]), rounds.Median(cpu[name]))
	}
	rounds.Figure("http_bare_rate", rounds.Median(rates["bare"]), "requests/s")
	rounds.Figure("http_first_ratio", rounds.Ratio(rates["first"], rates["bare"]), "x bare")
	rounds.Figure("http_replay_ratio", rounds.Ratio(rates["replay"], rates["bare"]), "x bare")
	rounds.Figure("http_first_processor_ratio", rounds.Ratio(cpu["bare"], cpu["first"]), "x bare, by processor time")
	rounds.Figure("http_replay_processor_ratio", rounds.Ratio(cpu["bare"], cpu["replay"]), "x bare, by processor time")
	rounds.Figure("http_first_allocations", rounds.Median(allocs["first"])-rounds.Median(allocs["bare"]), "allocations/request")
	rounds.Figure("http_replay_allocations", rounds.Median(allocs["replay"])-rounds.Median(allocs["bare"]), "allocations/request")
	return nil
}

// processorTime is what this process has used.
func processorTime() time.Duration {
	var used syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &used) // which cannot fail
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

var body = func() []byte {
	b, err := json.Marshal(payment{Account: "acct_1", Amount: 100, Lines: strings.SplitAfter(strings.Repeat("one line of the order ", 40), "order ")})
	if err != nil {
		panic(err)
	}
	return b
}()

// warm makes the operations that replays go round.
func warm(url string, kept int) error {
	client := &http.Client{}
	defer client.CloseIdleConnections()
	for i := range kept {
		if err := post(client, url, "old-"+strconv.Itoa(i)); err != nil {
			return err
		}
	}
	return nil
}

func post(client *http.Client, url, key string) error {
	req, err := http.NewRequest( //nolint:noctx // a context would be measured, too
		http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header["Content-Type"] = []string{"application/json"}
	req.Header["Idempotency-Key"] = []string{key}
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
func load(url string, key func() string) (rate float64, requests int64, mallocs float64, err error) {
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: *connections, MaxConnsPerHost: *connections}}
	defer client.CloseIdleConnections()
	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	var wg sync.WaitGroup
	var done atomic.Int64
	errs := make([]error, *connections)
	began := time.Now()
	for i := range *connections {
		wg.Go(func() {
			for time.Since(began) < *each && errs[i] == nil {
				errs[i] = post(client, url, key())
				done.Add(1)
			}
		})
	}
	wg.Wait()
	took := time.Since(began)
	runtime.ReadMemStats(&after)
	return float64(done.Load()) / took.Seconds(), done.Load(), float64(after.Mallocs - before.Mallocs), errors.Join(errs...)
}
