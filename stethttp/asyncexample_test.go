package stethttp_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/store/memory"
)

// placeOrder sends an order and prints the answer.
func placeOrder(h http.Handler, body, prefer string) string {
	r := httptest.NewRequest(http.MethodPost, "/orders", strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("X-Account", "acct_1")
	r.Header.Set("Idempotency-Key", "k")
	r.Header.Set("Prefer", prefer)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	if w.Code == http.StatusAccepted {
		fmt.Println(w.Code, "status at", w.Header().Get("Location")[:12]+"…")
	} else {
		fmt.Println(w.Code, strings.TrimSpace(w.Body.String()))
	}
	return w.Header().Get("Location")
}

// workOnce does the work that is due; package stetwork has a worker that continues.
func workOnce(engine *stet.Engine) error {
	items, err := engine.Due(context.Background(), 1, time.Minute)
	if err != nil || len(items) == 0 {
		return err
	}
	run, err := engine.Take(context.Background(), items[0])
	if err != nil || run.Replayed() {
		return err
	}
	return run.Settle(run.Context(), stet.Outcome{Body: []byte(`{"shipped":true}`)})
}

// An order is accepted at once and done later. A retry of it gets the same 202 and, once
// it is done, the outcome.
func ExampleNewAsync() {
	engine, err := stet.New(memory.New(memory.Options{}), stet.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer engine.Close()
	protected := stethttp.Must(stethttp.New(engine, stethttp.Options{Scope: account}))
	async := stethttp.Must(stethttp.NewAsync(protected, stethttp.AsyncOptions{StatusURL: "/operations/"}))
	mux := http.NewServeMux()
	mux.Handle("POST /orders", async.Accept("orders.create", nil))
	mux.Handle("/operations/", async.Status())

	placeOrder(mux, `{"item":1}`, "respond-async")
	placeOrder(mux, `{"item":1}`, "") // the retry
	if err := workOnce(engine); err != nil {
		fmt.Println(err)
	}
	placeOrder(mux, `{"item":1}`, "")
	// Output:
	// 202 status at /operations/…
	// 202 status at /operations/…
	// 200 {"shipped":true}
}

// An order that is not acceptable is refused before anything is stored, and the
// key may be used again.
func ExampleAsync_Accept() {
	engine, err := stet.New(memory.New(memory.Options{}), stet.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer engine.Close()
	protected := stethttp.Must(stethttp.New(engine, stethttp.Options{Scope: account}))
	async := stethttp.Must(stethttp.NewAsync(protected, stethttp.AsyncOptions{StatusURL: "/operations/"}))
	h := async.Accept("orders.create", func(w http.ResponseWriter, r *http.Request) (stet.Work, bool) {
		var order struct{ Item int }
		if err := json.NewDecoder(r.Body).Decode(&order); err != nil || order.Item < 1 {
			http.Error(w, "which item?", http.StatusUnprocessableEntity)
			return stet.Work{}, false
		}
		return stet.Work{Payload: fmt.Appendf(nil, `{"item":%d}`, order.Item)}, true
	})

	placeOrder(h, `{"item":0}`, "")
	placeOrder(h, `{"item":1}`, "")
	// Output:
	// 422 which item?
	// 202 status at /operations/…
}

// The status resource tells an operation's own scope how far it is.
func ExampleAsync_Status() {
	engine, err := stet.New(memory.New(memory.Options{}), stet.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer engine.Close()
	protected := stethttp.Must(stethttp.New(engine, stethttp.Options{Scope: account}))
	async := stethttp.Must(stethttp.NewAsync(protected, stethttp.AsyncOptions{StatusURL: "/operations/"}))
	status := async.Status()

	location := placeOrder(async.Accept("orders.create", nil), `{"item":1}`, "")
	look := func(account string) {
		r := httptest.NewRequest(http.MethodGet, location, nil)
		r.Header.Set("X-Account", account)
		w := httptest.NewRecorder()
		status.ServeHTTP(w, r)
		var told struct {
			State   string
			Outcome struct{ Result json.RawMessage }
		}
		if err := json.Unmarshal(w.Body.Bytes(), &told); err != nil {
			fmt.Println(err)
		}
		fmt.Println(strings.TrimSpace(fmt.Sprintln(w.Code, told.State, string(told.Outcome.Result))))
	}
	look("acct_1")
	if err := workOnce(engine); err != nil {
		fmt.Println(err)
	}
	look("acct_1")
	look("acct_2")
	// Output:
	// 202 status at /operations/…
	// 200 accepted
	// 200 completed {"shipped":true}
	// 404
}
