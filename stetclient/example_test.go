package stetclient_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stetclient"
	"github.com/stet-go/stet/stetclient/journal"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/store/memory"
)

// payments is a service that executes each charge once, and loses its first
// answer on the way.
func payments() (url string, stop func()) {
	engine, err := stet.New(memory.New(memory.Options{}), stet.Options{})
	if err != nil {
		panic(err)
	}
	charges := 0
	h := stethttp.Must(stethttp.New(engine, stethttp.Options{Scope: stethttp.SingleTenant})).
		Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			charges++
			w.WriteHeader(http.StatusCreated)
			_, _ = fmt.Fprintf(w, "charge %d", charges)
		}))
	lost := false
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !lost {
			lost = true
			h.ServeHTTP(httptest.NewRecorder(), r)
			panic(http.ErrAbortHandler) // cuts the connection
		}
		h.ServeHTTP(w, r)
	}))
	return srv.URL, func() {
		srv.Close()
		_ = engine.Close()
	}
}

func Example() {
	url, stop := payments()
	defer stop()

	transport, err := stetclient.New(nil, stetclient.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	client := &http.Client{Transport: transport}
	defer client.CloseIdleConnections()

	res, err := client.Post(url, "application/json", strings.NewReader(`{"amount":42}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer res.Body.Close()
	body, _ := io.ReadAll(res.Body)
	info, _ := stetclient.InfoOf(res)
	fmt.Println(res.StatusCode, string(body), "attempts:", info.Attempts, "replayed:", info.Replayed)
	// Output: 201 charge 1 attempts: 2 replayed: true
}

// A caller without storage derives its key from what the operation is.
func ExampleWithKey() {
	ctx := stetclient.WithKey(context.Background(), stet.DeriveKey("charge", "order 1042"))
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Println(r.Header.Get("Idempotency-Key"))
	}))
	defer service.Close()
	transport, err := stetclient.New(nil, stetclient.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer transport.CloseIdleConnections()
	for range 2 {
		req, _ := http.NewRequestWithContext(ctx, http.MethodPost, service.URL, strings.NewReader(`{"amount":42}`))
		res, err := transport.RoundTrip(req)
		if err != nil {
			fmt.Println(err)
			return
		}
		_ = res.Body.Close()
	}
	// Output:
	// "0919c2b7-3db0-8d74-823b-5e2f9679d6a0"
	// "0919c2b7-3db0-8d74-823b-5e2f9679d6a0"
}

// An error says whether the operation was executed.
func ExampleError() {
	transport, err := stetclient.New(nil, stetclient.Options{Policy: stetclient.Policy{MaxAttempts: 2, Base: time.Millisecond}})
	if err != nil {
		fmt.Println(err)
		return
	}
	client := &http.Client{Transport: transport}
	gone := httptest.NewServer(nil)
	gone.Close()

	_, err = client.Post(gone.URL, "application/json", strings.NewReader(`{"amount":42}`)) //nolint:bodyclose // there is none
	switch stet.ExecutionOf(err) {
	case stet.NotExecuted:
		fmt.Println("not executed")
	case stet.MayHaveExecuted:
		if e, ok := errors.AsType[*stetclient.Error](err); ok {
			fmt.Println("keep the key and ask again:", e.Key)
		}
	}
	// Output: not executed
}

// Retry is the policy without HTTP.
func ExampleRetry() {
	engine, err := stet.New(memory.New(memory.Options{}), stet.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer engine.Close()
	op := stet.Op{Scope: "acct_1", Key: stet.NewKey()} // outside of the function: one operation
	attempts := 0
	got, err := stetclient.Retry(context.Background(), stetclient.Policy{Base: time.Millisecond}, func(ctx context.Context) (string, error) {
		res, err := stet.Do(ctx, engine, op, func(ctx context.Context) (string, error) {
			if attempts++; attempts == 1 {
				stet.FromContext(ctx).Declare(stet.NotExecuted, 0)
				return "", errors.New("the processor refuses connections")
			}
			return "charged", nil
		})
		return res.Value, err
	})
	fmt.Println(got, err, attempts)
	// Output: charged <nil> 2
}

// With a journal an operation is finished after the client's own death.
func ExampleTransport_Resume() {
	dir, err := os.MkdirTemp("", "stetclient")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = os.RemoveAll(dir) }()
	ctx := context.Background()
	j, err := journal.Open(ctx, filepath.Join(dir, "intents.db"), journal.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer j.Close()
	url, stop := payments()
	defer stop()

	// The answer is lost, and the policy allows no second attempt: the client
	// might as well have died here.
	once, err := stetclient.New(nil, stetclient.Options{Journal: j, Policy: stetclient.Policy{MaxAttempts: 1}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer once.CloseIdleConnections()
	req, _ := http.NewRequestWithContext(stetclient.WithIntent(ctx, "order 1042, charge"), http.MethodPost, url, strings.NewReader(`{"amount":42}`))
	if _, err := once.RoundTrip(req); err != nil { //nolint:bodyclose // there is none
		fmt.Println(err != nil, stet.ExecutionOf(err))
	}

	// When the client starts again:
	transport, err := stetclient.New(nil, stetclient.Options{Journal: j})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer transport.CloseIdleConnections()
	resumed, err := transport.Resume(ctx, stetclient.ResumeOptions{Progress: func(p stetclient.Progress) {
		fmt.Println(p.Name, p.Status, "replayed:", p.Info.Replayed)
	}})
	fmt.Println(resumed.Settled, resumed.Pending, err)
	// Output:
	// true may have executed
	// order 1042, charge 201 replayed: true
	// 1 0 <nil>
}

func ExampleAwait() {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /orders", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Location", "/operations/7")
		w.WriteHeader(http.StatusAccepted)
	})
	mux.HandleFunc("GET /operations/7", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"state":"completed","outcome":{"status":200,"result":{"parcel":42}}}`)
	})
	srv := httptest.NewServer(mux)
	defer srv.Close()

	transport, err := stetclient.New(nil, stetclient.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	client := &http.Client{Transport: transport}
	defer client.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	req, _ := http.NewRequestWithContext(ctx, http.MethodPost, srv.URL+"/orders", strings.NewReader(`{"item":"A7"}`))
	accepted, err := client.Do(req)
	if err != nil {
		fmt.Println(err)
		return
	}
	outcome, err := stetclient.Await(ctx, client, accepted, stetclient.AwaitOptions{Every: 10 * time.Millisecond})
	if err != nil {
		fmt.Println(err, stet.ExecutionOf(err))
		return
	}
	fmt.Println(outcome.Status, string(outcome.Body), outcome.Execution)
	// Output: 200 {"parcel":42} executed
}

func ExampleStripe() {
	transport, err := stetclient.New(nil, stetclient.Options{Service: stetclient.Stripe()})
	if err != nil {
		fmt.Println(err)
		return
	}
	_ = &http.Client{Transport: transport} // for stripe.NewBackendsWithConfig, with its own retries off
	// Output:
}
