// Command worker-python accepts orders over HTTP and has a worker in Python run
// them. See README.md.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stetwork"
	"github.com/stet-go/stet/stetwork/remote"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/sqlite"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, cmp.Or(os.Getenv("ADDR"), "127.0.0.1:8090"), cmp.Or(os.Getenv("STORE"), "orders.db"), os.Getenv("STET_TOKEN"), log.Println)
	stop()
	if err != nil {
		log.Fatal(err)
	}
}

// run serves until ctx ends.
func run(ctx context.Context, addr, file, token string, say func(...any)) error {
	store, err := sqlite.Open(ctx, file, sqlite.Options{})
	if err != nil {
		return err
	}
	defer func() { _ = store.Close() }()
	engine, err := stet.New(store, stet.Options{})
	if err != nil {
		return err
	}
	defer func() { _ = engine.Close() }()
	workers, err := remote.New(remote.Options{Token: token})
	if err != nil {
		return err
	}
	worker, err := stetwork.New(engine, stetwork.Options{Queue: workers})
	if err != nil {
		return err
	}
	// Its steps see to it that nothing is charged twice, so a dead run is repeated.
	if err := workers.HandleIdempotent(worker, "ship"); err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("/runs/", workers)
	mux.Handle("POST /orders", accept(engine))
	mux.Handle("GET /orders/{key}", status(engine))
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	say("listening on http://" + listener.Addr().String())
	err = worker.Run(ctx)
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	err = errors.Join(err, server.Shutdown(end))
	if e := <-served; !errors.Is(e, http.ErrServerClosed) {
		err = errors.Join(err, e)
	}
	return err
}

// scope would be the user that the request is authenticated as.
const scope = "example"

func accept(engine *stet.Engine) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 64<<10))
		if err != nil || !json.Valid(body) {
			http.Error(w, "an order is JSON, of 64 KiB at most", http.StatusBadRequest)
			return
		}
		op := stet.Op{Scope: scope, Key: r.Header.Get("Idempotency-Key"), Fingerprint: stet.NewFingerprint(body)}
		_, err = engine.Accept(r.Context(), op, stet.Work{Name: "ship", Payload: body})
		switch {
		case stet.KindOf(err) == stet.KindMismatch:
			http.Error(w, err.Error(), http.StatusUnprocessableEntity)
		case stet.KindOf(err) == stet.KindInvalid:
			http.Error(w, err.Error(), http.StatusBadRequest)
		case err != nil:
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		default:
			w.Header().Set("Location", "/orders/"+url.PathEscape(op.Key))
			w.WriteHeader(http.StatusAccepted)
		}
	}
}

func status(engine *stet.Engine) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		st, err := engine.Status(r.Context(), scope, engine.ID(scope, r.PathValue("key")))
		switch {
		case err != nil: // which says nothing about the order
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		case st.Record.State == store.None:
			http.Error(w, "there is no such order", http.StatusNotFound)
			return
		}
		var outcome any = json.RawMessage(cmp.Or(string(st.Outcome.Body), "null"))
		if st.Outcome.Failed {
			outcome = string(st.Outcome.Body) // the error's text
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]any{"state": st.Record.State.String(), "attempt": st.Record.Attempt,
			"progress": st.Progress.Message, "outcome": outcome})
	}
}
