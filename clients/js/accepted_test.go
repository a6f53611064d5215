package js

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/stetwork"
	"github.com/stet-go/stet/store/memory"
)

// orders are accepted operations that wait, each for the gate that it names.
type orders struct {
	mu    sync.Mutex
	gates map[string]chan struct{}
	runs  map[string]int
}

func (o *orders) gate(name string) chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.gates[name] == nil {
		o.gates[name] = make(chan struct{})
	}
	return o.gates[name]
}

// open lets what waits for a gate end; it may be open already.
func (o *orders) open(name string) {
	gate := o.gate(name)
	o.mu.Lock()
	defer o.mu.Unlock()
	select {
	case <-gate:
	default:
		close(gate)
	}
}

// order says what becomes of an order.
type order struct{ Gate, End string }

func (o *orders) ship(ctx context.Context, in order) (json.RawMessage, error) {
	o.mu.Lock()
	o.runs[in.Gate]++
	o.mu.Unlock()
	if err := stet.FromContext(ctx).Progress(ctx, 0.5, "packing"); err != nil {
		return nil, err
	}
	select {
	case <-o.gate(in.Gate):
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if in.End == "fail" {
		return nil, stet.Permanent(errors.New("sold out"))
	}
	return json.RawMessage(`{"parcel": 12345678901234567890, "note": "\"}é"}`), nil
}

// accepting is a service that accepts orders: POST /orders, GET /operations/ID, and for
// the tests POST /gates/NAME, which lets orders end, and GET /gates/NAME, which says how many have run.
func accepting(t *testing.T) (url string) {
	t.Helper()
	engine := stettest.Engine(t, memory.New(memory.Options{}), stet.Options{})
	m, err := stethttp.New(engine, stethttp.Options{Scope: func(r *http.Request) (string, error) { return r.Header.Get("X-Account"), nil }})
	if err != nil {
		t.Fatal(err)
	}
	async, err := stethttp.NewAsync(m, stethttp.AsyncOptions{StatusURL: "/operations/"})
	if err != nil {
		t.Fatal(err)
	}
	worker, err := stetwork.New(engine, stetwork.Options{})
	if err != nil {
		t.Fatal(err)
	}
	o := &orders{gates: map[string]chan struct{}{}, runs: map[string]int{}}
	if err := stetwork.Handle(worker, "ship", o.ship); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- worker.Run(ctx) }()
	mux := http.NewServeMux()
	mux.Handle("POST /orders", async.Accept("ship", nil))
	mux.Handle("/operations/", async.Status())
	mux.HandleFunc("POST /gates/{name}", func(_ http.ResponseWriter, r *http.Request) { o.open(r.PathValue("name")) })
	mux.HandleFunc("GET /gates/{name}", func(w http.ResponseWriter, r *http.Request) {
		o.mu.Lock()
		defer o.mu.Unlock()
		_, _ = fmt.Fprint(w, o.runs[r.PathValue("name")])
	})
	server := httptest.NewServer(mux)
	t.Cleanup(func() {
		async.Close()
		server.CloseClientConnections()
		server.Close()
		stop()
		if err := <-ended; err != nil {
			t.Errorf("the worker ended with %v", err)
		}
	})
	return server.URL
}
