package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/stetmsg"
	"github.com/stet-go/stet/store"
)

// path is a way to run an operation, as a user calls it. call runs it, or finds it run,
// and returns the result; the handler calls inside, if it is not nil, once it runs.
type path struct {
	name string
	call func(ctx context.Context, key, body string, inside func()) (found, error)
}

// found is what a call found.
type found string

const (
	first    found = "first"
	replay   found = "replay"
	inFlight found = "in_flight"
	mismatch found = "mismatch"
)

// of is what an engine's answer says.
func of(replayed bool, err error) (found, error) {
	switch kind := stet.KindOf(err); {
	case kind == stet.KindInFlight:
		return inFlight, nil
	case kind == stet.KindMismatch:
		return mismatch, nil
	case err != nil:
		return "", err
	case replayed:
		return replay, nil
	}
	return first, nil
}

func operation(key, body string) stet.Op {
	return stet.Op{Scope: "alice", Key: key, Fingerprint: stet.NewFingerprint([]byte(body))}
}

// leasePaths are the ways without a transaction.
func leasePaths(e *stet.Engine) ([]path, error) {
	m, err := stethttp.New(e, stethttp.Options{Scope: stethttp.SingleTenant})
	if err != nil {
		return nil, err
	}
	consumer, err := stetmsg.New(e, messages(), func(_ context.Context, m message) ([]byte, error) {
		m.run()
		return nil, nil
	})
	if err != nil {
		return nil, err
	}
	return []path{
		{"do", func(ctx context.Context, key, body string, inside func()) (found, error) {
			res, err := stet.Do(ctx, e, operation(key, body), func(context.Context) (string, error) {
				called(inside)
				return "paid", nil
			})
			return of(res.Replayed, err)
		}},
		{"http", func(ctx context.Context, key, body string, inside func()) (found, error) {
			return request(ctx, m.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				called(inside)
				_, _ = io.WriteString(w, "paid")
			})), key, body)
		}},
		{"message", func(ctx context.Context, key, body string, inside func()) (found, error) {
			return decided(consumer.Decide(ctx, message{key, body, inside}, 1))
		}},
	}, nil
}

// txPaths are the ways in a transaction with one business statement.
func txPaths(te *stet.TxEngine[pgx.Tx]) ([]path, error) {
	m, err := stethttp.NewTx(te, stethttp.Options{Scope: stethttp.SingleTenant})
	if err != nil {
		return nil, err
	}
	pay := func(ctx context.Context, tx pgx.Tx, inside func()) error {
		_, err := tx.Exec(ctx, "INSERT INTO payments VALUES ($1)", "10")
		called(inside)
		return err
	}
	handle := func(ctx context.Context, tx pgx.Tx, m message) ([]byte, error) { return nil, pay(ctx, tx, m.inside) }
	single, err := stetmsg.NewTx(te, messages(), handle)
	if err != nil {
		return nil, err
	}
	return []path{
		{"do_tx", func(ctx context.Context, key, body string, inside func()) (found, error) {
			res, err := stet.DoTx(ctx, te, operation(key, body), func(ctx context.Context, tx pgx.Tx) (string, error) {
				return "paid", pay(ctx, tx, inside)
			})
			return of(res.Replayed, err)
		}},
		{"http_tx", func(ctx context.Context, key, body string, inside func()) (found, error) {
			return request(ctx, m.HandleTx(func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) {
				if err := pay(r.Context(), tx, inside); err != nil {
					w.WriteHeader(http.StatusInternalServerError)
					return
				}
				_, _ = io.WriteString(w, "paid")
			}), key, body)
		}},
		{"message_tx", func(ctx context.Context, key, body string, inside func()) (found, error) {
			return decided(single.Decide(ctx, message{key, body, inside}, 1))
		}},
	}, nil
}

func called(inside func()) {
	if inside != nil {
		inside()
	}
}

// request sends a request to a handler of this process.
func request(ctx context.Context, h http.Handler, key, body string) (found, error) {
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/payments", strings.NewReader(body))
	r.Header.Set("Idempotency-Key", key)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	switch {
	case w.Code == http.StatusConflict:
		return inFlight, nil
	case w.Code == http.StatusUnprocessableEntity:
		return mismatch, nil
	case w.Code != http.StatusOK || w.Body.String() != "paid":
		return "", fmt.Errorf("answered with %d %q", w.Code, w.Body)
	case w.Header().Get("Idempotent-Replayed") == "true":
		return replay, nil
	}
	return first, nil
}

// message is what a consumer gets.
type message struct {
	key, body string
	inside    func()
}

func (m message) run() { called(m.inside) }

func messages() stetmsg.Options[message] {
	return stetmsg.Options[message]{
		Operation: func(m message) (stet.Op, error) { return operation(m.key, m.body), nil },
		Backoff:   func(int) time.Duration { return time.Minute },
		ErrorLog:  slog.New(slog.DiscardHandler), // mismatches are meant
	}
}

func decided(d stetmsg.Decision) (found, error) {
	switch d.Reason {
	case stetmsg.Handled:
		return first, nil
	case stetmsg.Replayed:
		return replay, nil
	case stetmsg.InFlight:
		return inFlight, nil
	case stetmsg.Mismatch:
		return mismatch, nil
	}
	return "", fmt.Errorf("decided %s: %w", d.Reason, d.Err)
}

// accept accepts an operation, or finds it accepted or done.
func accept(ctx context.Context, e *stet.Engine, key, body string) (found, error) {
	st, err := e.Accept(ctx, operation(key, body), stet.Work{Name: "ship", Payload: []byte(body)})
	if err == nil && st.Record.State == store.Accepted {
		return inFlight, nil
	}
	return of(st.Record.State == store.Completed, err)
}

// accepted is an operation from its acceptance to its outcome, without the looks of a worker
// that finds nothing. between is called while it waits for a worker.
func accepted(ctx context.Context, e *stet.Engine, key, body string, between func() error) (found, error) {
	if what, err := accept(ctx, e, key, body); err != nil || what != inFlight {
		return what, err
	}
	if err := between(); err != nil {
		return "", err
	}
	items, err := e.Due(ctx, 1, time.Minute)
	if err != nil {
		return "", err
	}
	for _, it := range items {
		run, err := e.Take(ctx, it)
		if err != nil {
			return "", err
		}
		if err := run.Settle(ctx, stet.Outcome{}); err != nil {
			return "", err
		}
	}
	return first, nil
}
