package stethttp_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/store/memory"
)

// payment is what the handler of the benchmarks reads and answers with; as
// JSON it is 1 KB.
type payment struct {
	ID       string `json:"id"`
	Amount   int    `json:"amount"`
	Currency string `json:"currency"`
	Note     string `json:"note"`
}

func pay(w http.ResponseWriter, r *http.Request) {
	var p payment
	if err := json.NewDecoder(r.Body).Decode(&p); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	p.ID = "pay_1"
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	_ = json.NewEncoder(w).Encode(p)
}

var paymentJSON = func() string {
	b, err := json.Marshal(payment{Amount: 4200, Currency: "EUR", Note: strings.Repeat("n", 960)})
	if err != nil {
		panic(err)
	}
	return string(b)
}()

func benchMiddleware(b *testing.B) *stethttp.Middleware {
	b.Helper()
	engine, err := stet.New(memory.New(memory.Options{MaxRecords: 100_000_000}), stet.Options{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = engine.Close() })
	return stethttp.Must(stethttp.New(engine, stethttp.Options{Scope: stethttp.SingleTenant}))
}

// BenchmarkOverhead measures requests over loopback, 64 connections, a payment
// of 1 KB: without the middleware, first requests, and replays.
func BenchmarkOverhead(b *testing.B) {
	for _, bench := range []struct {
		name string
		bare bool
		same bool // one key for all
	}{{"bare", true, false}, {"first", false, false}, {"replay", false, true}} {
		b.Run(bench.name, func(b *testing.B) {
			var h http.Handler = http.HandlerFunc(pay)
			if !bench.bare {
				h = benchMiddleware(b).Handler(h)
			}
			srv := httptest.NewServer(h)
			defer srv.Close()
			var next atomic.Int64
			load(b, srv.Listener.Addr().String(), func() int64 {
				if bench.same {
					return 1
				}
				return next.Add(1)
			})
		})
	}
}

// load sends b.N requests over 64 connections with a client that costs little.
func load(b *testing.B, addr string, key func() int64) {
	prime, err := net.Dial("tcp", addr)
	if err != nil {
		b.Fatal(err)
	}
	if err := roundTrip(prime, bufio.NewReader(prime), appendRequest(nil, key())); err != nil {
		b.Fatal(err)
	}
	_ = prime.Close()
	b.ReportAllocs()
	b.SetParallelism(max(1, 64/runtime.GOMAXPROCS(0)))
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			b.Error(err)
			return
		}
		defer conn.Close()
		in := bufio.NewReader(conn)
		var out []byte
		for pb.Next() {
			out = appendRequest(out[:0], key())
			if err := roundTrip(conn, in, out); err != nil {
				b.Error(err)
				return
			}
		}
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "req/s")
}

func appendRequest(b []byte, key int64) []byte {
	b = append(b, "POST /payments HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nIdempotency-Key: key-"...)
	b = strconv.AppendInt(b, key, 10)
	b = append(b, "\r\nContent-Length: "...)
	b = strconv.AppendInt(b, int64(len(paymentJSON)), 10)
	b = append(b, "\r\n\r\n"...)
	return append(b, paymentJSON...)
}

// roundTrip sends a request and reads its response, whose length is declared.
func roundTrip(conn net.Conn, in *bufio.Reader, request []byte) error {
	if _, err := conn.Write(request); err != nil {
		return err
	}
	length := -1
	for first := true; ; first = false {
		line, err := in.ReadSlice('\n')
		if err != nil {
			return err
		}
		if first && !strings.HasPrefix(string(line), "HTTP/1.1 201") {
			return fmt.Errorf("status line %q", line)
		}
		if after, ok := strings.CutPrefix(string(line), "Content-Length: "); ok {
			if length, err = strconv.Atoi(strings.TrimSpace(after)); err != nil {
				return err
			}
		}
		if len(line) == 2 {
			break
		}
	}
	if length < 0 {
		return fmt.Errorf("a response without a length")
	}
	_, err := in.Discard(length)
	return err
}

// BenchmarkHandler measures the same without a network, and the acceptance of
// payments that are made later.
func BenchmarkHandler(b *testing.B) {
	m := benchMiddleware(b)
	protected := m.Handler(http.HandlerFunc(pay))
	accepts := stethttp.Must(stethttp.NewAsync(m, stethttp.AsyncOptions{StatusURL: "/operations/"})).Accept("payments", nil)
	for _, bench := range []struct {
		name string
		h    http.Handler
		same bool
	}{{"bare", http.HandlerFunc(pay), false}, {"first", protected, false}, {"replay", protected, true},
		{"accept", accepts, false}, {"accepted", accepts, true}} {
		b.Run(bench.name, func(b *testing.B) {
			b.ReportAllocs()
			for i := range b.N {
				r := httptest.NewRequest(http.MethodPost, "/payments", strings.NewReader(paymentJSON))
				r.Header["Content-Type"] = []string{"application/json"}
				key := "same-" + bench.name[:1]
				if !bench.same {
					key = fmt.Sprint(bench.name, b.N, " ", i)[5:]
					key = strings.ReplaceAll(key, " ", "-")
				}
				r.Header["Idempotency-Key"] = []string{key}
				bench.h.ServeHTTP(discard{make(http.Header)}, r)
			}
		})
	}
}

type discard struct{ header http.Header }

func (d discard) Header() http.Header         { return d.header }
func (d discard) Write(p []byte) (int, error) { return io.Discard.Write(p) }
func (d discard) WriteHeader(int)             {}
